"""Hindsight: the attention each position of a text receives from later ones in the dense model."""

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .feeding import feed
from .methods.observing import Attention
from .plan import evicting_layers, make_model_cache
from .tap import tapped


class _Received(KVCache):
    """A plain cache that adds up, per row, the attention of queries at later positions.

    Queries before position `since` are left out.
    """

    def __init__(self, since: int):
        super().__init__()
        self.since, self.mass = since, None

    def observe(self, queries, keys, values, *, scale, mask, sinks):
        """Add this chunk's attention, each query's to its own row left out."""
        rows = keys.shape[2]
        start = mx.zeros(keys.shape[:3])
        if self.mass is not None:
            start[:, :, : self.mass.shape[2]] = self.mass
        self.mass = start
        count = min(queries.shape[2], rows - self.since)
        if count <= 0:
            return []
        seen = Attention(queries, keys, values, scale, mask, sinks, None, None, rows).last(count)
        self.mass = seen.received(start)
        return self.statistics

    @property
    def statistics(self) -> list[mx.array]:
        """All arrays that are kept besides the rows."""
        return [self.mass]


def future_attention(
    model, tokens: list[int], step_size: int | None = None, *, since: int = 0
) -> dict:
    """Attention each position receives from later ones, summed over queries and the group.

    Args:
        model: an mlx-lm model; runs densely, with plain caches.
        tokens: the whole text.
        step_size: tokens per forward pass; None means the platform's default.
        since: position of the first query that counts.

    Returns:
        By layer index: float32 `[H_kv, N]`, for the layers whose queries can be observed.
    """
    caches = make_model_cache(model)
    plans = evicting_layers(model, need_queries=True, what="oracle")
    for plan in plans:
        caches[plan.index] = _Received(since)
    with tapped(model):
        feed(model, caches, tokens, step_size)
    return {p.index: caches[p.index].mass[0] for p in plans}
