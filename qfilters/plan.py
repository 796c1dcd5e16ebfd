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

_PROBED = ("keys", "values", "state", "keys_and_values", "trim", "to_quantized", "nbytes")


@dataclass(frozen=True)
class LayerPlan:
    """One entry of a model's cache list.

    `evicts`: the cache may drop rows. `true_queries`: the attention call of the layer can be
    observed. `reason` says why not, in both cases. Sizes are None where the layer keeps its own
    cache; `n_heads` also where attention cannot be observed.
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


class _Probe:
    """Stands in for a `KVCache` and writes down who does what with it."""

    def __init__(self):
        self.offset = 0
        self.updates, self.other_readers = [], []
        self.attention = self.windowed_mask = None

    def update_and_fetch(self, keys, values):
        self.updates.append((keys, values))
        self.offset += keys.shape[2]
        return keys, values

    def make_mask(self, n, return_array=False, window_size=None):
        mask = KVCache().make_mask(n, return_array=return_array, window_size=window_size)
        if window_size is not None:
            self.windowed_mask = mask
        return mask

    def observe(self, queries, keys, values, *, scale, mask, sinks):
        self.attention = (queries, keys, values, mask)

    def __getattr__(self, name):
        if name in _PROBED:
            self.other_readers.append(name)
            return getattr(KVCache(), name)
        raise AttributeError(name)


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
        model(mx.zeros((1, 2), dtype=mx.int32), cache=standins)
    windowed = [p.windowed_mask for p in probes if p and p.windowed_mask is not None]
    plans = [
        _judge(i, type(cache).__name__, probe, windowed)
        for i, (cache, probe) in enumerate(zip(caches, probes, strict=True))
    ]
    return tuple(_refuse_mixed_masks(plans, probes))


def _judge(index: int, cache: str, probe: _Probe | None, windowed: list) -> LayerPlan:
    def untouched(reason):
        return LayerPlan(index, cache, evicts=False, true_queries=False, reason=reason)

    if probe is None:
        return untouched(f"the model keeps its own {cache}")
    if not probe.updates:
        return untouched("nothing is stored in this cache")
    if len(probe.updates) > 1 or probe.other_readers:
        return untouched("the cache is shared with other layers")
    keys, values = probe.updates[0]
    sizes = {"n_kv_heads": keys.shape[1], "head_dim": keys.shape[3], "value_dim": values.shape[3]}
    if probe.attention is None:
        if probe.windowed_mask is not None:
            return untouched("a sliding-window mask over a plain cache")
        reason = "queries cannot be observed: no call of mlx-lm's attention function"
        return LayerPlan(index, cache, evicts=True, true_queries=False, reason=reason, **sizes)
    queries, seen_keys, seen_values, mask = probe.attention
    if seen_keys is not keys or seen_values is not values:
        return untouched("stored rows are not the keys and values of attention (latent attention)")
    if any(mask is w for w in windowed):
        return untouched("a sliding-window mask over a plain cache")
    sizes["n_heads"] = queries.shape[1]
    return LayerPlan(index, cache, evicts=True, true_queries=True, reason="", **sizes)


def _refuse_mixed_masks(plans: list[LayerPlan], probes: list) -> list[LayerPlan]:
    """An array mask has one width, so the layers that share it must all evict or none."""
    stuck = set()
    for plan, probe in zip(plans, probes, strict=True):
        mask = probe.attention[3] if probe and probe.attention else None
        if isinstance(mask, mx.array) and not plan.evicts:
            stuck.add(id(mask))
    for i, probe in enumerate(probes):
        if plans[i].evicts and probe.attention and id(probe.attention[3]) in stuck:
            reason = "its array mask is shared with a layer that cannot evict"
            plans[i] = LayerPlan(i, plans[i].cache, False, False, reason)
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
            facts = {
                k: v
                for k, v in vars(module).items()
                if isinstance(v, (int, float, str)) and not k.startswith("_")
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
