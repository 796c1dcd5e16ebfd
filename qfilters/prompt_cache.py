"""Caches for a whole model: `make_prompt_cache`, and the accounts of a list of caches."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from .arms import check_budget, default_recent, parse_method
from .cache import EvictingKVCache
from .errors import FilterError, ModelError, QFiltersWarning, UsageError
from .filters import Filters
from .kernels import Fused, choose_kernels
from .methods import Layer, Method, make_method
from .observing_cache import ObservingKVCache
from .plan import evicting_layers, layer_plan, make_model_cache, trained_context
from .rotation import rope_of
from .tap import install


def make_prompt_cache(
    model,
    method: str | Mapping | Method = "qfilters",
    budget: int = 1024,
    sinks: int = 4,
    recent: int | None = None,
    filters: Filters | str | Path | None = None,
    future: dict | None = None,
    use_kernel: bool | None = None,
) -> list:
    """Caches for `mlx_lm.generate(..., prompt_cache=...)` that stay under a budget.

    Layers that cannot evict keep the cache their model makes for them; `layer_plan(model)` names
    them and says why. Assign `model.make_cache = lambda: make_prompt_cache(model, ...)` to get a
    fresh one for every call.

    Args:
        model: an mlx-lm model.
        method: "name", "name(option=value)", `{name: {option: value}}` or a `Method`.
        budget: rows kept per KV head and layer, sinks and recent included.
        sinks: first positions that are never evicted.
        recent: last positions that are never evicted; None means a quarter of the budget.
        filters: what the projection methods project on, or the path of an artifact.
        future: what `oracle` looks up, by layer, as `future.future_attention` returns it.
        use_kernel: None takes fused kernels where there is a GPU and the method's scores are fixed
            at insertion, True insists on them, False declines.

    Raises:
        UsageError: bad sizes, unknown method, filters missing, kernels required but not there.
        FilterError: filters made for another model.
        ModelError: no layer can evict.
    """
    method = as_method(method)
    if method.evicts:
        _check_counts(budget=budget, sinks=sinks, recent=recent)
        sinks = method.sinks_of(sinks)
        check_room(method, budget, sinks, recent)
        note_no_recent(method, recent_rows(method, budget, sinks, recent))
    if isinstance(filters, str | Path) and method.needs_filters:
        filters = Filters.load(filters)
    if method.needs_future and future is None:
        raise UsageError(f"method {method.name} needs the text in advance: use it in ppl")
    kernels = kernels_for(method, use_kernel)
    layers = make_layers(model, [method], filters, future, kernels)
    budgets = [budget] * len(layers)
    if method.evicts and hasattr(method, "layer_budgets"):
        budgets = method.layer_budgets(budget, len(layers), sinks)
    if method.needs_queries:
        install(model)
    caches = make_model_cache(model)
    for layer, rows in zip(layers, budgets, strict=True):
        sizes = (rows, sinks, recent_rows(method, rows, sinks, recent) if method.evicts else 0)
        caches[layer.index] = (
            ObservingKVCache(method, layer, *sizes)
            if method.needs_queries
            else EvictingKVCache(method, layer, *sizes, kernels)
        )
    return caches


def kernels_for(method: Method, use_kernel: bool | None) -> Fused | None:
    """The kernels that a method's caches get; None for the reference.

    Raises:
        UsageError: kernels are required, and there is no GPU or no use for them.
    """
    kernels = choose_kernels(use_kernel)
    if use_kernel and method.needs_queries:
        raise UsageError(
            f"method {method.name} has no use for fused kernels, its scores change with every "
            "token: use_kernel=None (--kernel auto) takes them where they serve"
        )
    return kernels if method.evicts and not method.needs_queries else None


def as_method(method: str | Mapping | Method) -> Method:
    """The method that a name, "name(option=value)" or `{name: {option: value}}` stands for."""
    return method if isinstance(method, Method) else make_method(*parse_method(method))


def make_layers(
    model,
    methods: list[Method],
    filters: Filters | None = None,
    future: dict | None = None,
    kernels: Fused | None = None,
) -> list[Layer]:
    """What the methods may know of every layer that can serve all of them, in order.

    Only the first layer is told the trained context, so that passing it is noted once.

    Raises:
        UsageError, FilterError: filters missing or of another model.
        ModelError: no layer can serve the methods.
    """
    needing = [m for m in methods if m.needs_filters]
    for method in needing:
        _check_filters(method, filters)
    if needing:
        filters.check(model)
    queries = bool(needing) or any(m.needs_queries or m.needs_future for m in methods)
    what = ", ".join(sorted({m.name for m in methods}))
    plans = evicting_layers(model, need_queries=queries, what=what)
    uneven = [m for m in methods if hasattr(m, "layer_budgets")]
    if uneven and any(p.array_mask for p in plans):
        raise ModelError(
            f"method {uneven[0].name} gives layers different budgets, but this model shares one "
            "array mask between them"
        )
    wanted = {m.needs_filters for m in needing}
    layers = []
    for plan in plans:
        facts = (
            {n: x for n, x in filters.layer(plan.index).items() if n in wanted} if wanted else {}
        )
        if any(m.needs_rope for m in methods):
            facts["rope"] = _rope(model, plan)
        if future is not None:
            facts["future"] = future[plan.index]
        if kernels is not None:
            facts["project"] = kernels.project
        trained = None if layers else trained_context(model)
        sizes = (plan.n_kv_heads, plan.head_dim, plan.n_heads)
        layers.append(Layer(plan.index, *sizes, max_position=trained, **facts))
    return layers


def _rope(model, plan):
    found, why = None, "its model has other caches than layers"
    if len(layer_plan(model)) == len(model.layers):
        found, why = rope_of(model.layers[plan.index])
    if found is None:
        raise ModelError(
            f"expected_attention cannot undo the rotation of layer {plan.index}: {why}"
        )
    return found


def _check_counts(**counts) -> None:
    for name, value in counts.items():
        allowed_none = name == "recent" and value is None
        if not allowed_none and (
            not isinstance(value, int) or isinstance(value, bool) or value < 0
        ):
            raise UsageError(f"{name} must be a whole number of rows, not {value!r}")


def check_room(method: Method, budget: int, sinks: int, recent: int | None) -> None:
    """UsageError unless the budget leaves room beside the protected rows."""
    recent = default_recent(budget) if recent is None else recent
    try:
        check_budget(budget, sinks, max(recent, method.window))
    except UsageError as error:
        window = f" ({method.name} keeps its last {method.window} rows)" if method.window else ""
        raise UsageError(f"budget {error}{window}") from None


def note_no_recent(method: Method, recent: int) -> None:
    """Warn when a method that judges rows protects none of the newest."""
    if recent == 0 and method.family != "structural":
        text = (
            "recent 0 is the paper's setting: the newest rows can be evicted, which costs "
            "open-ended text much of its quality (the default is a quarter of the budget)"
        )
        warnings.warn(text, QFiltersWarning, stacklevel=3)


def recent_rows(method: Method, rows: int, sinks: int, recent: int | None) -> int:
    """Last rows protected in a layer of `rows`; layers narrower than the budget keep fewer."""
    recent = default_recent(rows) if recent is None else recent
    return min(max(recent, method.window), rows - sinks)


def _check_filters(method: Method, filters: Filters | None) -> None:
    if filters is None:
        raise UsageError(
            f"method {method.name} needs filters: pass filters=calibrate(model, tokenizer, "
            "rows) or the path of an artifact made by `qfilters calibrate`"
        )
    if getattr(filters, method.needs_filters) is None:
        raise FilterError(
            f"method {method.name} needs {method.needs_filters}, which published filters do not "
            "carry. Run: qfilters calibrate --model ..."
        )


def account(caches: list) -> dict:
    """What the evicting caches of a list hold, beside what a full cache would hold.

    Returns:
        `tokens_seen`, `tokens_kept` (rows per KV head), `rows_evicted`, `compression_ratio` (seen
        over kept, 1 when nothing was evicted), `kept_fraction`, `cache_bytes` (arrays really held),
        `full_cache_bytes` (K and V of all tokens seen, computed), `filter_bytes`, `bytes_ratio`,
        `peak_bytes` (K and V at the largest chunk, computed), `nan_rows`, `layers_evicting`,
        `layers_untouched`, `kernel` (what chose the rows: metal, cuda or reference).
    """
    ours = [c for c in caches if isinstance(c, EvictingKVCache)]
    seen = ours[0].tokens_seen
    # Budgets may differ between layers; their mean is the budget asked for.
    kept = round(sum(c.tokens_kept for c in ours) / len(ours))
    held = sum(c.nbytes for c in ours)
    full = sum(c.row_bytes * c.tokens_seen for c in ours)
    filter_bytes = sum(c.layer.filter_bytes for c in ours)
    return {
        "tokens_seen": seen,
        "tokens_kept": kept,
        "rows_evicted": seen - kept,
        "compression_ratio": seen / kept if kept else 1.0,
        "kept_fraction": kept / seen if seen else 1.0,
        "cache_bytes": held,
        "full_cache_bytes": full,
        "filter_bytes": filter_bytes,
        "bytes_ratio": full / (held + filter_bytes) if held else 1.0,
        "peak_bytes": sum(c.row_bytes * c.peak_rows for c in ours),
        "nan_rows": sum(c.nan_rows for c in ours),
        "layers_evicting": len(ours),
        "layers_untouched": len(caches) - len(ours),
        "kernel": ours[0].kernel,
    }
