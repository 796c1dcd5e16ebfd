"""streaming_llm: sink tokens and the newest rows, only the position counts."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, Method


@dataclass(frozen=True)
class StreamingLLM(Method):
    """Sink tokens and the most recent rows (arXiv 2309.17453): score = position.

    Positions stay true, they are not renumbered inside the cache. Cost per step: none.
    Path-independent; exact up to position 2^24, where float32 stops counting.
    """

    name: ClassVar[str] = "streaming_llm"
    family: ClassVar[str] = "structural"
    paper: ClassVar[str] = "2309.17453"
    cost: ClassVar[str] = "none"

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """keys `[B, H_kv, T, D]` -> `[B, H_kv, T]`."""
        return mx.broadcast_to(positions.astype(mx.float32), keys.shape[:3])
