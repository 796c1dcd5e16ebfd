"""The kernels' definitions in plain MLX: score rows, choose and copy rows, write one row.

A row's score must not depend on the rows beside it, or the kept set would depend on how a prompt
was cut into chunks. So a score is a per-row multiply and sum, never one matrix product over rows.
"""

import mlx.core as mx

from ..select import protect, rank, survivors, victim


def project(keys: mx.array, directions: mx.array) -> mx.array:
    """Project every key on its head's direction.

    Args:
        keys: `[B, H_kv, S, D]`, any floating dtype.
        directions: float32 `[H_kv, D]` or `[B, H_kv, D]`.

    Returns:
        float32 `[B, H_kv, S]`.
    """
    # Directions are float32, and so is the product with keys of any type.
    return (keys * directions[..., None, :]).sum(axis=-1)


def take_rows(x: mx.array, index: mx.array) -> mx.array:
    """Copy rows per head: `out[b, h, i] = x[b, h, index[b, h, i]]`.

    Args:
        x: `[B, H_kv, S, ...]`, row-contiguous or not.
        index: int32 `[B, H_kv, K]`.

    Returns:
        `[B, H_kv, K, ...]`, dtype of `x`.
    """
    batch, heads, rows = x.shape[:3]
    first = mx.arange(batch * heads, dtype=mx.int32).reshape(batch, heads, 1) * rows
    return mx.take(x.reshape(batch * heads * rows, *x.shape[3:]), first + index, axis=0)


def put_row(x: mx.array, slot: mx.array, row: mx.array) -> mx.array:
    """Write one row per head, in place where MLX may donate the buffer.

    Args:
        x: `[B, H_kv, S, D]` or `[B, H_kv, S]`.
        slot: int32 `[B, H_kv, 1]`, or with as many axes as `x`.
        row: `[B, H_kv, 1, D]` or `[B, H_kv, 1]` or broadcastable, cast to the dtype of `x`.
    """
    if slot.ndim < x.ndim:
        slot = slot.reshape(*slot.shape, *([1] * (x.ndim - 3)))
    if row.dtype != x.dtype:
        row = row.astype(x.dtype)
    return mx.put_along_axis(x, slot, row, axis=2)


def select(
    ranks: mx.array, positions: mx.array, sinks: int, limit: int, budget: int, slots: int
) -> mx.array:
    """The indices of the rows that stay, ascending; slots beyond `budget` repeat the last one.

    Args:
        ranks, positions: int32 `[B, H_kv, S]` in temporal order, S > budget.
        sinks, limit: positions below `sinks` and from `limit` on are protected.
        budget: rows to keep, >= 1.
        slots: length of the answer, >= budget.

    Returns:
        int32 `[B, H_kv, slots]`.
    """
    kept = survivors(protect(ranks, positions, sinks, limit), budget)
    return mx.concatenate([kept, *[kept[..., -1:]] * (slots - budget)], axis=-1)


def compact(
    keys: mx.array, values: mx.array, ranks: mx.array, positions: mx.array, kept: mx.array
) -> list[mx.array]:
    """Copy the rows `kept`, int32 `[B, H_kv, K]`, of all four arrays `[B, H_kv, S, ...]`."""
    return [take_rows(x, kept) for x in (keys, values, ranks, positions)]


def next_victim(
    new_ranks: mx.array,
    ranks: mx.array,
    positions: mx.array,
    slot: mx.array,
    offset: int,
    sinks: int,
    limit: int,
) -> mx.array:
    """The row that goes after a new one took the free slot: lowest rank, then highest position.

    Args:
        new_ranks: int32 `[B, H_kv, 1]`, the rank of the new row.
        ranks, positions: int32 `[B, H_kv, S]` as they are before it is written.
        slot: int32 `[B, H_kv, 1]`, the free slot.
        offset: position of the new row.
        sinks, limit: as for `select`.

    Returns:
        int32 `[B, H_kv, 1]`.
    """
    ranks = put_row(ranks, slot, new_ranks)
    positions = put_row(positions, slot, mx.full(slot.shape, offset, dtype=mx.int32))
    return victim(protect(ranks, positions, sinks, limit), positions)


def replace(
    keys: mx.array,
    directions: mx.array,
    ranks: mx.array,
    positions: mx.array,
    slot: mx.array,
    offset: int,
    sinks: int,
    limit: int,
) -> tuple[mx.array, mx.array]:
    """Rank one new row per head, and name the row that goes after it.

    Args:
        keys: `[B, H_kv, 1, D]`, the new keys.
        directions: as for `project`.
        ranks, positions, slot, offset, sinks, limit: as for `next_victim`.

    Returns:
        The new ranks and the next victim, int32 `[B, H_kv, 1]` each.
    """
    new_ranks = rank(project(keys, directions))
    return new_ranks, next_victim(new_ranks, ranks, positions, slot, offset, sinks, limit)
