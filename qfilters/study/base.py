"""What the settings of all studies share, and the nats of a text's rest."""

from collections.abc import Sequence
from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from ..fields import Length, Samples, Seed
from ..settings import Settings


class StudyConfig(Settings):
    """Model, filters and text of a study. `command` names the shipped file of its settings."""

    command: ClassVar[str]

    filters: str | None = None
    auto_calibrate: bool = True
    data_path: str = "builtin"
    text_field: str = "text"
    num_samples: Samples = 2
    sequence_length: Length = 1024
    seed: Seed = 123
    save: bool = True
    resume: bool = False

    def check(self) -> None:
        """UsageError for values that contradict each other; studies have their own."""


def rest_nll(model, caches: list, tokens: Sequence[int], step: int) -> float:
    """Nats of all tokens but the first, fed `step` at a time after what the caches hold."""
    row, total = mx.array(tokens), 0.0
    for first in range(0, len(tokens) - 1, step):
        last = min(first + step, len(tokens) - 1)
        logits = model(row[None, first:last], cache=caches).astype(mx.float32)
        nll = nn.losses.cross_entropy(logits, row[None, first + 1 : last + 1], reduction="sum")
        mx.eval(nll, [cache.state for cache in caches])
        total += nll.item()
    return total
