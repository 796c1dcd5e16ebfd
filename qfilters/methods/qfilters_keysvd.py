"""qfilters_keysvd: the fallback that needs no calibration and no queries, and knows no sign."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, Method, require


@dataclass(frozen=True)
class QFiltersKeySVD(Method):
    """Score `sign * k . u`, u = mean-centred top right-singular vector of the keys seen first.

    u is computed per batch row and KV head, `[B, H_kv, D]`, and frozen at the end of the first call
    after which at least `calib_tokens` keys were seen or the budget is exceeded, so the budget
    always holds. Its component of largest magnitude is positive, which makes runs repeatable; which
    end matters is not known, hence `sign`. Cost per step: one dot product per new row. Not
    path-independent: u depends on the chunk that completes the sample.

    Options:
        sign: 1 or -1.
        calib_tokens: keys to see before the direction is frozen, >= 2.
    """

    name: ClassVar[str] = "qfilters_keysvd"
    family: ClassVar[str] = "projection"
    paper: ClassVar[str] = "2503.02812 (fallback, ours)"
    cost: ClassVar[str] = "one dot product per new row"
    path_independent: ClassVar[bool] = False

    sign: int = 1
    calib_tokens: int = 128

    def __post_init__(self):
        sign, tokens = self.sign, self.calib_tokens
        require(type(sign) is int and sign in (1, -1), "sign", sign, "1 or -1")
        valid = type(tokens) is int and tokens >= 2
        require(valid, "calib_tokens", tokens, "a whole number >= 2")

    @property
    def learn_after(self) -> int:
        """Keys to see before `learn` is called."""
        return self.calib_tokens

    def learn(self, keys: mx.array, learned: mx.array | None) -> mx.array:
        """The direction: keys `[B, H_kv, S, D]` -> float32 `[B, H_kv, D]`, unit length."""
        # The decomposition fails on values that are not finite; scoring them does not.
        rows = mx.nan_to_num(keys.astype(mx.float32), posinf=0.0, neginf=0.0)
        rows = rows - rows.mean(axis=2, keepdims=True)
        gram = rows.swapaxes(2, 3) @ rows
        top = mx.linalg.eigh(gram, stream=mx.cpu)[1][..., -1]
        largest = mx.argmax(mx.abs(top), axis=-1, keepdims=True)
        return mx.where(mx.take_along_axis(top, largest, axis=-1) < 0, -top, top)

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """`[B, H_kv, T]`: signed projection on the learned direction."""
        return layer.project(keys, self.directions(layer, learned))

    def directions(self, layer: Layer, learned) -> mx.array:
        """The learned direction, turned to where keys are kept."""
        return self.sign * learned
