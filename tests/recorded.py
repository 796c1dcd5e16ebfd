"""Caches that write down what met in attention, and random token streams through tiny models."""

import mlx.core as mx
import numpy as np
import tiny
from obvious_methods import History
from streams import plain_caches

from qfilters.methods import make_method
from qfilters.tap import tapped

# Small enough for short streams; the names are the methods' own.
OPTIONS = {
    "snapkv": {"window": 5, "pooling": 3},
    "pyramidkv": {"window": 3, "pooling": 3, "beta": 3},
    "chunkkv": {"window": 5, "pooling": 3, "chunk": 4},
    "expected_attention": {"n_future": 24},
}
METHODS = [
    "keydiff",
    "h2o",
    "tova",
    "snapkv",
    "pyramidkv",
    "chunkkv",
    "expected_attention",
    "oracle",
]
KV_HEADS = {"MHA": 4, "GQA": 2, "MQA": 1}


def small(name):
    return make_method(name, OPTIONS.get(name))


def llama(heads="GQA", dtype=mx.float32, layers=3):
    """A tiny model whose attention is not flat: queries that matter."""
    model = tiny.make(
        num_key_value_heads=KV_HEADS[heads], num_hidden_layers=layers, dtype=mx.float32
    )
    for layer in model.layers:
        layer.self_attn.q_proj.weight *= 4
        layer.self_attn.k_proj.weight *= 4
    model.set_dtype(dtype)
    return model


def tokens(n, batch=1, seed=0):
    return np.random.default_rng(seed).integers(0, 250, (batch, n))


class Recorder:
    """Stands before a cache and keeps, for the last call, what came in and what went out."""

    def __init__(self, cache):
        self.cache = cache

    def update_and_fetch(self, keys, values):
        self.new = keys, values
        self.rows = self.cache.update_and_fetch(keys, values)
        return self.rows

    def observe(self, queries, keys, values, **facts):
        self.queries, self.facts = queries, facts
        if hasattr(self.cache, "observe"):
            return self.cache.observe(queries, keys, values, **facts)
        return []

    def __getattr__(self, name):
        return getattr(self.cache, name)

    def call(self):
        """Queries, new keys and values of the last call, float64, and the scale."""
        arrays = [np.array(x.astype(mx.float32)) for x in (self.queries, *self.new)]
        return (*arrays, self.facts["scale"])


def run(model, caches, ids, sizes):
    """Feed chunks; after each, everything is evaluated and control comes back."""
    start = 0
    with tapped(model):
        for size in sizes:
            logits = model(mx.array(ids[:, start : start + size]), cache=caches)
            mx.eval(logits, [c.state for c in caches])
            start += size
            yield start


def dense_histories(model, ids, sizes, method=None):
    """The layers' `History` of a dense run: nothing evicted."""
    caches = [Recorder(c) for c in plain_caches(model)]
    histories = [History(method, (None, 0, 0)) for _ in caches]
    for _ in run(model, caches, ids, sizes):
        for cache, history in zip(caches, histories, strict=True):
            held = 0 if history.keys is None else history.seen
            shape = (*cache.new[0].shape[:2], held)
            history.call(*cache.call(), np.broadcast_to(np.arange(held), shape))
    return histories


def future(history, since=0):
    """`[H_kv, n]`: attention that queries from position `since` on pay to earlier rows."""
    n = history.seen
    later = np.tril(np.ones((n, n)), -1)
    later[:since] = 0
    return (history.per_kv_head(history.weights) * later).sum(axis=(2, 3))[0]
