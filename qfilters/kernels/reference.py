"""The kernels' definitions in plain MLX: score rows, copy rows, write one row. fp32 accumulation.

A row's score must not depend on the rows beside it, or the kept set would depend on how a prompt
was cut into chunks. So a score is a per-row multiply and sum, never one matrix product over rows.
"""

import mlx.core as mx


def project(keys: mx.array, directions: mx.array) -> mx.array:
    """Project every key on its head's direction.

    Args:
        keys: `[B, H_kv, S, D]`, any floating dtype.
        directions: float32 `[H_kv, D]` or `[B, H_kv, D]`.

    Returns:
        float32 `[B, H_kv, S]`.
    """
    return (keys.astype(mx.float32) * directions[..., None, :]).sum(axis=-1)


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
        slot: int32 `[B, H_kv, 1]`.
        row: `[B, H_kv, 1, D]` or `[B, H_kv, 1]`, cast to the dtype of `x`.
    """
    at = slot.reshape(*slot.shape, *([1] * (x.ndim - 3)))
    return mx.put_along_axis(x, at, row.astype(x.dtype), axis=2)
