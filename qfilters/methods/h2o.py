"""h2o: heavy hitters, the rows that received the most attention so far."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer
from .observing import Attention, Observing


@dataclass(frozen=True)
class H2O(Observing):
    """Score = attention mass received so far, summed over queries and the GQA group.

    `s_j = sum_{i >= j} sum_g a_{g,i,j}` (arXiv 2306.14048), float32, updated with every query,
    whether its row is still there or not. The paper protects half the budget as recent rows; here
    `recent` says how many. Per KV head; kvpress's "observed attention" is another method, it
    divides by the number of queries that can see j. `after_prefill`: the sum over the dense
    prefill. Cost per step: one more softmax over the stored rows. Path-dependent in `stream`,
    because later queries attend to what was kept.
    """

    name: ClassVar[str] = "h2o"
    family: ClassVar[str] = "attention"
    paper: ClassVar[str] = "2306.14048"
    cost: ClassVar[str] = "one softmax over the rows held"
    path_independent: ClassVar[bool] = False

    def watch(self, statistic: mx.array, seen: Attention, carry, layer: Layer):
        """Add the call's attention, summed over its queries `[B, H_kv, G, t, S]` and the group."""
        return seen.fold(lambda total, a, _: total + a.sum(axis=(2, 3)), statistic), carry
