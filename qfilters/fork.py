"""One dense prefill, many evictions: mode `after_prefill`.

The context runs once through plain caches; every method then picks its rows from what that run
left behind. Forked caches hold one arm per batch row, keep counting from the context's length and
do not evict again. Nothing here knows tasks or text.
"""

import copy
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache

from .errors import UsageError
from .filters import Filters
from .future import future_attention
from .kernels import take_rows
from .methods import Layer, Method
from .methods.observing import Attention
from .plan import make_model_cache
from .platform import default_prefill_step_size
from .prompt_cache import check_room, make_layers, recent_rows
from .rows import RowStore
from .select import protect, rank, survivors
from .tap import tapped


class _Dense(KVCache):
    """A plain cache that keeps the statistics of several methods of one layer."""

    def __init__(self, layer: Layer, methods: list):
        super().__init__()
        self.layer = layer
        self.watched = {method: (None, None) for method in methods}

    def observe(self, queries, keys, values, *, scale, mask, sinks):
        shape = keys.shape[:3]
        positions = mx.broadcast_to(mx.arange(self.offset, dtype=mx.int32), shape)
        seen = Attention(queries, keys, values, scale, mask, sinks, positions, None, self.offset)
        for method, (statistic, carry) in self.watched.items():
            statistic = _padded(statistic, shape, method)
            self.watched[method] = method.watch(statistic, seen, carry, self.layer)
        return self.statistics

    @property
    def statistics(self) -> list[mx.array]:
        """All arrays that the methods keep."""
        return [x for _, x in tree_flatten(list(self.watched.values())) if isinstance(x, mx.array)]

    def scores(self, method: Method) -> mx.array:
        """float32 `[B, H_kv, N]` of all rows under one method."""
        keys = self.keys[:, :, : self.offset]
        positions = mx.arange(self.offset, dtype=mx.int32)
        if method in self.watched:
            statistic = self.watched[method][0]
            everywhere = mx.broadcast_to(positions, keys.shape[:3])
            return method.rank_by(statistic, everywhere, self.offset)
        learned = method.learn(keys, None) if method.learns_always or method.learn_after else None
        return method.score(keys, positions, self.layer, learned)


def _padded(statistic, shape, method):
    """The statistic with zero rows for the new tokens."""
    start = 0 if statistic is None else statistic.shape[2]
    fresh = mx.zeros((*shape[:2], shape[2] - start, *method.statistic_shape), dtype=mx.float32)
    return fresh if statistic is None else mx.concatenate([statistic, fresh], axis=2)


