"""The tap: what it hands over is what met in attention, and it leaves no trace."""

import importlib
import io

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm.models.cache import KVCache

from qfilters.calibration import calibrate
from qfilters.estimator import QueryMoments, drift
from qfilters.plan import make_model_cache
from qfilters.tap import ATTENTION, install, tapped

CAPTURED = ["llama", "qwen2", "qwen3", "gemma3_text", "phi3", "gpt_oss"]
TOKENS = mx.array([[(7 * i * i + 3 * i) % 250 for i in range(24)]])


class Watcher(KVCache):
    """A plain cache that keeps what it is shown."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def observe(self, queries, keys, values, **facts):
        self.shown.append((queries, keys, values, facts))


def namespace(kind):
    return importlib.import_module(f"mlx_lm.models.{kind}")


def hook(monkeypatch, kind):
    """Our own record of every attention call, made without the tap."""
    original, calls = getattr(namespace(kind), ATTENTION), []

    def recorder(queries, keys, values, cache, scale, mask, sinks=None):
        calls.append((queries, keys, values, cache, {"scale": scale, "mask": mask, "sinks": sinks}))
        return original(queries, keys, values, cache, scale, mask, sinks)

    monkeypatch.setattr(namespace(kind), ATTENTION, recorder)
    return calls


def caches_of(model, cls=Watcher):
    return [cls() if type(c) is KVCache else c for c in make_model_cache(model)]


@pytest.mark.parametrize("kind", CAPTURED)
def test_what_is_shown_is_what_met_in_attention(kind, monkeypatch):
    model = tiny.make(kind)
    calls = hook(monkeypatch, kind)
    caches = caches_of(model)
    with tapped(model):
        for start in (0, 11, 23):
            model(TOKENS[:, start : start + 12], cache=caches)
    watched = [c for c in caches if isinstance(c, Watcher)]
    assert watched and all(len(c.shown) == 3 for c in watched)
    for cache in watched:
        met = [call for call in calls if call[3] is cache]
        for shown, (*arrays, _, facts) in zip(cache.shown, met, strict=True):
            assert all(mx.array_equal(a, b) for a, b in zip(shown[:3], arrays, strict=True))
            assert shown[3] == facts or kind == "gpt_oss"
            assert shown[3]["sinks"] is facts["sinks"]


@pytest.mark.parametrize("kind", CAPTURED)
def test_calibration_sees_what_met_in_attention(kind, monkeypatch):
    """Rotated, normalised, with biases: filters from a record of our own are the same."""
    model = tiny.make(kind)
    calls = hook(monkeypatch, kind)
    filters = calibrate(model, None, [TOKENS[0].tolist()], step_size=10)
    # The first pass is the probe's, on two tokens.
    seen = [c for c in calls if c[0].shape[2] != 2 and hasattr(c[3], "observe")]
    for i, index in enumerate(filters.layer_index.tolist()):
        queries = [q for q, *_ in seen[i :: len(filters.layer_index)]]
        queries = np.concatenate([np.array(q, np.float64) for q in queries], axis=2)[0]
        assert queries.shape[1] == TOKENS.shape[1], index
        made = QueryMoments(queries.shape[0], queries.shape[2])
        made.add(queries.swapaxes(1, 2) @ queries, queries.sum(axis=1), queries.shape[1])
        wanted = drift(made, filters.q_filters.shape[1])
        np.testing.assert_allclose(filters.q_filters[i], wanted.q_filters, atol=1e-4)
        np.testing.assert_allclose(filters.query_mean[i], wanted.query_mean, atol=1e-5)


def test_learned_sinks_come_along_where_the_cache_is_positional():
    model = tiny.make("gpt_oss")
    caches = caches_of(model)
    with tapped(model):
        model(TOKENS, cache=caches)
    layer = model.layers[1].self_attn
    (_, _, _, facts) = caches[1].shown[0]
    assert facts["sinks"] is layer.sinks and facts["scale"] == layer.sm_scale
    assert facts["mask"] == "causal"


@pytest.mark.parametrize("kind", [*CAPTURED, "qwen3_next", "deepseek_v3"])
def test_logits_do_not_change(kind):
    model = tiny.make(kind)
    wanted = model(TOKENS, cache=make_model_cache(model))
    with tapped(model):
        plain = model(TOKENS, cache=make_model_cache(model))
        watched = model(TOKENS, cache=caches_of(model))
        without = model(TOKENS)
    assert mx.array_equal(plain, wanted) and mx.array_equal(watched, wanted)
    assert mx.allclose(without, wanted, atol=1e-5)


def test_statistics_are_computed_with_the_output():
    class Counting(Watcher):
        def observe(self, queries, *rest, **facts):
            self.total = queries.sum()
            return [self.total]

    model = tiny.make()
    caches = caches_of(model, Counting)
    with tapped(model):
        logits = model(TOKENS, cache=caches)
    graph = io.StringIO()
    mx.export_to_dot(graph, logits)
    assert graph.getvalue().count("Depends") == len(caches)
    assert mx.array_equal(logits, model(TOKENS, cache=make_model_cache(model)))


def test_it_is_single_and_goes_away():
    model, scope = tiny.make(), vars(namespace("llama"))
    original = scope[ATTENTION]
    with tapped(model):
        wrapper = scope[ATTENTION]
        assert wrapper is not original
        with tapped(model):
            assert scope[ATTENTION] is wrapper
            cache = caches_of(model)
            model(TOKENS, cache=cache)
        assert scope[ATTENTION] is wrapper
        assert [len(c.shown) for c in cache] == [1, 1, 1]
    assert scope[ATTENTION] is original


def test_it_goes_away_after_an_exception():
    model, scope = tiny.make(), vars(namespace("llama"))
    original = scope[ATTENTION]
    with pytest.raises(ZeroDivisionError), tapped(model):
        raise ZeroDivisionError
    assert scope[ATTENTION] is original


def test_it_stays_for_those_who_want_it_for_good():
    model, scope = tiny.make(), vars(namespace("llama"))
    original = scope[ATTENTION]
    try:
        with tapped(model):
            taps = install(model)
        assert scope[ATTENTION] is taps[0].wrapper
        assert install(model) == taps
        taps[0].release()
        with tapped(model):
            pass
        assert scope[ATTENTION] is taps[0].wrapper
    finally:
        taps[0].release()
    assert scope[ATTENTION] is original


def test_a_hook_of_somebody_else_is_left_where_it_is():
    from functools import wraps

    model, scope = tiny.make(), vars(namespace("llama"))
    original = scope[ATTENTION]
    try:
        with tapped(model):
            ours = scope[ATTENTION]

            @wraps(ours)
            def theirs(*args, **kwargs):
                return ours(*args, **kwargs)

            scope[ATTENTION] = theirs
        assert scope[ATTENTION] is theirs
        caches = caches_of(model)
        with tapped(model):
            model(TOKENS, cache=caches)
        assert [len(c.shown) for c in caches] == [1, 1, 1], "seen once, not twice"
    finally:
        scope[ATTENTION] = original


def test_only_the_namespaces_of_the_model_are_touched():
    model, other = tiny.make("qwen3"), vars(namespace("llama"))[ATTENTION]
    with tapped(model):
        assert vars(namespace("llama"))[ATTENTION] is other
    with tapped(tiny.make("gemma2")) as nothing:
        assert nothing is None


def test_attention_of_a_parent_class_in_another_file_is_found():
    llama = namespace("llama")

    class Louder(llama.Attention):
        def __call__(self, *args, **kwargs):
            return 2 * super().__call__(*args, **kwargs)

    model = tiny.make("qwen2")
    for layer in model.layers:
        layer.self_attn = Louder(tiny.make("llama").args)
    caches, original = caches_of(model), vars(llama)[ATTENTION]
    with tapped(model):
        model(TOKENS, cache=caches)
    assert all(c.shown for c in caches)
    assert vars(llama)[ATTENTION] is original
