"""What each method that watches attention promises beside the rows it keeps."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from obvious_methods import History, assert_same_rows
from recorded import KV_HEADS, OPTIONS, Recorder, llama, run, small, tokens

from qfilters.cache import RANKS
from qfilters.errors import UsageError
from qfilters.fork import prefill
from qfilters.methods import METHODS, Layer, make_method
from qfilters.methods.observing import Attention
from qfilters.prompt_cache import make_prompt_cache

WATCHING = [name for name, cls in METHODS.items() if cls.needs_queries]


def attention(keys, queries, values=None, end=None, mask="causal", **facts):
    """An attention call over rows that stand in temporal order from position 0."""
    n = keys.shape[2]
    positions = mx.broadcast_to(mx.arange(n, dtype=mx.int32), keys.shape[:3])
    values = keys if values is None else values
    call = (queries, keys, values, keys.shape[3] ** -0.5, mask, None, positions)
    return Attention(*call, facts.get("slot"), end or n)


# --- h2o, tova, snapkv ---


@pytest.mark.parametrize("heads", KV_HEADS)
def test_h2o_mass_is_queries_seen_times_group_size(heads):
    model, ids = llama(heads), tokens(40, 2)
    caches = make_prompt_cache(model, "h2o", 64, 2, 4)
    for seen in run(model, caches, ids, [11, 1, 1, 20, 7]):
        for cache in caches:
            mass = np.array(cache.state[0][RANKS]).sum(-1)
            np.testing.assert_allclose(mass, seen * 4 / KV_HEADS[heads], rtol=1e-5)
    done = prefill(model, ids[0].tolist(), [make_method("h2o")], step_size=7)
    for layer in done.layers:
        mass = done.caches[layer.index].scores(make_method("h2o")).sum(axis=-1)
        np.testing.assert_allclose(np.array(mass), 40 * 4 / KV_HEADS[heads], rtol=1e-5)


def test_tova_keeps_one_set_for_all_heads_and_always_the_last_row():
    model, ids = llama("MHA"), tokens(40, 2)
    caches = make_prompt_cache(model, "tova", 8, 0, 0)
    for seen in run(model, caches, ids, [20, 1, 1, 1, 17]):
        for cache in caches:
            kept = np.array(cache.positions)
            assert (kept == kept[:, :1]).all() and (kept[..., -1] == seen - 1).all()


def test_snapkv_pools_with_zeros_outside_and_nothing_of_the_window():
    method = make_method("snapkv", {"window": 2, "pooling": 5})
    ring = mx.array([3.0, 0, 0, 0, 6, 1000, 1000]).reshape(1, 1, 7, 1) * mx.array([0.5, 1.5])
    positions = mx.arange(7, dtype=mx.int32).reshape(1, 1, 7)
    found = np.array(method.rank_by(ring, positions, 7))[0, 0]
    np.testing.assert_allclose(found[:5], np.array([3, 3, 9, 6, 6]) / 5, rtol=1e-6)
    order = [4, 0, 6, 2, 5, 1, 3]
    mixed = method.rank_by(ring[:, :, order], positions[:, :, order], 7)
    np.testing.assert_array_equal(np.array(mixed)[0, 0], found[order])


def test_snapkv_without_pooling_is_the_mean_of_the_windows_attention():
    keys, queries = mx.random.normal((1, 2, 9, 4)), mx.random.normal((1, 4, 9, 4))
    method = make_method("snapkv", {"window": 3, "pooling": 1})
    seen = attention(keys, queries)
    ring, _ = method.watch(mx.zeros((1, 2, 9, 3)), seen, None, None)
    history = History(method, (9, 0, 0))
    arrays = [np.array(x) for x in (queries, keys, keys)]
    history.call(*arrays, 0.5, np.zeros((1, 2, 0), dtype=int))
    found = np.array(method.rank_by(ring, seen.positions, 9))
    np.testing.assert_allclose(found[..., :6], history.score_snapkv()[..., :6], atol=1e-6)


# --- expected attention ---


def test_expected_attention_without_spread_or_rotation_is_a_softmax():
    """Equal queries, a rotation by nothing: softmax of `mu . k`, times the norm of the value."""
    layer = Layer(0, 2, 8, 4, rope=nn.RoPE(8, scale=0.0))
    mu, keys = mx.random.normal((1, 4, 1, 8)), mx.random.normal((1, 2, 11, 8))
    values, queries = mx.random.normal((1, 2, 11, 8)), mx.repeat(mu, 11, axis=2)
    for skip in (0, 4):
        method = make_method("expected_attention", {"skip": skip})
        seen = attention(keys, queries, values)
        scores, _ = method.watch(mx.zeros((1, 2, 11)), seen, None, layer)
        logits = (mu.reshape(1, 2, 2, 1, 8) * keys[:, :, None]).sum(-1)[..., skip:] / 8**0.5
        wanted = mx.softmax(logits, axis=-1).mean(axis=2)
        wanted = wanted * mx.linalg.norm(values[:, :, skip:], axis=-1)
        np.testing.assert_allclose(np.array(scores[..., skip:]), np.array(wanted), rtol=1e-4)
        assert (np.array(scores[..., :skip]) == np.inf).all()


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 0.5},
        {"covariance": False},
        {"value_norm": False},
        {"skip": 0},
        {"n_future": 1, "skip": 9, "epsilon": 0.01, "value_norm": False},
    ],
    ids=str,
)
def test_options_of_expected_attention(options):
    model, ids = llama("GQA"), tokens(47)
    method = make_method("expected_attention", {"n_future": 24, **options})
    caches = [Recorder(c) for c in make_prompt_cache(model, method, 16, 2, 4)]
    histories = [History(method, (16, 2, 4)) for _ in caches]
    kept = [np.zeros((1, 2, 0), dtype=int) for _ in caches]
    for _ in run(model, caches, ids, [9, 20, 1, 1, 1, 15]):
        for i, (cache, history) in enumerate(zip(caches, histories, strict=True)):
            history.call(*cache.call(), kept[i])
            scores, ideal = history.choose()
            kept[i] = np.array(cache.positions)
            assert_same_rows(kept[i], ideal, scores)


def test_expected_attention_keeps_its_moments_about_the_mean():
    """Queries far from the origin: a difference of squares would lose the covariance."""
    drift, n = mx.array([300.0] * 8), 64
    queries = mx.random.normal((1, 4, n, 8)) * 0.01 + drift
    layer = Layer(0, 2, 8, 4, rope=nn.RoPE(8, scale=0.0))
    method, keys = make_method("expected_attention", {"skip": 0}), mx.random.normal((1, 2, n, 8))
    carry, statistic = None, mx.zeros((1, 2, n))
    for first in range(0, n, 16):
        seen = attention(keys[:, :, : first + 16], queries[:, :, first : first + 16])
        _, carry = method.watch(statistic[..., : first + 16], seen, carry, layer)
    plain = np.array(queries, dtype=np.float64)
    wanted = np.stack([np.cov(q.T, bias=True) for q in plain[0]])
    np.testing.assert_allclose(np.array(carry.square)[0] / n, wanted, atol=3e-6)
    np.testing.assert_allclose(np.array(carry.mean), plain.mean(2), rtol=1e-6)


# --- models with more in their attention ---


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma3_text"])
@pytest.mark.parametrize("name", ["h2o", "tova", "snapkv"])
def test_learned_sinks_scales_and_sliding_layers(kind, name):
    model, ids = tiny.make(kind), tokens(50)
    for layer in model.layers if kind == "gpt_oss" else []:
        layer.self_attn.sinks *= 10
        layer.self_attn.q_proj.weight *= 6
    caches = make_prompt_cache(model, small(name), 16, 2, 4)
    ours = [i for i, c in enumerate(caches) if hasattr(c, "budget")]
    assert 0 < len(ours) < len(caches)
    for i in ours:
        caches[i] = Recorder(caches[i])
    histories = {i: History(small(name), (16, 2, max(4, small(name).window))) for i in ours}
    kept = {i: np.zeros((1, 2, 0), dtype=int) for i in ours}
    for _ in run(model, caches, ids, [13, 1, 1, 20, 1, 1, 13]):
        for i in ours:
            learned = caches[i].facts["sinks"]
            assert (learned is not None) == (kind == "gpt_oss")
            learned = None if learned is None else np.array(learned, dtype=np.float64)
            histories[i].call(*caches[i].call(), kept[i], learned)
            scores, ideal = histories[i].choose()
            kept[i] = np.array(caches[i].positions)
            assert_same_rows(kept[i], ideal, scores)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("snapkv", {"window": 0}, "window=0 is not valid"),
        ("snapkv", {"pooling": 4}, "pooling=4 is not valid: an odd number"),
        ("pyramidkv", {"beta": 0.5}, "beta=0.5 is not valid"),
        ("chunkkv", {"chunk": 0}, "chunk=0 is not valid"),
        ("chunkkv", {"chunk": True}, "chunk=True is not valid"),
        ("expected_attention", {"n_future": 0}, "n_future=0 is not valid"),
        ("expected_attention", {"epsilon": -1}, "epsilon=-1 is not valid"),
        ("expected_attention", {"covariance": 1}, "covariance=1 is not valid: true or false"),
        ("expected_attention", {"skip": -1}, "skip=-1 is not valid"),
        ("tova", {"window": 3}, "tova has no option 'window'"),
        ("h2o", {"recent": 3}, "h2o has no option 'recent'"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(UsageError, match=message):
        make_method(name, options)


def test_defaults_are_those_of_the_papers():
    snap = make_method("snapkv")
    assert (snap.window, snap.pooling) == (32, 5)
    assert make_method("pyramidkv").beta == 20 and make_method("chunkkv").chunk == 20
    expected = make_method("expected_attention")
    assert (expected.n_future, expected.epsilon, expected.skip) == (512, 0.0, 4)
    assert expected.covariance and expected.value_norm and make_method("tova").window == 1
    assert set(OPTIONS) <= set(METHODS)
