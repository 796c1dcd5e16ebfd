"""What the geometry alone does: synthetic heads whose keys are as the paper says, and a control.

Keys `drift`: every tenth key stands far along one axis of its head and the queries drift along it,
so it gets attention (anisotropic, as in arXiv 2503.02812). Keys `isotropic`: no axis at all. The
arms are the package's own caches; no model is involved.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..arms import check_budget
from ..cache import EvictingKVCache
from ..errors import UsageError
from ..estimator import QueryMoments, chunk_moments, drift
from ..fields import Lengths, Positive, Rows
from ..methods import Layer, make_method
from ..observing_cache import ObservingKVCache
from ..session import Session
from ..stats import mean_t
from .base import StudyConfig

HEADS, SIZE, PROBES = 8, 64, 64
IMPORTANT, ALONG_KEYS, ALONG_QUERIES = 0.1, 8.0, 4.0
ARMS = {
    "qfilters": ("qfilters", {}),
    "keysvd +1": ("qfilters_keysvd", {"sign": 1}),
    "keysvd -1": ("qfilters_keysvd", {"sign": -1}),
    "knorm": ("knorm", {}),
    "h2o": ("h2o", {}),
    "random": ("random", {}),
}
BEST = "keysvd, better sign of each head"


class GeometryConfig(StudyConfig):
    """Sizes; nothing is protected."""

    command = "evidence/geometry"

    length: Lengths = (256, 512, 1024)
    budget: Lengths = (64, 128)
    seeds: Positive = 5
    sinks: Rows = 0

    def check(self) -> None:
        """A budget needs room, and something to evict."""
        for budget in self.budget:
            check_budget(budget, self.sinks, 0)
        if max(self.budget) >= min(self.length):
            raise UsageError(
                f"budget {max(self.budget)} of length {min(self.length)}: nothing would be evicted"
            )


def measure_geometry(session: Session, rows: Sequence) -> list[dict]:
    """One row per kind of keys, length, budget and arm; means over heads, then over seeds.

    `retained`: share of the attention of queries after the context on the rows kept, with `low` and
    `high` (95 %, t over seeds); `output_error`: length of the change of the attention
    output over its length; `cosine`: size of the cosine of the arm's direction to the axis of the
    head, null without one or the other. The better sign of each head is chosen with hindsight.
    """
    s, made = session.settings, []
    for keys in ("drift", "isotropic"):
        for length in s.length:
            texts = [_text(keys, length, seed) for seed in range(s.seeds)]
            for budget in s.budget:
                found = [_arms(text, budget, s.sinks) for text in texts]
                for arm in found[0]:
                    where = {"keys": keys, "length": length, "budget": budget, "method": arm}
                    made.append(where | _over_seeds([heads[arm] for heads in found]))
    return made


def _text(kind: str, length: int, seed: int) -> dict:
    """Keys, values and queries `[1, HEADS, n, SIZE]`, the last `PROBES` queries held out."""
    rng = np.random.default_rng([seed, length, kind == "drift"])
    axis = rng.normal(size=(HEADS, 1, SIZE))
    axis /= np.linalg.norm(axis, axis=-1, keepdims=True)
    drawn = rng.normal(size=(3, HEADS, length + PROBES, SIZE))
    keys, values, queries = drawn[0, :, :length], drawn[1, :, :length], drawn[2]
    if kind == "drift":
        keys = keys + ALONG_KEYS * axis * (rng.random((HEADS, length, 1)) < IMPORTANT)
        queries = queries + ALONG_QUERIES * axis
    arrays = {"keys": keys, "values": values, "queries": queries[:, :length]}
    made = {name: mx.array(x[None].astype(np.float32)) for name, x in arrays.items()}
    weights = np.einsum("hpd,hnd->hpn", queries[:, length:], keys) / np.sqrt(SIZE)
    weights = np.exp(weights - weights.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return made | {"axis": axis[:, 0] if kind == "drift" else None, "weights": weights}


def _arms(text: dict, budget: int, sinks: int) -> dict[str, dict]:
    """Retained share, error and cosine per head `[HEADS]`, by arm."""
    moments = QueryMoments(HEADS, SIZE)
    moments.add(*(np.array(x) for x in chunk_moments(text["queries"])), text["queries"].shape[2])
    filters = drift(moments, HEADS).q_filters
    layer = Layer(0, HEADS, SIZE, HEADS, q_filters=mx.array(filters.astype(np.float32)))
    found = {}
    for arm, spec in ARMS.items():
        method = make_method(*spec)
        cache_type = ObservingKVCache if method.needs_queries else EvictingKVCache
        cache = cache_type(method, layer, budget, sinks, 0)
        kv = cache.update_and_fetch(text["keys"], text["values"])
        if method.needs_queries:
            cache.observe(text["queries"], *kv, scale=SIZE**-0.5, mask="causal", sinks=None)
        direction = {"qfilters": filters}.get(arm)
        if arm.startswith("keysvd"):
            direction = np.array(cache.state[2])[0]
        found[arm] = _judge(text, np.array(cache.positions)[0], direction)
    plus, minus = found["keysvd +1"], found["keysvd -1"]
    better = plus["retained"] >= minus["retained"]
    found[BEST] = {
        k: None if plus[k] is None else np.where(better, plus[k], minus[k]) for k in plus
    }
    return found


def _judge(text: dict, kept: np.ndarray, direction) -> dict:
    mask = np.zeros((HEADS, 1, text["weights"].shape[-1]))
    np.put_along_axis(mask, kept[:, None], 1.0, axis=-1)
    held = text["weights"] * mask
    share = held.sum(axis=-1, keepdims=True)
    values = np.array(text["values"])[0]
    full, left = text["weights"] @ values, (held / share) @ values
    error = np.linalg.norm(left - full, axis=-1) / np.linalg.norm(full, axis=-1)
    known = direction is not None and text["axis"] is not None
    cosine = np.abs((direction * text["axis"]).sum(axis=-1)) if known else None
    return {"retained": share.mean(axis=(1, 2)), "error": error.mean(axis=1), "cosine": cosine}


def _over_seeds(found: list[dict]) -> dict:
    retained = [heads["retained"].mean() for heads in found]
    mean, low, high = mean_t(retained)
    cosine = [heads["cosine"].mean() for heads in found if heads["cosine"] is not None]
    return {
        "retained": mean,
        "low": low,
        "high": high,
        "output_error": float(np.mean([heads["error"].mean() for heads in found])),
        "cosine": float(np.mean(cosine)) if cosine else None,
        "n_seeds": len(found),
        "n_heads": HEADS,
    }
