"""Which rows of a KV cache survive. The one total order of rows, and the two questions asked of it.

The order, from best to worst: protected rows; then the score, NaN below -inf and -0 equal to +0;
among equals the lower position. It is computed on int32 *ranks* because float minima and partial
sorts treat NaN and a protected +inf differently from one another and between back ends.

Everything here is pure and works per batch row and KV head. Nothing here knows what a score means.
"""

import mlx.core as mx

RANK_PROTECTED = 2**31 - 1
RANK_NAN = -(2**31)
_INFINITY = 0x7F800000  # the bits of +inf; those of a NaN, without its sign, are above


def rank(scores: mx.array) -> mx.array:
    """Map float32 scores to int32 ranks in the same order: NaN lowest, -0 equal to +0.

    Args:
        scores: float32 `[...]`.

    Returns:
        int32 `[...]`, at most the rank of +inf, which is below `RANK_PROTECTED`.
    """
    bits = scores.view(mx.int32)
    ordered = bits ^ ((bits >> 31) & RANK_PROTECTED)
    # -0 alone comes out as -1.
    ordered = mx.where(ordered == -1, 0, ordered)
    return mx.where((bits & RANK_PROTECTED) > _INFINITY, RANK_NAN, ordered)


def protect(ranks: mx.array, positions: mx.array, sinks: int, limit: int) -> mx.array:
    """Lift the protected rows above everything.

    Args:
        ranks: int32 `[B, H_kv, S]`.
        positions: int32 `[B, H_kv, S]` or broadcastable: true position of each row.
        sinks: positions below this are protected.
        limit: positions from this on are protected (tokens seen - recent).
    """
    free = (positions >= sinks) & (positions < limit)
    return mx.where(free, ranks, RANK_PROTECTED)


def survivors(ranks: mx.array, budget: int) -> mx.array:
    """The indices of the `budget` best rows, in ascending order.

    Rows must be in temporal order, so that "lower index" is "lower position". A partition finds
    the rank at the edge; rows above it stay, and rows equal to it from the left while room is left.

    Args:
        ranks: int32 `[B, H_kv, S]` with S > budget.
        budget: rows to keep, >= 1.

    Returns:
        int32 `[B, H_kv, budget]`.
    """
    size = ranks.shape[-1]
    edge = mx.partition(ranks, size - budget, axis=-1)[..., size - budget : size - budget + 1]
    above = ranks > edge
    room = budget - above.sum(axis=-1, keepdims=True)
    equal = ranks == edge
    keep = above | (equal & (mx.cumsum(equal, axis=-1) <= room))
    # Slot 0 takes whatever does not stay.
    slot = mx.cumsum(keep, axis=-1) * keep
    index = mx.broadcast_to(mx.arange(size, dtype=mx.int32), ranks.shape)
    kept = mx.zeros((*ranks.shape[:-1], budget + 1), dtype=mx.int32)
    return mx.put_along_axis(kept, slot, index, axis=-1)[..., 1:]


def victim(ranks: mx.array, positions: mx.array) -> mx.array:
    """The worst row: lowest rank, among equals the highest position. Rows in any order.

    Args:
        ranks: int32 `[B, H_kv, S]`, protected rows already lifted.
        positions: int32 `[B, H_kv, S]`.

    Returns:
        int32 `[B, H_kv, 1]`, the index of the row.
    """
    worst = ranks == ranks.min(axis=-1, keepdims=True)
    return mx.argmax(mx.where(worst, positions, -1), axis=-1, keepdims=True).astype(mx.int32)


# For every decoded token: the rank of its row and who goes next, in one call and few operations.


@mx.compile
def rank_row(scores: mx.array) -> mx.array:
    """`rank`, compiled for shapes that come again and again."""
    return rank(scores)


@mx.compile
def next_victim(ranks: mx.array, positions: mx.array, sinks: mx.array, limit: mx.array) -> mx.array:
    """`victim` of the rows that `protect` leaves free; `sinks` and `limit` are int32 arrays."""
    lifted = protect(ranks, positions, sinks, limit)
    # Among equal ranks the highest position comes first; all of it fits into 64 bits.
    order = lifted.astype(mx.int64) * 2**32 + (2**31 - 1 - positions)
    return mx.argmin(order, axis=-1, keepdims=True).view(mx.int32)
