"""tova: the row that the newest query attends to least goes."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer
from .observing import Attention, Observing


@dataclass(frozen=True)
class TOVA(Observing):
    """Score = attention of the last query, averaged over all heads: one kept set for the layer.

    arXiv 2401.06104. The softmax includes the query's own row, which is always kept (as in
    kvpress; the official code does not protect it, no effect seen). The same rows stay in every KV
    head. `after_prefill`: the last query of the prefill. Cost per step: one more softmax of one
    query. Path-dependent.
    """

    name: ClassVar[str] = "tova"
    family: ClassVar[str] = "attention"
    paper: ClassVar[str] = "2401.06104"
    cost: ClassVar[str] = "one softmax over the rows held"
    path_independent: ClassVar[bool] = False

    @property
    def window(self) -> int:
        """The last query's own row."""
        return 1

    def watch(self, statistic: mx.array, seen: Attention, carry, layer: Layer):
        """Replace the statistic by the last query's attention, mean over groups and KV heads."""
        start = mx.zeros_like(statistic)
        last = seen.last(1).fold(lambda total, a, _: total + a.mean(axis=(2, 3)), start)
        mean = last.mean(axis=1, keepdims=True)
        return mx.broadcast_to(mean, statistic.shape), carry
