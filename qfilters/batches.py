"""Arms that share forward passes: which can, and the caches of such a batch.

All arms of a batch process the same token at the same position, so one pass serves them, row b of
the batch for arm b.
"""

from .arms_cache import ArmsKVCache, LayerArm, order
from .errors import UsageError
from .filters import Filters
from .fork import Arm
from .plan import evicting_layers, make_model_cache
from .prompt_cache import make_layers, note_no_recent
from .tap import install


def arm_batches(model, arms: list[Arm], length: int, alone: bool = False) -> list[list[Arm]]:
    """Put arms together that keep equally many rows in the same layers.

    An arm that has nothing to evict rides apart, so that its numbers are exactly the full cache's.

    Args:
        model: an mlx-lm model.
        arms: any; their order is kept within and between the batches.
        length: tokens that the longest text feeds.
        alone: one arm to a batch, as fused kernels need it, which choose for one arm at a time.

    Raises:
        UsageError: a budget without room beside the protected rows.
        ModelError: no layer can serve an arm.
    """
    if alone:
        return [[arm] for arm in arms]
    made = {}
    for arm in arms:
        rows = None
        if arm.method.evicts:
            layers = _layers(model, arm)
            rows = tuple(n for n, *_ in arm.layers(len(layers)))
        if rows is None or min(rows) >= length:
            key = arm
        else:
            key = tuple(layer.index for layer in layers), rows
        made.setdefault(key, []).append(arm)
    return list(made.values())


def _layers(model, arm):
    m = arm.method
    queries = bool(m.needs_filters) or m.needs_queries or m.needs_future
    return evicting_layers(model, need_queries=queries, what=str(m))


def make_arms_cache(
    model, arms: list[Arm], filters: Filters | None = None, future: dict | None = None
) -> list:
    """As `make_prompt_cache` for a batch: caches whose batch row b is evicted by arm b.

    Args:
        model: an mlx-lm model.
        arms: a batch, sorted with `sort_arms`.
        filters, future: as `make_prompt_cache`.

    Raises:
        UsageError: arms that do not fit into one batch; filters missing.
        FilterError: filters made for another model.
        ModelError: no layer can serve an arm.
    """
    caches, by_layer = make_model_cache(model), {}
    for arm in arms:
        known = future if arm.method.needs_future else None
        layers = make_layers(model, [arm.method], filters, known)
        sizes = arm.layers(len(layers))
        note_no_recent(arm.method, sizes[0][2])
        for layer, (rows, sinks, recent) in zip(layers, sizes, strict=True):
            one = LayerArm(arm.method, layer, sinks, recent)
            by_layer.setdefault((layer.index, rows), []).append(one)
    if any(len(those) < len(arms) for those in by_layer.values()):
        raise UsageError(f"arms of one batch must keep equally many rows: {_named(arms)} do not")
    if any(arm.method.needs_queries for arm in arms):
        install(model)
    for (index, rows), those in by_layer.items():
        caches[index] = ArmsKVCache(those, rows)
    return caches


def sort_arms(arms: list[Arm]) -> list[Arm]:
    """The order that a batch's caches want them in."""
    return sorted(arms, key=lambda arm: order(arm.method))


def _named(arms):
    return ", ".join(f"{arm.method} {arm.budget}" for arm in arms)
