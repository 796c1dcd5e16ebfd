"""snapkv: what the last queries look at, smoothed over neighbours."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, require
from .observing import Attention, Observing


@dataclass(frozen=True)
class SnapKV(Observing):
    """Score = mean attention of the last `window` queries, average-pooled over `pooling` rows.

    arXiv 2404.14469 as kvpress defines it: softmax over all rows, mean over the window's queries
    and the GQA group (the official code keeps one set per query head), the window's own rows left
    out and always kept, average pooling with zeros outside counted. In `stream` the window is the
    last queries seen, whatever the chunks were, and neighbours are rows held, in temporal order.
    `after_prefill`: the definition of the paper, with the window at the end of the context.
    Cost per step: one more softmax of one query, and a mean over the window. Path-dependent.

    Options:
        window: observed queries, >= 1.
        pooling: width of the average, odd.
    """

    name: ClassVar[str] = "snapkv"
    family: ClassVar[str] = "attention"
    paper: ClassVar[str] = "2404.14469"
    cost: ClassVar[str] = "one softmax over the rows held"
    path_independent: ClassVar[bool] = False

    window: int = 32
    pooling: int = 5

    def __post_init__(self):
        require(type(self.window) is int and self.window >= 1, "window", self.window, ">= 1")
        odd = type(self.pooling) is int and self.pooling >= 1 and self.pooling % 2 == 1
        require(odd, "pooling", self.pooling, "an odd number >= 1")

    @property
    def statistic_shape(self) -> tuple[int, ...]:
        """A ring of probabilities: column `i % window` holds the query at position i."""
        return (self.window,)

    def watch(self, statistic: mx.array, seen: Attention, carry, layer: Layer):
        """Write the last queries' probabilities, mean over the group, into their columns."""
        seen = seen.last(self.window)
        count = seen.queries.shape[2]

        def write(columns, a, first):
            columns[..., first : first + a.shape[3]] = a.mean(axis=2).swapaxes(2, 3)
            return columns

        columns = seen.fold(write, mx.zeros((*statistic.shape[:3], count)))
        which = mx.array([i % self.window for i in range(seen.end - count, seen.end)])
        statistic[..., which] = columns
        return statistic, carry

    def rank_by(self, statistic: mx.array, positions: mx.array, end: int) -> mx.array:
        """`[B, H_kv, S]`: mean over the ring, pooled over neighbours in time before the window."""
        before = positions < end - self.window
        seen = mx.where(before, statistic.mean(axis=-1), 0.0)
        order = mx.argsort(positions, axis=-1)
        reach, size = self.pooling // 2, seen.shape[-1]
        padded = mx.take_along_axis(seen, order, axis=-1)
        padded = mx.pad(padded, [(0, 0), (0, 0), (reach, reach)])
        pooled = sum(padded[..., i : i + size] for i in range(self.pooling)) / self.pooling
        return mx.put_along_axis(pooled, order, pooled, axis=-1)
