"""The attention that rows of a context really receive, beside what methods make of them.

One dense run per text, block by block, so that no `[H, N, N]` is ever held. The text is a context,
at whose end every method scores and chooses its rows (mode after_prefill), and later tokens, which
run densely too: nothing is evicted, what they pay is the truth. Knows token ids, not where they
come from; what the numbers amount to is the business of foresight.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from .calibration import check_finite
from .errors import UsageError
from .estimator import QueryMoments, chunk_moments
from .feeding import feed
from .filters import Filters
from .fork import Arm, Prefill, prefill
from .methods import Layer, Method
from .methods.observing import Attention, Observing
from .methods.qfilters_keysvd import QFiltersKeySVD
from .prompt_cache import check_room, recent_rows
from .tap import tapped

ORACLE = "oracle"


class _Paid(Observing):
    """Statistic: attention of later queries, summed over them and the group."""

    name = "attention received"

    def watch(self, statistic: mx.array, seen: Attention, carry, layer: Layer):
        return seen.received(statistic), None


class _Moments(Observing):
    """Carry: the moments of all queries of the text; the statistic is not used."""

    name = "query moments"

    def watch(self, statistic: mx.array, seen: Attention, carry, layer: Layer):
        new = chunk_moments(seen.queries)
        return statistic, new if carry is None else tuple(map(mx.add, carry, new))


PAID, MOMENTS = _Paid(), _Moments()


class Share(NamedTuple):
    """What an arm retains of the mass: shares per KV head `[heads]`, of all rows of the context and
    of those after the first `sinks`; and the rows it protected.
    """

    every: np.ndarray
    beyond_sinks: np.ndarray
    sinks: int
    recent: int


@dataclass(frozen=True)
class Observed:
    """What one text says; KV heads of all layers that evict lie end to end, `heads` in all.

    Attributes:
        layers: their indices; kv_heads: KV heads of each.
        context, later: tokens of the two parts.
        scores: of every method by its name, float32 `[heads, context]`, higher = keep.
        received: float64 `[heads, context]`, mean attention per later query that can see the row
            (any later one of the text, the row's own query left out) and query head of the group.
        later_mass: float64 `[heads, context]`, attention of the later tokens alone, summed.
        retained: (method's name or `oracle`, budget) -> `Share`.
        moments: of the queries of the whole text, one `QueryMoments` per layer.
        keys: per layer, mean and mean-centred first principal axis of the keys of the whole text as
            the cache holds them, `[H_kv, D]` each, as `[2, H_kv, D]`.
    """

    layers: tuple[int, ...]
    kv_heads: tuple[int, ...]
    context: int
    later: int
    scores: dict[str, np.ndarray]
    received: np.ndarray
    later_mass: np.ndarray
    retained: dict[tuple[str, int], Share]
    moments: list[QueryMoments]
    keys: list[np.ndarray]

    def by_layer(self, values: np.ndarray) -> list[list[float | None]]:
        """Values per head `[heads]` as one list per layer, null where not finite."""
        parts = np.split(values, np.cumsum(self.kv_heads)[:-1])
        return [[float(v) if np.isfinite(v) else None for v in part] for part in parts]


def observe(
    model,
    tokens: list[int],
    methods: Sequence[Method],
    filters: Filters | None = None,
    *,
    later: int,
    budgets: Sequence[int] = (),
    sinks: int = 4,
    recent: int | None = None,
    step_size: int | None = None,
) -> Observed:
    """Run one held-out text densely and note what methods say and what later tokens do.

    Args:
        model: an mlx-lm model.
        tokens: the context and, as its end, the later tokens.
        methods: whose scores and choices are wanted; the oracle is always among the choices.
        filters: for the projection methods.
        later: tokens at the end of the text that are not in the context.
        budgets: rows per KV head for `retained`.
        sinks, recent: rows protected, as in `make_prompt_cache`; the oracle protects none.
        step_size: tokens per forward pass; None means the platform's default.

    Raises:
        UsageError: no context or nothing after it, a method without a score of its own, a budget
            without room, filters missing.
        FilterError, ModelError: as `prefill`.
        QFiltersError: the model computed queries that are not finite.
    """
    context = len(tokens) - later
    if context < 1 or later < 1:
        raise UsageError(f"{later} later tokens of {len(tokens)}: both parts need at least one")
    check_judged(methods, budgets, sinks, recent)
    done = prefill(model, tokens[:context], [*methods, PAID, MOMENTS], filters, step_size=step_size)
    caches = [done.caches[layer.index] for layer in done.layers]
    scores = {str(m): _heads(cache.scores(m) for cache in caches) for m in methods}
    kept = {(m, b): done.kept(Arm(m, b, sinks, recent)) for m in methods for b in budgets}
    before = _heads(cache.scores(PAID) for cache in caches)
    _run_on(model, done, tokens[context:], step_size)
    mass = _heads(cache.scores(PAID)[..., :context] for cache in caches).astype(np.float64)
    moments = [_moments(cache, len(tokens)) for cache in caches]
    for layer, seen in zip(done.layers, moments, strict=True):
        check_finite(layer.index, seen)
    kv_heads = tuple(layer.n_kv_heads for layer in done.layers)
    group = np.repeat([x.n_heads // x.n_kv_heads for x in done.layers], kv_heads)[:, None]
    asking = len(tokens) - 1 - np.arange(context)

    beyond = mass.copy()
    beyond[:, :sinks] = 0
    retained = {}
    for (method, budget), rows in kept.items():
        held = method.sinks_of(sinks)
        protected = held, recent_rows(method, budget, held, recent)
        parts = (_shares(x, rows, kv_heads) for x in (mass, beyond))
        retained[str(method), budget] = Share(*parts, *protected)
    for budget in budgets:
        best = (_shares(x, [_top(x, budget)], [len(x)]) for x in (mass, beyond))
        retained[ORACLE, budget] = Share(*best, 0, 0)
    return Observed(
        layers=tuple(layer.index for layer in done.layers),
        kv_heads=kv_heads,
        context=context,
        later=later,
        scores=scores,
        received=(before + mass) / (group * asking),
        later_mass=mass,
        retained=retained,
        moments=moments,
        keys=[_keys(cache) for cache in caches],
    )


def check_judged(
    methods: Sequence[Method], budgets: Sequence[int], sinks: int, recent: int | None
) -> None:
    """UsageError for a method without a score of its own, or a budget without room."""
    for method in methods:
        if method.needs_future or not method.evicts:
            raise UsageError(f"method {method} does not foresee attention: leave it out")
        for budget in budgets:
            check_room(method, budget, method.sinks_of(sinks), recent)


def _run_on(model, done: Prefill, tokens: list[int], step_size: int | None) -> None:
    """Run the later tokens through the caches of the context; from here on they only observe."""
    for layer in done.layers:
        cache = done.caches[layer.index]
        cache.watched = {PAID: (None, None), MOMENTS: cache.watched[MOMENTS]}
    with tapped(model):
        feed(model, done.caches, tokens, step_size)


def _heads(per_layer) -> np.ndarray:
    """`[1, H_kv, n]` of every layer as one float32 `[heads, n]`."""
    return np.concatenate([np.array(x.astype(mx.float32))[0] for x in per_layer])


def _moments(cache, count: int) -> QueryMoments:
    gram, total = (np.array(x, dtype=np.float64) for x in cache.watched[MOMENTS][1])
    made = QueryMoments(*total.shape)
    made.add(gram, total, count)
    return made


def _keys(cache) -> np.ndarray:
    keys = cache.keys[:, :, : cache.offset].astype(mx.float32)
    both = keys.mean(axis=2), QFiltersKeySVD().learn(keys, None)
    return np.stack([np.array(x[0], dtype=np.float64) for x in both])


def _top(mass: np.ndarray, budget: int) -> np.ndarray:
    """`[1, heads, rows]`: the rows of most mass."""
    return np.argsort(-mass, axis=-1, kind="stable")[None, :, :budget]


def _shares(mass: np.ndarray, kept, kv_heads) -> np.ndarray:
    """The share of every head's mass `[heads, context]` on its rows, `[1, H_kv, r]` per layer."""
    shares = []
    for part, rows in zip(np.split(mass, np.cumsum(kv_heads)[:-1]), kept, strict=True):
        # In order of position, so that all rows give exactly 1.
        held = np.take_along_axis(part, np.sort(np.array(rows)[0], axis=-1), axis=-1).sum(axis=-1)
        total = part.sum(axis=-1)
        shares.append(np.divide(held, total, out=np.full(len(part), np.nan), where=total > 0))
    return np.concatenate(shares)
