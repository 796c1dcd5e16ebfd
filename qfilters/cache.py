"""The evicting KV cache: mlx-lm's cache protocol with a budget. Attend first, then evict.

`update_and_fetch` returns the stored rows and all new rows; eviction changes only what is stored
for the next call. `offset` counts tokens seen, and survivors keep the rotation they were stored
with. It subclasses nothing of mlx-lm: `merge`, `to_quantized` and the like, once inherited, would
silently turn eviction off.
"""

import warnings

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_causal_mask

from .errors import QFiltersWarning
from .kernels import Fused, kernel_name, reference, take_rows
from .methods import Layer, Method
from .rows import RowStore
from .select import RANK_NAN, next_victim, rank, rank_row

KEYS, VALUES, RANKS, POSITIONS = range(4)


class EvictingKVCache:
    """One layer's cache, at most `budget` rows per KV head after every call.

    Until the budget is exceeded rows stand in temporal order. From the first eviction on there are
    `budget + 1` slots: the one named by `victim` is free and takes the next token in place, so
    slots are in no order. A later chunk of several tokens restores it.

    Args:
        method: scores the rows; one that does not evict makes this a plain cache.
        layer: what the method may know of the layer; shared by copies.
        budget: rows kept per KV head, sinks and recent included.
        sinks: first positions that are never evicted.
        recent: last positions that are never evicted.
        kernels: fused kernels to choose and copy rows with; None means the reference.
    """

    def __init__(
        self,
        method: Method,
        layer: Layer,
        budget: int,
        sinks: int,
        recent: int,
        kernels: Fused | None = None,
    ):
        self.method, self.layer = method, layer
        self.budget, self.sinks, self.recent = budget, sinks, recent
        self._sinks = mx.array(sinks, dtype=mx.int32)
        self.offset = 0
        self.peak_rows = 0
        self._kernels = kernels
        self._store = RowStore()
        self._victim = self._learned = self._nan_rows = None

    # What mlx-lm asks for.

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store new rows and return what attention reads: rows stored before and all new rows.

        Args:
            keys: `[B, H_kv, T, D]`, already rotated at `offset`.
            values: `[B, H_kv, T, D_v]`.

        Returns:
            keys `[B, H_kv, S + T, D]` and values `[B, H_kv, S + T, D_v]`. After the first eviction
            a single new row stands in the slot that was free, not at the end.
        """
        start = self._count(keys)
        if not self.method.evicts:
            rows = self._store.append([keys, values])
            return rows[KEYS], rows[VALUES]
        positions = self._new_positions(start)
        if self.method.learns_always:
            self._learned = self.method.learn(keys, self._learned)
        if self._kernels is not None and self._victim is not None and keys.shape[2] == 1:
            return self._replace(keys, values, positions)
        ranks = self._rank(keys, positions)
        rows, stored = self._place([keys, values, ranks, positions])
        if self._learns_now(self.method, self._learned):
            self._learned = self.method.learn(rows[KEYS], None)
            rows[RANKS] = self._rank(rows[KEYS], rows[POSITIONS][0, 0])
            if stored:
                self._store.write(RANKS, rows[RANKS])
        self._evict(rows, rows[RANKS], stored)
        return rows[KEYS], rows[VALUES]

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None):
        """The mask for N new tokens over the rows stored, as mlx-lm's caches answer it.

        "causal" is aligned to the lower right in MLX, which is right for stored rows followed by
        new ones. A sliding window is measured in true positions, per head.
        """
        if window_size is not None and self._victim is not None:
            return self._window_mask(N, window_size)
        if window_size is not None:
            return create_causal_mask(N, self.offset, window_size=window_size)
        if N == 1:
            return None
        return create_causal_mask(N, self.tokens_kept) if return_array else "causal"

    @property
    def state(self):
        """The arrays held and the counters, as they are: nothing is sorted or copied."""
        buffers = self._store.buffers and [x[...] for x in self._store.buffers]
        held = (self._victim, self._learned, self._nan_rows)
        return (buffers, *held, self._store.count, self.offset, self.peak_rows)

    @state.setter
    def state(self, state):
        buffers, self._victim, self._learned, self._nan_rows, count, *counters = state
        self._store = RowStore(buffers, count)
        self.offset, self.peak_rows = counters

    def is_trimmable(self) -> bool:
        """False for every method that evicts, from the start: mlx-lm asks only once."""
        return not self.method.evicts

    def trim(self, n: int) -> int:
        """Forget the last n tokens of a cache that never evicts; do nothing in any other."""
        n = min(self.offset, n) if self.is_trimmable() else 0
        self.offset -= n
        self._store.count -= n
        return n

    def empty(self) -> bool:
        """True before the first call."""
        return self.offset == 0

    def size(self) -> int:
        """Live rows per KV head."""
        return self.tokens_kept

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        held = [x for _, x in tree_flatten(self.state) if isinstance(x, mx.array)]
        return sum(x.nbytes for x in held)

    # What qfilters reports.

    @property
    def tokens_seen(self) -> int:
        """Tokens fed, the same as `offset`."""
        return self.offset

    @property
    def tokens_kept(self) -> int:
        """Live rows per KV head."""
        return min(self.offset, self.budget) if self.method.evicts else self.offset

    @property
    def positions(self) -> mx.array:
        """int32 `[B, H_kv, S]`: true positions of the live rows, in temporal order."""
        if self._victim is not None:
            return self._live_rows()[POSITIONS]
        heads = (1, self.layer.n_kv_heads) if self.empty() else self._store.buffers[KEYS].shape[:2]
        return mx.broadcast_to(mx.arange(self.offset, dtype=mx.int32), (*heads, self.offset))

    @property
    def kernel(self) -> str:
        """What chooses and copies rows: `metal`, `cuda` or `reference`."""
        return kernel_name(self._kernels)

    @property
    def nan_rows(self) -> int:
        """Rows with a NaN score met when chunks were selected, over all heads."""
        return 0 if self._nan_rows is None else self._nan_rows.sum().item()

    @property
    def row_bytes(self) -> int:
        """Bytes of K and V of one token, over batch and heads."""
        held = (self._store.buffers or [])[:RANKS]
        return sum(x.nbytes // x.shape[2] for x in held)

    # Ranking and evicting.

    def _count(self, keys):
        """Count new tokens; returns the position of the first."""
        start, count = self.offset, keys.shape[2]
        self.peak_rows = max(self.peak_rows, self.tokens_kept + count)
        self.offset += count
        self._note_trained_context(start)
        return start

    def _new_positions(self, start):
        if self.offset == start + 1:
            return mx.array([start], dtype=mx.int32)
        return mx.arange(start, self.offset, dtype=mx.int32)

    def _rank(self, keys, positions):
        if self.method.learn_after is not None and self._learned is None:
            return mx.zeros(keys.shape[:3], dtype=mx.int32)
        ranks = rank_row if keys.shape[2] == 1 else rank
        return ranks(self.method.score(keys, positions, self.layer, self._learned))

    def _learns_now(self, method, learned):
        after = method.learn_after
        if after is None or learned is not None:
            return False
        return self.offset >= after or self.offset > self.budget

    def _place(self, new):
        """All rows, stored ones and new, and whether the new ones are in the store already.

        They are, unless a chunk of several tokens exceeds the budget: then `_evict` stores.
        """
        if self._victim is not None and new[KEYS].shape[2] == 1:
            return self._store.put(self._victim, new), True
        new[POSITIONS] = mx.broadcast_to(new[POSITIONS], new[KEYS].shape[:3])
        if self._victim is None and self.offset <= self.budget + 1:
            return self._store.append(new, most=self.budget + 1), True
        if self._store.buffers is None:
            return new, False
        live = self._store.rows() if self._victim is None else self._live_rows()
        return [mx.concatenate(pair, axis=2) for pair in zip(live, new, strict=True)], False

    def _replace(self, keys, values, position):
        """With kernels: one token into the free slot, and the victim after it."""
        held = (*self._store.buffers[RANKS:], self._victim)
        now = (self.offset - 1, self.sinks, self.offset - self.recent)
        directions = self.method.directions(self.layer, self._learned)
        if directions is None:
            ranks = self._rank(keys, position)
            following = self._kernels.next_victim(ranks, *held, *now)
        else:
            ranks, following = self._kernels.replace(keys, directions, *held, *now)
        rows = self._store.put(self._victim, [keys, values, ranks, position])
        self._victim = following
        return rows[KEYS], rows[VALUES]

    def _evict(self, rows, ranks, stored):
        """Choose who goes, if rows exceed the budget.

        Args:
            rows: all rows, as `_place` returned them.
            ranks: int32 `[B, H_kv, S]` of these rows.
            stored: as `_place` returned it.
        """
        if self.offset <= self.budget:
            return
        counted = self._count_nan(ranks, stored)
        how = (rows[POSITIONS], self.sinks, self.offset - self.recent)
        if stored:
            limit = mx.array(how[-1], dtype=mx.int32)
            self._victim = next_victim(ranks, rows[POSITIONS], self._sinks, limit)
        else:
            # The last slot is free: its row is overwritten before anything reads it.
            path = self._kernels or reference
            kept = path.select(ranks, *how, self.budget, self.budget + 1)
            copies = path.compact(*rows[: POSITIONS + 1], kept)
            more = [take_rows(x, kept[-x.shape[0] :]) for x in rows[POSITIONS + 1 :]]
            self._store.keep([*copies, *more])
            self._victim = mx.full((*kept.shape[:2], 1), self.budget, dtype=mx.int32)
        if counted:
            # A decode loop evaluates the next token only, and the count would hold the ranks.
            self._victim = mx.depends(self._victim, self._nan_rows)

    def _count_nan(self, ranks, stored):
        """Count NaN scores of every batch row when a chunk is selected; whether that is now.

        In its new rows, the first time in all.
        """
        if self._victim is not None and stored:
            return False
        old = 0 if self._victim is None else self._nan_rows
        new = ranks if self._victim is None else ranks[:, :, self.budget :]
        self._nan_rows = old + (new == RANK_NAN).sum(axis=(1, 2))
        return True

    def _live_rows(self):
        """The live rows after an eviction, in temporal order."""
        if self._store.in_order:
            return [x[:, :, : self.budget] for x in self._store.buffers]
        last = mx.array(2**31 - 1, dtype=mx.int32)
        times = mx.put_along_axis(self._store.buffers[POSITIONS], self._victim, last, axis=-1)
        return self._store.take(mx.argsort(times, axis=-1)[..., : self.budget].astype(mx.int32))

    def _window_mask(self, N, window):
        """bool `[B, H, N, rows]` over the rows that `update_and_fetch` is going to return."""
        asked = mx.arange(self.offset, self.offset + N, dtype=mx.int32)
        if N == 1:
            held = mx.put_along_axis(self._store.buffers[POSITIONS], self._victim, asked, axis=-1)
        else:
            live = self.positions
            held = mx.concatenate([live, mx.broadcast_to(asked, (*live.shape[:2], N))], axis=-1)
        age = asked[:, None] - held[:, :, None, :]
        mask = (age >= 0) & (age < window)
        return mx.repeat(mask, (self.layer.n_heads or mask.shape[1]) // mask.shape[1], axis=1)

    def _note_trained_context(self, start):
        trained = self.layer.max_position
        if trained is not None and start <= trained < self.offset:
            text = (
                f"position {self.offset} is past the {trained} tokens the model was trained on: "
                "eviction bounds memory, it does not extend the context"
            )
            warnings.warn(text, QFiltersWarning, stacklevel=2)
