"""The evicting cache of methods that watch attention: store, wait for the tap, then evict."""

import mlx.core as mx
from mlx.utils import tree_flatten

from .cache import KEYS, POSITIONS, RANKS, VALUES, EvictingKVCache
from .errors import QFiltersError
from .methods.observing import Attention
from .select import rank


class ObservingKVCache(EvictingKVCache):
    """As `EvictingKVCache`, with the method's statistic of every row where the others keep ranks.

    `update_and_fetch` places the rows; the tap then calls `observe` with the attention just paid,
    which updates the statistic and evicts. A call without an observation since the last one is an
    error: the statistic would miss it.
    """

    def __init__(self, method, layer, budget: int, sinks: int, recent: int):
        super().__init__(method, layer, budget, sinks, recent)
        self._waiting = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As in the base; the rows are judged when attention over them has been observed."""
        if self._waiting is not None:
            raise QFiltersError(
                f"method {self.method.name} saw no attention over the last tokens of layer "
                f"{self.layer.index}: its model must call mlx-lm's attention function, and the "
                "tap that make_prompt_cache installed must stay"
            )
        start = self._count(keys)
        positions = self._new_positions(start)
        slot = None
        if keys.shape[2] == 1:
            end = mx.full((*keys.shape[:2], 1), start, dtype=mx.int32)
            slot = end if self._victim is None else self._victim
        rows, stored = self._place([keys, values, *self._fresh(keys, positions)])
        self._waiting = rows, stored, slot
        return rows[KEYS], rows[VALUES]

    def _fresh(self, keys, positions):
        """What is kept of new rows beside their keys and values."""
        shape = (*keys.shape[:3], *self.method.statistic_shape)
        return mx.zeros(shape, dtype=mx.float32), positions

    def observe(self, queries, keys, values, *, scale, mask, sinks):
        """Update the statistic with one attention call, and evict down to the budget.

        Returns:
            What the output of attention must wait for.
        """
        (rows, stored, slot), self._waiting = self._waiting, None
        positions = rows[POSITIONS]
        seen = Attention(queries, keys, values, scale, mask, sinks, positions, slot, self.offset)
        watched = self.method.watch(rows[RANKS], seen, self._learned, self.layer)
        rows[RANKS], self._learned = watched
        if stored:
            self._store.write(RANKS, rows[RANKS])
        if self.offset > self.budget:
            ranks = rank(self.method.rank_by(rows[RANKS], positions, self.offset))
            self._evict(rows, ranks, stored)
        return [x for _, x in tree_flatten(watched) if isinstance(x, mx.array)]
