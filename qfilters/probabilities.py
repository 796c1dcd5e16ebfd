"""Attention probabilities of true queries, block by block in float32, under a bound on memory.

The same softmax that attention computes, with its mask and learned sinks; nothing here knows
caches or methods.
"""

from collections.abc import Callable

import mlx.core as mx

# Float32 bytes of one block's logits (three arrays of that size are alive at once), and of the keys
# that are cast for it.
LOGIT_BYTES = 8 * 2**20
KEY_BYTES = 2 * 2**20


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
    count, kv_heads, rows = queries.shape[2], keys.shape[1], keys.shape[2]
    mask = _block_mask(_grouped(mask, kv_heads), slice(0, kv_heads), slice(0, count), count, rows)
    return _softmax(queries, keys.astype(mx.float32), scale, mask, sinks)


def spans(total: int, size: int) -> list[slice]:
    """Cut 0 .. total into slices of `size`, at least 1; the last may be shorter."""
    size = max(1, size)
    return [slice(first, min(first + size, total)) for first in range(0, total, size)]


def fold(queries, keys, scale, mask, sinks, step: Callable, start: mx.array) -> mx.array:
    """Fold `step(total, block, first)` over the queries, one block of probabilities at a time.

    Blocks are chained: each waits for the one before, so that MLX cannot hold several at once.

    Args:
        queries, keys, scale, mask, sinks: as `probabilities`.
        step: takes the total of some KV heads, their `[B, h, G, t, S]` and the index of the block's
            first query, and returns the new total.
        start: the first total, `[B, H_kv, ...]`.

    Returns:
        The last total of all KV heads.
    """
    batch, heads, count, size = queries.shape
    kv_heads, rows = keys.shape[1], keys.shape[2]
    group, mask, totals = heads // kv_heads, _grouped(mask, kv_heads), []
    for some in spans(kv_heads, KEY_BYTES // (4 * batch * rows * size)):
        theirs = slice(some.start * group, some.stop * group)
        learned = None if sinks is None else sinks[theirs]
        part = mx.depends(keys[:, some], totals[-1:]) if totals else keys[:, some]
        part, total = part.astype(mx.float32), start[:, some]
        per_query = 4 * batch * (theirs.stop - theirs.start) * rows
        for asking in spans(count, LOGIT_BYTES // per_query):
            block = queries[:, theirs, asking]
            if asking.start:
                block = mx.depends(block, total)
            seen = _block_mask(mask, some, asking, count, rows)
            total = step(total, _softmax(block, part, scale, seen, learned), asking.start)
        totals.append(total)
    return totals[0] if len(totals) == 1 else mx.concatenate(totals, axis=1)


def _softmax(queries, keys, scale, mask, sinks):
    """As `probabilities`, with keys in float32 and a mask that broadcasts to the answer."""
    batch, _, count, size = queries.shape
    kv_heads = keys.shape[1]
    # One product per KV head: a group that is broadcast over keys would copy them.
    grouped = queries.astype(mx.float32).reshape(batch, kv_heads, -1, size) * scale
    logits = (grouped @ keys.swapaxes(-1, -2)).reshape(batch, kv_heads, -1, count, keys.shape[2])
    if mask is not None and mask.dtype == mx.bool_:
        logits = mx.where(mask, logits, mx.array(-mx.inf, mx.float32))
    elif mask is not None:
        logits = logits + mask.astype(mx.float32)
    if sinks is None:
        return mx.softmax(logits, axis=-1)
    learned = sinks.astype(mx.float32).reshape(1, kv_heads, -1, 1, 1)
    learned = mx.broadcast_to(learned, (*logits.shape[:-1], 1))
    return mx.softmax(mx.concatenate([logits, learned], axis=-1), axis=-1)[..., :-1]


def _grouped(mask, kv_heads):
    """A mask for `[B, H, T, S]` as one for `[B, H_kv, G, T, S]`."""
    if not isinstance(mask, mx.array) or mask.ndim < 3:
        return mask
    if mask.shape[-3] == 1:
        return mx.expand_dims(mask, -3)
    return mask.reshape(*mask.shape[:-3], kv_heads, -1, *mask.shape[-2:])


def _block_mask(mask, heads, asking, count, rows):
    """What a grouped mask says of some KV heads and some of the `count` queries."""
    if isinstance(mask, str):
        own = mx.arange(rows - count + asking.start, rows - count + asking.stop)
        return mx.arange(rows) <= own[:, None]
    if mask is not None and mask.ndim > 3 and mask.shape[-4] > 1:
        mask = mask[..., heads, :, :, :]
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        mask = mask[..., asking, :]
    return mask
