"""One dense prefill, many evictions: mode `after_prefill`.

The context runs once through plain caches; every method then picks its rows from what that run
left behind. Nothing here knows tasks or text.
"""

from collections import defaultdict
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache

from .errors import UsageError
from .feeding import feed
from .filters import Filters
from .forked_cache import ForkedKVCache, batch_rows
from .future import future_attention
from .kernels import take_rows
from .methods import Layer, Method
from .methods.observing import Attention
from .plan import layer_plan, make_model_cache
from .prompt_cache import check_room, make_layers, recent_rows
from .select import protect, rank, survivors
from .tap import tapped

PADDING_BYTES = 256 * 1024**2
"""What a batch of arms may spend on rows that nothing attends to."""
BATCH_BYTES = 4 * 1024**3
"""What the rows of a batch may take; one arm alone may take more."""
_OWN_MASKS = {"RotatingKVCache", "ArraysCache"}
"""Caches whose layers do not read the mask of a layer that evicts."""


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


@dataclass(frozen=True)
class Arm:
    """One method at one budget. `budget` None keeps everything, as do the first `skip` layers."""

    method: Method
    budget: int | None
    sinks: int = 4
    recent: int | None = None
    skip: int = 0

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
        sizes = [(n, sinks, recent_rows(self.method, n, sinks, self.recent)) for n in budgets]
        return [(None, 0, 0)] * min(self.skip, count) + sizes[self.skip :]


class Prefill:
    """What a dense run over a context left behind. Made by `prefill`.

    Attributes:
        length: tokens of the context.
        one_mask: attention gets one array mask for all layers, so all must keep equally many rows.
        may_pad: no layer outside takes its mask from those that evict.
    """

    def __init__(self, model, methods: list[Method], caches: list, layers: list):
        self.methods, self.caches, self.layers = methods, caches, layers
        self.length = caches[layers[0].index].offset
        plans = layer_plan(model)
        self.one_mask = any(plan.array_mask for plan in plans if plan.evicts)
        others = {plan.cache for plan in plans if not plan.evicts}
        self.may_pad = not self.one_mask and others <= _OWN_MASKS
        self._ranks: dict = {}

    def sizes(self, arm: Arm) -> tuple[int, ...]:
        """Rows per KV head that an arm keeps in every layer that evicts.

        Raises:
            UsageError: a budget without room, or skipped layers where all share one array mask.
        """
        if arm.skip and self.one_mask:
            raise UsageError("this model shares one array mask between layers: none can be skipped")
        sizes = arm.layers(len(self.layers), self.length)
        return tuple(self.length if n is None else min(n, self.length) for n, *_ in sizes)

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
            key = arm.method, layer.index
            if key not in self._ranks:
                self._ranks[key] = rank(cache.scores(arm.method))
            ranks = protect(self._ranks[key], everything, sinks, self.length - recent)
            kept.append(survivors(ranks, rows))
        return kept

    def batches(
        self,
        arms: list[Arm],
        padding_bytes: int = PADDING_BYTES,
        batch_bytes: int = BATCH_BYTES,
    ) -> list[list[Arm]]:
        """The arms in as few batches for `fork` as limits on padding and size allow.

        A forward pass costs little more for many arms than for one, as long as the weights take
        longer to read than the arms to compute.
        """
        outlines = defaultdict(list)
        for arm in sorted(arms, key=self.sizes, reverse=True):
            outlines[_outline(self.sizes(arm))].append(arm)
        done, padding_bytes = [], padding_bytes if self.may_pad else 0
        for alike in outlines.values():
            batch, padding = [], 0
            for arm in alike:
                most = self.sizes(batch[0] if batch else arm)[0]
                padding += self._row_bytes * (most - self.sizes(arm)[0])
                size = self._row_bytes * most * (len(batch) + 1)
                if not batch or padding > padding_bytes or size > batch_bytes:
                    batch, padding = [], 0
                    done.append(batch)
                batch.append(arm)
        return done

    @property
    def _row_bytes(self):
        """Bytes of one row in all layers that evict."""
        held = [self.caches[layer.index] for layer in self.layers]
        return sum(x.nbytes // x.shape[2] for c in held for x in (c.keys, c.values))

    def fork(self, arms: list[Arm]) -> list:
        """Caches whose batch row b continues the context with the rows of arm b.

        Arms with fewer rows are padded to the most; they must lack equally many in every layer,
        because layers share one mask. Layers that cannot evict are repeated.

        Raises:
            UsageError: arms that would need another mask in every layer, or as `kept`.
        """
        sizes = {self.sizes(arm) for arm in arms}
        if len(set(map(_outline, sizes))) > 1:
            raise UsageError("arms of one batch must differ by equally many rows in every layer")
        if len(sizes) > 1 and not self.may_pad:
            raise UsageError(
                "layers of this model share masks: a batch must keep equally many rows"
            )
        kept = [self.kept(arm) for arm in arms]
        ours = {layer.index for layer in self.layers}
        others = [None if i in ours else cache for i, cache in enumerate(self.caches)]
        caches = batch_rows(others, [0] * len(arms))
        for i, layer in enumerate(self.layers):
            source = self.caches[layer.index]
            rows = [[take_rows(x, k[i]) for x in (source.keys, source.values)] for k in kept]
            caches[layer.index] = ForkedKVCache(rows, self.length)
        return caches


def _outline(sizes):
    """How the layers of an arm differ from its first."""
    return tuple(n - sizes[0] for n in sizes)


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
    for layer in layers:
        caches[layer.index] = _Dense(layer, [m for m in methods if m.needs_queries])
    with tapped(model):
        feed(model, caches, tokens, step_size)
    return Prefill(model, methods, caches, layers)
