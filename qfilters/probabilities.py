"""Attention probabilities of true queries, block by block in float32, under a bound on memory.

The same softmax that attention computes, with its mask and learned sinks; nothing here knows
caches or methods.
"""

from collections.abc import Callable

import mlx.core as mx

# Float32 logits of one block, over all heads. Three arrays of that size are alive at once.
BLOCK_BYTES = 8 * 2**20


def probabilities(queries, keys, scale, mask=None, sinks=None) -> mx.array:
    """Softmax of `scale q . k` over the keys.

    Args:
        queries: `[B, H, T, D]`; keys: `[B, H_kv, S, D]`, any floating dtype.
        scale: of the logits.
        mask: None, "causal" (aligned to the lower right), bool (True = may attend) or additive,
            broadcastable to `[B, H, T, S]`.
        sinks: `[H]` learned logits that take part in the sum and have no key, or None.

    Returns:
        float32 `[B, H_kv, G, T, S]`, G = H / H_kv query heads per group.
    """
    batch, heads, count, size = queries.shape
    kv_heads, rows = keys.shape[1], keys.shape[2]
    grouped = queries.astype(mx.float32).reshape(batch, kv_heads, -1, count, size) * scale
    logits = grouped @ keys.astype(mx.float32)[:, :, None].swapaxes(-1, -2)
    mask = _array_mask(mask, count, rows)
    if mask is not None:
        mask = mx.broadcast_to(mask, (batch, heads, count, rows)).reshape(logits.shape)
        lowest = mx.array(-mx.inf, mx.float32)
        logits = mx.where(mask, logits, lowest) if mask.dtype == mx.bool_ else logits + mask
    if sinks is None:
        return mx.softmax(logits, axis=-1)
    learned = sinks.astype(mx.float32).reshape(1, kv_heads, -1, 1, 1)
    learned = mx.broadcast_to(learned, (*logits.shape[:-1], 1))
    return mx.softmax(mx.concatenate([logits, learned], axis=-1), axis=-1)[..., :-1]


def _array_mask(mask, count, rows):
    if not isinstance(mask, str):
        return mask
    if count == 1:
        return None
    return mx.arange(rows)[None] <= mx.arange(rows - count, rows)[:, None]


def fold(queries, keys, scale, mask, sinks, step: Callable, start: mx.array) -> mx.array:
    """Fold `step(total, block, first)` over the queries, one block of probabilities at a time.

    Blocks are chained: each waits for the total so far, so that MLX cannot hold several at once.

    Args:
        queries, keys, scale, mask, sinks: as `probabilities`.
        step: takes the total, `[B, H_kv, G, t, S]` and the index of the block's first query,
            returns the new total.
        start: the first total.
    """
    count, rows = queries.shape[2], keys.shape[2]
    per_query = 4 * queries.shape[0] * queries.shape[1] * rows
    block = max(1, BLOCK_BYTES // per_query)
    total = start
    for first in range(0, count, block):
        last = min(first + block, count)
        part = queries[:, :, first:last]
        if first:
            part = mx.depends(part, total)
        seen = _block_mask(mask, first, last, count, rows)
        total = step(total, probabilities(part, keys, scale, seen, sinks), first)
    return total


def _block_mask(mask, first, last, count, rows):
    if isinstance(mask, str):
        return (
            mx.arange(rows)[None] <= mx.arange(rows - count + first, rows - count + last)[:, None]
        )
    if mask is None or mask.shape[-2] == 1:
        return mask
    return mask[..., first:last, :]
