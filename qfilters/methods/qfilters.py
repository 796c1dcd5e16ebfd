"""qfilters: a key is worth its component along the drift of its head's queries."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, Method


@dataclass(frozen=True)
class QFilters(Method):
    """Score `k . filter`, filter = direction in which the head's queries drift (arXiv 2503.02812).

    keys `[B, H_kv, T, D]`, filters `[H_kv, D]` -> scores `[B, H_kv, T]`. Cost per step: one dot
    product per new row. Path-independent: a score never depends on other rows.
    """

    name: ClassVar[str] = "qfilters"
    family: ClassVar[str] = "projection"
    paper: ClassVar[str] = "2503.02812"
    cost: ClassVar[str] = "one dot product per new row"
    needs_filters: ClassVar[str | None] = "q_filters"

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """`[B, H_kv, T]`: projection on the layer's filters."""
        return layer.project(keys, layer.q_filters)

    def directions(self, layer: Layer, learned) -> mx.array:
        """The layer's filters."""
        return layer.q_filters
