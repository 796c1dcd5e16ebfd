"""Streams of random keys and values, caches to feed them to, and checks of every single call."""

import copy

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from obvious import rows_at, stay

from qfilters.cache import EvictingKVCache
from qfilters.methods import Layer, make_method

H, D, D_V = 2, 4, 3
FIXED = ["qfilters", "qfilters_mean", "random", "knorm", "streaming_llm", "sliding_window"]
AT_INSERTION = ["none", *FIXED, "qfilters_keysvd", "keydiff"]
WATCHING = [
    "h2o",
    "tova",
    "snapkv(window=4)",
    "pyramidkv(window=4)",
    "chunkkv(window=4, chunk=3)",
    "expected_attention",
]


def make_cache(method="knorm", budget=8, sinks=1, recent=2, seed=0, **facts):
    rng = np.random.default_rng(seed)
    layer = Layer(
        index=3,
        n_kv_heads=H,
        head_dim=D,
        n_heads=2 * H,
        q_filters=mx.array(rng.normal(size=(H, D)).astype(np.float32)),
        query_mean=mx.array(rng.normal(size=(2 * H, D)).astype(np.float32)),
        **facts,
    )
    method = make_method(method) if isinstance(method, str) else method
    return EvictingKVCache(method, layer, budget, sinks, recent)


def stream(n, batch=1, dtype=mx.float32, seed=0, first=None):
    """Keys `[B, H, n, D]` and values `[B, H, n, D_V]`; a value begins with its position.

    `first`: the first component of the keys, `[B, H, n]`.
    """
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(batch, H, n, D)).astype(np.float32)
    values = rng.normal(size=(batch, H, n, D_V)).astype(np.float32)
    values[..., 0] = np.arange(n)
    if first is not None:
        keys[..., 0] = first
    return mx.array(keys).astype(dtype), mx.array(values).astype(dtype)


def bits(x: mx.array) -> np.ndarray:
    """The bit patterns: NaN equals itself and -0 differs from +0."""
    return np.array(x.view(mx.uint32 if x.dtype.size == 4 else mx.uint16))


def should_stay(cache, keys, seen) -> np.ndarray:
    """The positions that must be held after `seen` tokens of a stream, `[B, H, K]`."""
    if not cache.method.evicts:
        return np.broadcast_to(np.arange(seen), (*keys.shape[:2], seen))
    positions = mx.arange(keys.shape[2], dtype=mx.int32)
    scores = np.array(cache.method.score(keys, positions, cache.layer, None))
    return stay(scores[..., :seen], cache.budget, cache.sinks, cache.recent)


def feed_checked(cache, keys, values, sizes, strided=False):
    """Feed a stream in chunks; after each, check what was returned, what stayed, and the counts."""
    all_keys, all_values = bits(keys), bits(values)
    kept = np.zeros((*keys.shape[:2], 0), dtype=int)
    start = cache.offset
    for size in sizes:
        stop = start + size
        new = [x[:, :, start:stop] for x in (keys, values)]
        if strided:
            new = [mx.contiguous(x.swapaxes(1, 2)).swapaxes(1, 2) for x in new]
        got_keys, got_values = cache.update_and_fetch(*new)
        assert got_keys.dtype == keys.dtype and got_values.dtype == values.dtype

        seen = np.array(got_values[..., 0].astype(mx.float32)).astype(int)
        fresh = np.broadcast_to(np.arange(start, stop), (*keys.shape[:2], size))
        np.testing.assert_array_equal(
            np.sort(seen), np.concatenate([kept, fresh], -1), "attention sees stored and new rows"
        )
        if size > 1:
            np.testing.assert_array_equal(seen[..., -size:], fresh, "new rows last, in order")
        np.testing.assert_array_equal(bits(got_keys), rows_at(all_keys, seen))
        np.testing.assert_array_equal(bits(got_values), rows_at(all_values, seen))

        kept = should_stay(cache, keys, stop)
        np.testing.assert_array_equal(np.array(cache.positions), kept)
        assert cache.offset == cache.tokens_seen == stop
        assert cache.tokens_kept == cache.size() == kept.shape[-1]
        if cache.method.evicts:
            assert max(x.shape[2] for x in cache.state[0]) <= cache.budget + 1
        start = stop


def live_rows(cache):
    """Positions, keys and values that stay, in temporal order: what a chunk of two would see."""
    batch, dtype = cache.positions.shape[0], cache.state[0][0].dtype
    probe = [mx.zeros((batch, H, 2, d), dtype=dtype) for d in (D, D_V)]
    keys, values = copy.deepcopy(cache).update_and_fetch(*probe)
    return np.array(cache.positions), bits(keys[:, :, :-2]), bits(values[:, :, :-2])


# --- token streams through models ---

TOKENS = mx.array(np.random.default_rng(0).integers(0, 250, (1, 400)))


def plain_caches(model):
    made = getattr(type(model), "make_cache", None)
    return made(model) if made else [KVCache() for _ in model.layers]


def feed(model, caches, sizes, start=0, tokens=TOKENS):
    """Logits `[B, n, V]` of consecutive chunks."""
    out = []
    for size in sizes:
        out.append(model(tokens[:, start : start + size], cache=caches))
        mx.eval(out[-1], [c.state for c in caches])
        start += size
    return np.array(mx.concatenate(out, axis=1).astype(mx.float32))
