"""random: the control every method must beat."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import mlx.core as mx
import numpy as np

from .base import Layer, Method, require


def _mix(x):
    """Finaliser of the 32-bit MurmurHash3, for uint32 arrays of mlx or numpy."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@dataclass(frozen=True)
class Random(Method):
    """Uniform score in [0, 1): a hash of (seed, layer, KV head, position). Path-independent.

    The same in every batch row. Cost per step: one hash per new row and head.

    Options:
        seed: 0 <= seed < 2^32.
    """

    name: ClassVar[str] = "random"
    family: ClassVar[str] = "control"
    paper: ClassVar[str] = "-"
    cost: ClassVar[str] = "one hash per new row"

    seed: int = 0

    def __post_init__(self):
        valid = type(self.seed) is int and 0 <= self.seed < 2**32
        require(valid, "seed", self.seed, "a whole number from 0 to 2^32 - 1")

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """keys `[B, H_kv, T, D]` -> `[B, H_kv, T]`."""
        scores = _uniform(_salts(self.seed, layer.index, keys.shape[1]), positions)
        return mx.broadcast_to(scores, keys.shape[:3])


@cache
def _salts(seed, layer, heads):
    """uint32 `[H_kv, 1]`, one salt per head."""
    salt = _mix(_mix(np.array([seed], dtype=np.uint32)) + layer)
    return mx.array(_mix(salt + np.arange(heads, dtype=np.uint32)))[:, None]


@mx.compile
def _uniform(salts, positions):
    bits = _mix(salts ^ _mix(positions.astype(mx.uint32) + 1))
    return (bits >> 8).astype(mx.float32) * 2.0**-24
