"""What each layer of a model is and whether its cache can evict, found by looking.

A model is run on two tokens with probe caches where it would have plain `KVCache`s. The pass is
never evaluated, so it costs no arithmetic whatever the size of the model. The plan knows layers,
heads and caches; it does not know methods.
"""

import hashlib
import json
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from .errors import ModelError
from .tap import tapped

# What a model may ask of a plain cache and gets from an evicting one as well.
_OFFERED = ("offset", "size", "empty", "is_trimmable")
_WINDOW = "a sliding-window mask over a plain cache"


@dataclass(frozen=True)
class LayerPlan:
    """One entry of a model's cache list.

    `evicts`: the cache may drop rows. `true_queries`: the attention call of the layer can be
    observed. `reason` says why not, in both cases. `array_mask`: attention gets an array as mask,
    or may where it cannot be observed; it fixes the number of rows for all layers that share it.
    Sizes are None where the layer keeps its own cache; `n_heads` also where attention cannot be
    observed.
    """

    index: int
    cache: str
    evicts: bool
    true_queries: bool
    reason: str
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    array_mask: bool = False


class _Probe:
    """Stands in for a `KVCache`, does what one does, and writes down who asked for what."""

    def __init__(self):
        self.cache = KVCache()
        self.stored, self.attention, self.other_uses = [], [], []
        self.masks, self.windowed = [], []

    def update_and_fetch(self, keys, values):
        self.stored.append(self.cache.update_and_fetch(keys, values))
        return self.stored[-1]

    def make_mask(self, n, return_array=False, window_size=None):
        mask = self.cache.make_mask(n, return_array=return_array, window_size=window_size)
        (self.masks if window_size is None else self.windowed).append(mask)
        return mask

    def observe(self, queries, keys, values, *, scale, mask, sinks):
        self.attention.append((queries, keys, values, mask))

    def __getattr__(self, name):
        value = getattr(self.cache, name)
        if name not in _OFFERED:
            self.other_uses.append(name)
        return value


def make_model_cache(model) -> list:
    """The caches the model's class makes, whatever `model.make_cache` was set to since."""
    if hasattr(type(model), "make_cache"):
        return type(model).make_cache(model)
    return [KVCache() for _ in model.layers]


def layer_plan(model) -> tuple[LayerPlan, ...]:
    """Look once at a model (the answer is remembered on it).

    Args:
        model: an mlx-lm model.

    Returns:
        One `LayerPlan` per entry of the model's cache list.
    """
    known = model.__dict__.get("_qfilters_plan")
    if known is None:
        known = _look(model)
        object.__setattr__(model, "_qfilters_plan", known)
    return known


def _look(model) -> tuple[LayerPlan, ...]:
    caches = make_model_cache(model)
    probes = [_Probe() if type(c) is KVCache else None for c in caches]
    standins = [probe or cache for probe, cache in zip(probes, caches, strict=True)]
    with tapped(model):
        try:
            model(mx.zeros((1, 2), dtype=mx.int32), cache=standins)
        except Exception as error:  # any code of any model
            raise ModelError(f"this model cannot be run on two tokens: {error}") from error
    plans = [
        _judge(i, type(cache).__name__, probe)
        for i, (cache, probe) in enumerate(zip(caches, probes, strict=True))
    ]
    return tuple(_refuse_foreign_masks(plans, probes))


def _judge(index: int, cache: str, probe: _Probe | None) -> LayerPlan:
    def untouched(reason):
        return LayerPlan(index, cache, evicts=False, true_queries=False, reason=reason)

    if probe is None:
        return untouched(f"the model keeps its own {cache}")
    if not probe.stored:
        return untouched("nothing is stored in this cache")
    if len(probe.stored) > 1 or len(probe.attention) > 1 or probe.other_uses:
        return untouched("the cache is shared with other layers")
    keys, values = probe.stored[0]
    sizes = {"n_kv_heads": keys.shape[1], "head_dim": keys.shape[3], "value_dim": values.shape[3]}
    if not probe.attention:
        if probe.windowed:
            return untouched(_WINDOW)
        reason = "queries cannot be observed: no call of mlx-lm's attention function"
        sizes["array_mask"] = True  # for all that is known
        return LayerPlan(index, cache, evicts=True, true_queries=False, reason=reason, **sizes)
    queries, seen_keys, seen_values, mask = probe.attention[0]
    if (seen_keys.shape, seen_values.shape) != (keys.shape, values.shape):
        return untouched("stored rows are not the keys and values of attention (latent attention)")
    true = seen_keys is keys and seen_values is values
    reason = "" if true else "attention gets arrays made from the stored rows, not the rows"
    sizes |= {"n_heads": queries.shape[1], "array_mask": isinstance(mask, mx.array)}
    return LayerPlan(index, cache, evicts=True, true_queries=true, reason=reason, **sizes)


