"""keydiff: keys that differ from the others stay."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, Method


@dataclass(frozen=True)
class KeyDiff(Method):
    """Score `-cos(k, mean of the unit keys)` (arXiv 2504.15364).

    In one chunk, and in `after_prefill`, the mean runs over all keys, as in the paper. In `stream`
    it runs over all keys seen up to the row's own chunk, and the score is fixed then. Cost per
    step: two dot products per new row. Path-dependent in `stream`.
    """

    name: ClassVar[str] = "keydiff"
    family: ClassVar[str] = "intrinsic"
    paper: ClassVar[str] = "2504.15364"
    cost: ClassVar[str] = "two dot products per new row"
    path_independent: ClassVar[bool] = False
    learns_always: ClassVar[bool] = True

    def learn(self, keys: mx.array, learned: mx.array | None) -> mx.array:
        """Sum of the unit keys so far: keys `[B, H_kv, T, D]` -> float32 `[B, H_kv, D]`."""
        # One key that is not finite would turn the sum, and every later score, into NaN.
        total = mx.nan_to_num(_unit(keys)).sum(axis=2)
        return total if learned is None else learned + total

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """`[B, H_kv, T]`: minus the cosine to the sum, whose direction is the mean's."""
        anchor = learned / mx.maximum(mx.linalg.norm(learned, axis=-1, keepdims=True), 1e-30)
        return -(_unit(keys) * anchor[:, :, None]).sum(axis=-1)


def _unit(keys):
    rows = keys.astype(mx.float32)
    return rows / mx.maximum(mx.sqrt(mx.square(rows).sum(axis=-1, keepdims=True)), 1e-30)
