"""One layer's cache of several arms: batch row b holds the rows that arm b keeps.

All arms get the same token at the same position and keep equally many rows. So rows are stored,
ranked, chosen and copied once for the whole batch; only scores and statistics are an arm's own.
"""

from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from .cache import KEYS, POSITIONS, RANKS, EvictingKVCache
from .methods import Layer, Method
from .methods.observing import Attention
from .observing_cache import ObservingKVCache
from .select import rank

WIDE = POSITIONS + 1


class LayerArm(NamedTuple):
    """One arm in one layer: the method, what it may know of the layer, and the rows it protects."""

    method: Method
    layer: Layer
    sinks: int
    recent: int


def order(method: Method) -> tuple[bool, int]:
    """Sort key of the arms of a batch: scores that stay, statistics, wide statistics."""
    return method.needs_queries, len(getattr(method, "statistic_shape", ()))


def arm_of(cache, b: int):
    """Arm b's part of a cache; a cache that is no arm's is returned as it is."""
    return cache.alone(b) if isinstance(cache, ArmsKVCache) else cache


class ArmsKVCache(ObservingKVCache):
    """As the caches of the single arms, with their scores or statistics side by side.

    A buffer of float32 `[B, H_kv, S]` holds one number per row for all arms. Arms whose statistic
    is wider are the last ones and have a buffer `[W, H_kv, S, width]` besides.

    Args:
        arms: sorted by `order`; batch row b belongs to arm b.
        budget: rows kept per KV head, the same for all arms.
    """

    def __init__(self, arms: list[LayerArm], budget: int):
        sinks, recent = (
            mx.array([arm[i] for arm in arms], dtype=mx.int32)[:, None, None] for i in (2, 3)
        )
        super().__init__(arms[-1].method, arms[-1].layer, budget, sinks, recent)
        self.arms = arms
        self._learned = [None] * len(arms)
        self._fixed = sum(not arm.method.needs_queries for arm in arms)
        self._widths = [w for arm in arms for w in getattr(arm.method, "statistic_shape", ())]
        self._first_wide = len(arms) - len(self._widths)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As in the base, with one batch row per arm; without arms that watch, evict at once."""
        self._learned = list(self._learned)
        rows = super().update_and_fetch(keys, values)
        if not self._watching:
            self._judge(None, *rows, None, None, None)
        return rows

    def observe(self, queries, keys, values, *, scale, mask, sinks):
        """As in the base; every arm that watches sees its own batch row."""
        # Others may have installed the tap.
        return self._judge(queries, keys, values, scale, mask, sinks) if self._watching else []

    @property
    def _watching(self):
        return self._fixed < len(self.arms)

    def _judge(self, queries, keys, values, scale, mask, sinks):
        (rows, stored, slot), self._waiting = self._waiting, None
        narrow, wide = [self._once_scored(rows)], []
        scores = list(narrow)
        for b in range(self._fixed, len(self.arms)):
            method, layer, *_ = self.arms[b]
            own = [_row(x, b) for x in (queries, keys, values, mask, rows[POSITIONS], slot)]
            seen = Attention(*own[:3], scale, own[3], sinks, *own[4:], self.offset)
            statistic = self._statistic(rows, b)
            statistic, self._learned[b] = method.watch(statistic, seen, self._learned[b], layer)
            if b < self._first_wide:
                narrow.append(statistic)
            else:
                narrow.append(rows[RANKS][b : b + 1])
                wide.append(_padded(statistic, max(self._widths)))
            if self.offset > self.budget:
                scores.append(method.rank_by(statistic, seen.positions, self.offset))
        if len(narrow) > 1 or narrow[0] is not rows[RANKS]:
            self._update(rows, RANKS, narrow, stored)
        if wide:
            self._update(rows, WIDE, wide, stored)
        if self.offset > self.budget:
            self._evict(rows, rank(_joined(scores)), stored)
        made = (rows[RANKS], rows[WIDE:], self._learned)
        return [x for _, x in tree_flatten(made) if isinstance(x, mx.array)]

    def alone(self, b: int) -> EvictingKVCache:
        """Arm b's part as the cache that it would have by itself, which it can go on with."""
        method, layer, sinks, recent = self.arms[b]
        cls = ObservingKVCache if method.needs_queries else EvictingKVCache
        made = cls(method, layer, self.budget, sinks, recent)
        buffers, victim, learned, nan_rows, *counters = self.state
        if buffers is not None:
            statistic = self._statistic(buffers, b)
            if not method.needs_queries:
                statistic = rank(statistic)
            one = slice(b, b + 1)
            buffers = [x[one] for x in buffers[:RANKS]] + [statistic, buffers[POSITIONS][one]]
        victim, nan_rows = (None if x is None else x[b : b + 1] for x in (victim, nan_rows))
        made.state = (buffers, victim, learned[b], nan_rows, *counters)
        return made

    def _fresh(self, keys, positions):
        scores, (_, heads, count, _) = [], keys.shape
        for b, (method, layer, *_) in enumerate(self.arms[: self._fixed]):
            own = keys[b : b + 1]
            if method.learns_always:
                self._learned[b] = method.learn(own, self._learned[b])
            unknown = method.learn_after is not None and self._learned[b] is None
            made = None if unknown else method.score(own, positions, layer, self._learned[b])
            scores.append(mx.zeros((1, heads, count)) if unknown else made)
        if self._watching:
            scores.append(mx.zeros((len(self.arms) - self._fixed, heads, count)))
        fresh = [_joined(scores), positions]
        if self._widths:
            fresh.append(mx.zeros((len(self._widths), heads, count, max(self._widths))))
        return fresh

    def _once_scored(self, rows):
        """Scores of all rows under arms that score once; some learn from all rows before.

        Without arms that watch this is the buffer itself, unless some learned.
        """
        scores = rows[RANKS][: self._fixed] if self._watching else rows[RANKS]
        for b, (method, layer, *_) in enumerate(self.arms[: self._fixed]):
            if self._learns_now(method, self._learned[b]):
                keys = rows[KEYS][b : b + 1]
                self._learned[b] = method.learn(keys, None)
                made = method.score(keys, rows[POSITIONS][0, 0], layer, self._learned[b])
                scores = mx.concatenate([scores[:b], made, scores[b + 1 :]])
        return scores

    def _statistic(self, rows, b):
        if b < self._first_wide:
            return rows[RANKS][b : b + 1]
        b -= self._first_wide
        return rows[WIDE][b : b + 1, ..., : self._widths[b]]

    def _update(self, rows, which, parts, stored):
        rows[which] = _joined(parts)
        if stored:
            self._store.write(which, rows[which])


def _row(x, b):
    """Batch row b of an array that has one per arm; anything else as it is."""
    batched = isinstance(x, mx.array) and x.ndim > 2 and x.shape[0] > 1
    return x[b : b + 1] if batched else x


def _joined(parts):
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _padded(statistic, width):
    missing = width - statistic.shape[-1]
    return mx.pad(statistic, [(0, 0)] * 3 + [(0, missing)]) if missing else statistic