def _refuse_foreign_masks(plans: list[LayerPlan], probes: list) -> list[LayerPlan]:
    """An array mask has one width: all layers that use it must evict, and one must have made it."""
    windowed = {id(mask) for p in probes if p for mask in p.windowed}
    makers, users = {}, {}
    for plan, probe in zip(plans, probes, strict=True):
        for mask in probe.masks if probe else ():
            makers.setdefault(id(mask), []).append(plan.evicts)
        for *_, mask in probe.attention if probe else ():
            users.setdefault(id(mask), []).append(plan.evicts)
    for i, probe in enumerate(probes):
        mask = probe.attention[0][3] if plans[i].evicts and probe.attention else None
        if not isinstance(mask, mx.array):
            continue
        if id(mask) in windowed:
            reason = _WINDOW
        elif not all(makers.get(id(mask), [False]) + users[id(mask)]):
            reason = "its mask comes from, or is shared with, a layer that cannot evict"
        else:
            continue
        plans[i] = LayerPlan(i, plans[i].cache, evicts=False, true_queries=False, reason=reason)
    return plans


def evicting_layers(model, *, need_queries: bool = False, what: str = "eviction"):
    """The layers that can evict, in order.

    Args:
        model: an mlx-lm model.
        need_queries: ask for true queries as well (calibration, filters, query methods).
        what: named in the error.

    Raises:
        ModelError: no layer qualifies.
    """
    plan = layer_plan(model)
    layers = [p for p in plan if p.evicts and (p.true_queries or not need_queries)]
    if not layers:
        reasons = sorted({p.reason for p in plan})
        raise ModelError(f"no layer of this model can serve {what}: {'; '.join(reasons)}")
    return layers


def fingerprint(model) -> str:
    """SHA-256 of what makes filters of one model meaningless for another.

    Layer kinds and sizes, RoPE parameters, and all one-dimensional norm weights as float32: the
    same after quantisation or a change of dtype, different between a base and a tuned model.
    """
    digest = hashlib.sha256()
    plan = [
        (p.cache, p.evicts, p.n_heads, p.n_kv_heads, p.head_dim, p.value_dim)
        for p in layer_plan(model)
    ]
    digest.update(json.dumps(plan).encode())
    for name, module in sorted(model.named_modules(), key=lambda pair: pair[0]):
        kind = type(module).__name__.lower()
        if "rope" in kind:
            # A base of 10000 and one of 10000.0 are the same: configurations write both.
            facts = {
                k: v if isinstance(v, str) else float(v)
                for k, v in vars(module).items()
                if isinstance(v, (int, float, str)) and k != "_training"
            }
            digest.update(json.dumps([name, kind, facts], sort_keys=True).encode())
        if "rope" in kind or "norm" in kind:
            for key in sorted(k for k, v in module.items() if isinstance(v, mx.array)):
                if module[key].ndim == 1:
                    weights = np.asarray(module[key].astype(mx.float32))
                    digest.update(f"{name}.{key}".encode() + weights.tobytes())
    return digest.hexdigest()


def trained_context(model) -> int | None:
    """Tokens the model was trained on (`max_position_embeddings`), or None where it is not said."""
    args = getattr(model, "args", None)
    inner = getattr(args, "text_config", None)
    for source in (args, inner):
        get = source.get if isinstance(source, dict) else lambda k, s=source: getattr(s, k, None)
        if source is not None and get("max_position_embeddings"):
            return int(get("max_position_embeddings"))
    return None
