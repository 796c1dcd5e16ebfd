"""What the settings of studies share."""

from ..fields import Length, Rows, Seed
from ..settings import ModelSettings, Settings


class StudyConfig(Settings):
    """What all studies know. `command` names the shipped file of their settings."""

    save: bool = True
    overwrite: bool = False
    resume: bool = False

    def check(self) -> None:
        """UsageError for values that contradict each other; studies have their own."""


class TextStudyConfig(StudyConfig, ModelSettings):
    """What studies know that run a model on a text; how many sequences is up to them."""

    data_path: str = "builtin"
    text_field: str = "text"
    sequence_length: Length = 1024
    seed: Seed = 123


class EvictingStudyConfig(TextStudyConfig):
    """What studies know that evict besides: filters, and the rows that are protected."""

    filters: str | None = None
    auto_calibrate: bool = True
    sinks: Rows = 4
    recent: Rows | None = None