class ForkedKVCache:
    """Rows of several arms, one per batch row, that grow and are not evicted again.

    `offset` starts at the length of the context and counts tokens; the rows held are fewer.
    """

    def __init__(self, rows: list[mx.array], offset: int):
        self._store = RowStore(rows, rows[0].shape[2])
        self.offset = offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows `[B, H_kv, T, .]` and return all."""
        self.offset += keys.shape[2]
        return tuple(self._store.append([keys, values]))

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None):
        """The mask over rows held and N new tokens; a window has no meaning over kept rows."""
        if N == 1:
            return None
        return create_causal_mask(N, self._store.count) if return_array else "causal"

    @property
    def state(self):
        """The arrays held, the rows and the tokens seen."""
        return self._store.buffers, self._store.count, self.offset

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


@dataclass(frozen=True)
class Arm:
    """One method at one budget. `budget` None keeps everything."""

    method: Method
    budget: int | None
    sinks: int = 4
    recent: int | None = None

    def layers(self, count: int, length: int | None = None) -> list[tuple[int | None, int, int]]:
        """Rows, sinks and recent rows of every layer that evicts; None keeps all rows.

        Args:
            count: layers that evict.
            length: tokens of the context; None in `stream`, where it is not known.

        Raises:
            UsageError: the budget leaves no room beside the protected rows.
        """
        if self.budget is None or not self.method.evicts:
            return [(None, 0, 0)] * count
        sinks = self.method.sinks_of(self.sinks)
        check_room(self.method, self.budget, sinks, self.recent)
        budgets = [self.budget] * count
        if hasattr(self.method, "layer_budgets"):
            budgets = self.method.layer_budgets(self.budget, count, sinks, length)
        return [(n, sinks, recent_rows(self.method, n, sinks, self.recent)) for n in budgets]


class Prefill:
    """What a dense run over a context left behind. Made by `prefill`.

    Attributes:
        logits: `[1, 1, V]` after the last token of the context.
        length: tokens of the context.
    """

    def __init__(self, methods: list[Method], caches: list, layers: list, logits: mx.array):
        self.methods, self.caches, self.layers = methods, caches, layers
        self.logits = logits
        self.length = caches[layers[0].index].offset

    def kept(self, arm: Arm) -> list[mx.array]:
        """Positions that an arm keeps in every layer that evicts: int32 `[1, H_kv, rows]` each.

        Raises:
            UsageError: a method that the prefill was not told of, or a budget without room.
        """
        if arm.method.evicts and arm.method not in self.methods:
            known = ", ".join(map(str, self.methods))
            raise UsageError(f"this prefill was made for {known}, not for {arm.method}")
        everything = mx.arange(self.length, dtype=mx.int32)
        kept = []
        sizes = arm.layers(len(self.layers), self.length)
        for layer, (rows, sinks, recent) in zip(self.layers, sizes, strict=True):
            cache = self.caches[layer.index]
            if rows is None or rows >= self.length:
                kept.append(mx.broadcast_to(everything, (1, layer.n_kv_heads, self.length)))
                continue
            ranks = rank(cache.scores(arm.method))
            ranks = protect(ranks, everything, sinks, self.length - recent)
            kept.append(survivors(ranks, rows))
        return kept

    def fork(self, arms: list[Arm]) -> list:
        """Caches whose batch row b continues the context with the rows of arm b.

        The arms must keep equally many rows in each layer. Layers that cannot evict are repeated.

        Raises:
            UsageError: arms with different numbers of rows, or as `kept`.
        """
        kept = [self.kept(arm) for arm in arms]
        caches = [_repeated(cache, len(arms)) for cache in self.caches]
        for i, layer in enumerate(self.layers):
            index = [k[i] for k in kept]
            if len({x.shape[2] for x in index}) > 1:
                rows = sorted({x.shape[2] for x in index})
                raise UsageError(f"arms of one batch must keep equally many rows, not {rows}")
            source = self.caches[layer.index]
            rows = [
                mx.concatenate([take_rows(x, one) for one in index])
                for x in (source.keys, source.values)
            ]
            caches[layer.index] = ForkedKVCache(rows, self.length)
        return caches


def _repeated(cache, times):
    """A layer's own cache with its batch repeated."""

    def repeat(x):
        return mx.repeat(x, times, axis=0) if isinstance(x, mx.array) and x.ndim else x

    made = copy.copy(cache)
    made.state = tree_map(repeat, cache.state)
    return made


def prefill(
    model,
    tokens: list[int],
    methods: list[Method],
    filters: Filters | None = None,
    *,
    continuation: list[int] | None = None,
    step_size: int | None = None,
) -> Prefill:
    """Run a context once, densely, and remember what the methods need to evict from it.

    Args:
        model: an mlx-lm model.
        tokens: the context.
        methods: all methods that will be forked.
        filters: for the projection methods.
        continuation: the tokens that follow, for `oracle` only: it keeps what they attend to.
        step_size: tokens per forward pass; None means the platform's default.

    Raises:
        UsageError: no tokens, filters or continuation missing.
        FilterError: filters made for another model.
        ModelError: no layer can evict.
    """
    if not tokens:
        raise UsageError("a prefill needs at least one token")
    future = None
    if any(m.needs_future for m in methods):
        if not continuation:
            raise UsageError("method oracle needs the tokens that follow: pass continuation=")
        future = future_attention(model, tokens + continuation, step_size, since=len(tokens))
    layers = make_layers(model, methods, filters, future)
    caches = make_model_cache(model)
    ours = []
    for layer in layers:
        caches[layer.index] = _Dense(layer, [m for m in methods if m.needs_queries])
        ours.append(caches[layer.index])
    step, row = step_size or default_prefill_step_size(), mx.array(tokens)[None]
    with tapped(model):
        for start in range(0, len(tokens), step):
            logits = model(row[:, start : start + step], cache=caches)[:, -1:]
            mx.eval(logits, [c.state for c in caches], [c.statistics for c in ours])
    return Prefill(methods, caches, layers, logits)
