"""Buffers of cache rows: several arrays `[B, H_kv, S, ...]` that grow, shrink and change together.

The store knows slots. It does not know positions, scores or budgets.
"""

import mlx.core as mx

from .kernels import put_row, take_rows


class RowStore:
    """Parallel buffers whose first `count` slots hold rows.

    A buffer of fewer batch rows than the others belongs to the last ones.

    `in_order`: slots stand as `keep` left them, no row was put elsewhere since.

    Args:
        buffers: to start from; writing never reaches the arrays given.
        count: slots of `buffers` that hold rows.

    Appending writes into buffers that grow by `step` slots, as mlx-lm's `KVCache` does, so that a
    decoded token costs one row. MLX writes in place only while nothing else refers to a buffer:
    what `append` and `put` return must be dropped before the next call.
    """

    step = 256

    def __init__(self, buffers: list[mx.array] | None = None, count: int = 0):
        self.buffers = None if buffers is None else [x[...] for x in buffers]
        self.count = count
        self.in_order = False

    def append(self, new: list[mx.array], most: int | None = None) -> list[mx.array]:
        """Add rows after the last one and return all rows.

        Args:
            new: arrays `[B, H_kv, T, ...]`, one per buffer.
            most: buffers never grow beyond this many slots.
        """
        start, self.count = self.count, self.count + new[0].shape[2]
        if self.buffers is None or self.count > self.buffers[0].shape[2]:
            self._grow(new, start, most)
        for buffer, rows in zip(self.buffers, new, strict=True):
            buffer[:, :, start : self.count] = rows
        return self.rows()

    def _grow(self, new, start, most):
        slots = -(-self.count // self.step) * self.step
        slots = slots if most is None else min(slots, most)
        held = self.buffers or [None] * len(new)
        self.buffers = []
        for buffer, rows in zip(held, new, strict=True):
            grown = mx.zeros((*rows.shape[:2], slots - start, *rows.shape[3:]), rows.dtype)
            if start:
                grown = mx.concatenate([buffer[:, :, :start], grown], axis=2)
            self.buffers.append(grown)

    def rows(self) -> list[mx.array]:
        """The first `count` slots of every buffer; no copies."""
        return [buffer[:, :, : self.count] for buffer in self.buffers]

    def put(self, slot: mx.array, new: list[mx.array]) -> list[mx.array]:
        """Write one row per head into `slot`, int32 `[B, H_kv, 1]`, and return all rows."""
        self.in_order = False
        slots = {3: slot, 4: slot[..., None]}
        self.buffers = [
            put_row(x, _of(x, slots[x.ndim]), row) for x, row in zip(self.buffers, new, strict=True)
        ]
        return list(self.buffers)

    def write(self, which: int, rows: mx.array) -> None:
        """Replace all rows of one buffer, `[B, H_kv, count, ...]`."""
        self.buffers[which][:, :, : self.count] = rows

    def take(self, index: mx.array) -> list[mx.array]:
        """Copies of the rows in slots `index`, int32 `[B, H_kv, K]`."""
        return [take_rows(x, _of(x, index)) for x in self.buffers]

    def keep(self, rows: list[mx.array]) -> None:
        """Hold these rows from now on, and no others."""
        self.buffers = list(rows)
        self.count = rows[0].shape[2]
        self.in_order = True

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(x.nbytes for x in self.buffers or ())


def _of(buffer, index):
    """The part of an index that a buffer's batch rows have."""
    count = buffer.shape[0]
    return index if index.shape[0] == count else index[-count:]
