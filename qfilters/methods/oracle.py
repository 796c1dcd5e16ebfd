"""oracle: hindsight, the attention that later tokens really pay in the dense model."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, Method


@dataclass(frozen=True)
class Oracle(Method):
    """Score = attention received from later queries of the same text, in a dense first pass.

    `s_j = sum_{i > j} sum_g a_{g,i,j}` over the queries to come, per KV head (ours).
    `after_prefill` counts the queries after the context only, those of `continuation`: of all
    choices of as many rows it keeps the most of their attention. In `stream` it counts all later
    queries of the text and is a reference, not a bound: mass already spent counts too, and the
    passes diverge. It needs the text in advance: `evaluate_ppl` runs the dense pass, `generate`
    refuses. Cost: a second pass over the text; per step a look-up. Path-independent.
    """

    name: ClassVar[str] = "oracle"
    family: ClassVar[str] = "control"
    paper: ClassVar[str] = "ours (reference)"
    cost: ClassVar[str] = "a look-up; a second pass over the text"
    needs_future: ClassVar[bool] = True

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """keys `[B, H_kv, T, D]` -> `[B, H_kv, T]`, looked up in `layer.future` `[H_kv, N]`."""
        return mx.broadcast_to(layer.future[:, positions], keys.shape[:3])
