"""Methods that watch attention: a statistic per row, updated after each attention call."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import mlx.core as mx

from ..probabilities import fold
from .base import Layer, Method


class Attention(NamedTuple):
    """One attention call of a layer, as the tap hands it over.

    queries `[B, H, T, D]`; keys and values `[B, H_kv, S, .]`: rows held before, then the new ones.
    `slot`: int32 `[B, H_kv, 1]` where the one new row of a decode step stands instead, else None.
    positions: int32 `[B, H_kv, S]`; `end`: tokens seen, these included.
    """

    queries: mx.array
    keys: mx.array
    values: mx.array
    scale: float
    mask: mx.array | str | None
    sinks: mx.array | None
    positions: mx.array
    slot: mx.array | None
    end: int

    def fold(self, step, start: mx.array) -> mx.array:
        """`probabilities.fold` over all queries of the call."""
        return fold(self.queries, self.keys, self.scale, self.mask, self.sinks, step, start)

    def received(self, total: mx.array) -> mx.array:
        """`total`, float32 `[B, H_kv, S]`, and the attention that every row gets in this call.

        Summed over queries and the group; what a query pays to its own row is left out. Rows must
        stand in temporal order, those of the queries last.
        """
        rows = self.keys.shape[2]
        before = rows - self.queries.shape[2]

        def step(total, block, first):
            asking = mx.arange(block.shape[3])[:, None] + (before + first)
            return total + (block * (mx.arange(rows) < asking)).sum(axis=(2, 3))

        return self.fold(step, total)

    def last(self, count: int) -> "Attention":
        """The call as its last `count` queries see it."""
        total = self.queries.shape[2]
        if count >= total:
            return self
        mask = self.mask
        if isinstance(mask, mx.array) and mask.shape[-2] != 1:
            mask = mask[..., total - count :, :]
        return self._replace(queries=self.queries[:, :, total - count :], mask=mask)


@dataclass(frozen=True)
class Observing(Method):
    """Base of the methods that need true queries.

    The statistic is one array `[B, H_kv, S, *statistic_shape]` beside the rows, zeros for new ones;
    rows that are evicted take theirs along. Rows stand in temporal order, except in a decode step.
    """

    needs_queries: ClassVar[bool] = True

    @property
    def statistic_shape(self) -> tuple[int, ...]:
        """Trailing axes of the statistic; none for one number per row."""
        return ()

    def watch(self, statistic: mx.array, seen: Attention, carry, layer: Layer):
        """Take note of an attention call.

        Args:
            statistic: float32 `[B, H_kv, S, ...]` for all rows of `seen.keys`.
            seen: the call.
            carry: what this method keeps per layer besides; None at first.
            layer: what is known of the layer.

        Returns:
            The new statistic and the new carry.
        """
        raise NotImplementedError

    def rank_by(self, statistic: mx.array, positions: mx.array, end: int) -> mx.array:
        """The score of every row: float32 `[B, H_kv, S]`, higher = keep.

        Args:
            statistic: `[B, H_kv, S, ...]`.
            positions: int32 `[B, H_kv, S]`.
            end: tokens seen.
        """
        return statistic
