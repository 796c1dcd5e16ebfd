"""Caches of many arms that answer together, one per batch row."""

import copy

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.base import create_causal_mask

from .rows import RowStore


class ForkedKVCache:
    """Rows of several arms, one per batch row, that grow and are not evicted again.

    `offset` starts at the length of the context and counts tokens; the rows held are fewer. Arms
    with fewer rows than others are padded in front, and nothing attends to padding.

    Args:
        arms: keys and values, `[1, H_kv, rows, D]` each, of every arm.
        offset: tokens seen.
    """

    def __init__(self, arms: list[list[mx.array]], offset: int):
        held = [keys.shape[2] for keys, _ in arms]
        most = max(held)
        rows = [
            mx.concatenate([_padded(x, most) for x in of], axis=0) for of in zip(*arms, strict=True)
        ]
        self._store = RowStore(rows, most)
        self._padding = None if min(held) == most else mx.array([most - n for n in held])
        self.offset = offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows `[B, H_kv, T, .]` and return all."""
        self.offset += keys.shape[2]
        return tuple(self._store.append([keys, values]))

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None):
        """The mask over rows held and N new tokens; a window has no meaning over kept rows."""
        if self._padding is not None:
            return create_causal_mask(N, self._store.count, left_padding=self._padding)
        if N == 1:
            return None
        return create_causal_mask(N, self._store.count) if return_array else "causal"

    @property
    def state(self):
        """The arrays held, the rows and the tokens seen."""
        return self._store.buffers, self._padding, self._store.count, self.offset

    @state.setter
    def state(self, state):
        buffers, self._padding, count, self.offset = state
        self._store = RowStore(buffers, count)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        return self._store.nbytes

    def is_trimmable(self) -> bool:
        """False: rows of the context cannot be rewound."""
        return False

    def empty(self) -> bool:
        """False: the context is there."""
        return False

    def size(self) -> int:
        """Rows held per KV head."""
        return self._store.count


def _padded(rows, most):
    missing = most - rows.shape[2]
    return mx.pad(rows, [(0, 0), (0, 0), (missing, 0), (0, 0)]) if missing else rows


def batch_rows(caches: list, rows: list[int]) -> list:
    """The same caches with these rows of their batch, in this order; nothing is shared."""
    return [None if cache is None else _rows_of(cache, rows) for cache in caches]


def _rows_of(cache, rows):
    index = mx.array(rows)

    def take(x):
        return x[index] if isinstance(x, mx.array) and x.ndim else x

    made = copy.copy(cache)
    made.state = tree_map(take, cache.state)
    return made
