"""sliding_window: the newest rows and nothing else."""

from dataclasses import dataclass
from typing import ClassVar

from .streaming_llm import StreamingLLM


@dataclass(frozen=True)
class SlidingWindow(StreamingLLM):
    """The most recent rows and no sinks, whatever `sinks` says. Cost per step: none."""

    name: ClassVar[str] = "sliding_window"
    paper: ClassVar[str] = "-"
    max_sinks: ClassVar[int | None] = 0
