"""The cache as one would write it without caring for speed, to compare the real one with.

Everything ever seen is kept; what is stored is worked out from scratch after every call, in numpy,
by sorting all tokens. It shares no code with `qfilters.select`, `rows` and `cache`.
"""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask

from qfilters.methods import Method


def stay(scores: np.ndarray, budget: int, sinks: int, recent: int) -> np.ndarray:
    """Positions that stay, ascending, int `[B, H, K]`, for scores `[B, H, n]` of n tokens.

    Best first: protected; then numbers before NaN; then the higher score; then the lower position.
    """
    n = scores.shape[-1]
    positions = np.arange(n)
    protected = (positions < sinks) | (positions >= n - recent)

    def one(row):
        nan = np.isnan(row)
        worse = np.where(nan, 0, -row.astype(np.float64))
        order = np.lexsort((positions, worse, nan, ~protected))
        return np.sort(order[:budget])

    return np.apply_along_axis(one, -1, scores)


def rows_at(stream: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """`stream[b, h, positions[b, h, i]]`."""
    return np.take_along_axis(stream, positions[..., None], axis=2)


class ObviousCache:
    """mlx-lm's protocol for a method whose scores do not depend on other rows."""

    state = ()

    def __init__(self, method, layer, budget, sinks, recent):
        self.method, self.layer = method, layer
        self.limits = (budget, sinks, recent)
        self.offset = self.stored = 0
        self.keys = self.values = self.kept = None

    def update_and_fetch(self, keys, values):
        new = np.arange(self.offset, self.offset + keys.shape[2])
        self.offset += keys.shape[2]
        new = np.broadcast_to(new, (*keys.shape[:2], keys.shape[2]))
        if self.keys is None:
            self.keys, self.values, rows = keys, values, new
        else:
            self.keys = mx.concatenate([self.keys, keys], axis=2)
            self.values = mx.concatenate([self.values, values], axis=2)
            rows = np.concatenate([self.kept, new], axis=2)
        scores = self.method.score(
            self.keys, mx.arange(self.offset, dtype=mx.int32), self.layer, None
        )
        self.kept = stay(np.array(scores), *self.limits)
        self.stored = self.kept.shape[2]
        at = mx.array(rows)[..., None]
        return mx.take_along_axis(self.keys, at, axis=2), mx.take_along_axis(
            self.values, at, axis=2
        )

    def make_mask(self, N, return_array=False, window_size=None):
        assert window_size is None
        if return_array and N > 1:
            return create_causal_mask(N, self.stored)
        return "causal" if N > 1 else None


@dataclass(frozen=True)
class FirstComponent(Method):
    """A row's score is its key's first component, so that a test can choose any score."""

    name: ClassVar[str] = "first_component"
    family: ClassVar[str] = "intrinsic"
    paper: ClassVar[str] = "-"

    def score(self, keys, positions, layer, learned):
        return keys[..., 0].astype(mx.float32)
