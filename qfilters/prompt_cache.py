"""Caches for a whole model: `make_prompt_cache`, and the accounts of a list of caches."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from .arms import check_budget, parse_method
from .cache import EvictingKVCache
from .errors import FilterError, QFiltersWarning, UsageError
from .filters import Filters
from .methods import Layer, Method, make_method
from .plan import LayerPlan, evicting_layers, make_model_cache, trained_context


def make_prompt_cache(
    model,
    method: str | Mapping | Method = "qfilters",
    budget: int = 1024,
    sinks: int = 4,
    recent: int | None = None,
    filters: Filters | str | Path | None = None,
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

    Raises:
        UsageError: bad sizes, unknown method, filters missing.
        FilterError: filters made for another model.
        ModelError: no layer can evict.
    """
    if not isinstance(method, Method):
        method = make_method(*parse_method(method))
    if method.evicts:
        _check_counts(budget=budget, sinks=sinks, recent=recent)
        sinks = sinks if method.max_sinks is None else min(sinks, method.max_sinks)
        recent = _recent_in_force(method, budget, sinks, recent)
    if method.needs_filters:
        filters = _filters_for(method, model, filters)
    needs_queries = method.needs_filters is not None
    plans = evicting_layers(model, need_queries=needs_queries, what=method.name)
    trained = trained_context(model)
    caches = make_model_cache(model)
    for plan in plans:
        layer = _layer(plan, method, filters, trained)
        caches[plan.index] = EvictingKVCache(method, layer, budget, sinks, recent)
        trained = None
    return caches


def _check_counts(**counts) -> None:
    for name, value in counts.items():
        allowed_none = name == "recent" and value is None
        if not allowed_none and (
            not isinstance(value, int) or isinstance(value, bool) or value < 0
        ):
            raise UsageError(f"{name} must be a whole number of rows, not {value!r}")


def _recent_in_force(method: Method, budget: int, sinks: int, recent: int | None) -> int:
    try:
        recent = check_budget(budget, sinks, recent)
    except UsageError as error:
        raise UsageError(f"budget {error}") from None
    if recent == 0 and method.family != "structural":
        text = (
            "recent 0 is the paper's setting: the newest rows can be evicted, which costs "
            "open-ended text much of its quality (the default is a quarter of the budget)"
        )
        warnings.warn(text, QFiltersWarning, stacklevel=3)
    return recent


def _filters_for(method: Method, model, filters: Filters | str | Path | None) -> Filters:
    if filters is None:
        raise UsageError(
            f"method {method.name} needs filters: pass filters=calibrate(model, tokenizer, "
            "rows) or the path of an artifact made by `qfilters calibrate`"
        )
    filters = filters if isinstance(filters, Filters) else Filters.load(filters)
    if getattr(filters, method.needs_filters) is None:
        raise FilterError(
            f"method {method.name} needs {method.needs_filters}, which published filters do not "
            "carry. Run: qfilters calibrate --model ..."
        )
    filters.check(model)
    return filters


def _layer(plan: LayerPlan, method: Method, filters: Filters | None, trained: int | None) -> Layer:
    """One layer's facts. Only the first gets the trained context, so that it is said once."""
    needed = method.needs_filters
    rows = {needed: filters.layer(plan.index)[needed]} if needed else {}
    return Layer(
        plan.index, plan.n_kv_heads, plan.head_dim, plan.n_heads, max_position=trained, **rows
    )


def account(caches: list) -> dict:
    """What the evicting caches of a list hold, beside what a full cache would hold.

    Returns:
        `tokens_seen`, `tokens_kept` (rows per KV head), `rows_evicted`, `compression_ratio` (seen
        over kept, 1 when nothing was evicted), `kept_fraction`, `cache_bytes` (arrays really held),
        `full_cache_bytes` (K and V of all tokens seen, computed), `filter_bytes`, `bytes_ratio`,
        `peak_bytes` (K and V at the largest chunk, computed), `nan_rows`, `layers_evicting`,
        `layers_untouched`.
    """
    ours = [c for c in caches if isinstance(c, EvictingKVCache)]
    seen, kept = ours[0].tokens_seen, ours[0].tokens_kept
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
    }
