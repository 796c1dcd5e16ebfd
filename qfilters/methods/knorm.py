"""knorm: keys of small norm receive the most attention."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, Method


@dataclass(frozen=True)
class KNorm(Method):
    """Score `-|k|_2` (arXiv 2406.11430). Cost per step: one norm per new row. Path-independent."""

    name: ClassVar[str] = "knorm"
    family: ClassVar[str] = "intrinsic"
    paper: ClassVar[str] = "2406.11430"
    cost: ClassVar[str] = "one norm per new row"

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """keys `[B, H_kv, T, D]` -> `[B, H_kv, T]`."""
        return -mx.sqrt(mx.square(keys.astype(mx.float32)).sum(axis=-1))
