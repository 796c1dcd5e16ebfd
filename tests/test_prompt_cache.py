"""Caches for a whole model: what is refused, what each layer gets, what is reported."""

import dataclasses
import warnings

import mlx.core as mx
import mlx_lm.models.cache as mlx_cache
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten
from streams import AT_INSERTION, WATCHING

from qfilters import Filters, calibrate, make_prompt_cache
from qfilters.cache import EvictingKVCache
from qfilters.errors import FilterError, ModelError, QFiltersError, QFiltersWarning, UsageError
from qfilters.methods import make_method
from qfilters.plan import layer_plan
from qfilters.prompt_cache import account, as_method

ROWS = [list(range(1, 60)), list(range(200, 100, -1))]


@pytest.fixture(scope="module")
def model():
    return tiny.make()


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, ROWS)


def run(model, caches, n, start=0):
    tokens = mx.array([[(7 * i) % 250 for i in range(start, start + n)]])
    mx.eval(model(tokens, cache=caches), [c.state for c in caches])


# --- refused before any work ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "^budget 0 leaves no room .*needs at least"),
        ({"budget": -5}, "^budget must be a whole number of rows, not -5$"),
        ({"budget": 64.0}, "^budget must be a whole number of rows, not 64.0$"),
        ({"budget": "64"}, "^budget must be a whole number of rows, not '64'$"),
        ({"budget": None}, "^budget must be a whole number of rows, not None$"),
        ({"budget": True}, "^budget must be a whole number of rows, not True$"),
        ({"sinks": -1}, "^sinks must be a whole number of rows, not -1$"),
        ({"sinks": None}, "^sinks must be"),
        ({"recent": -1}, "^recent must be"),
        ({"recent": 2.5}, "^recent must be"),
        ({"budget": 20, "sinks": 4, "recent": 16}, "^budget 20 leaves no room .*at least 21"),
        ({"budget": 20, "sinks": 20, "recent": 0}, "^budget 20 leaves no room .*at least 21"),
        ({"budget": 5, "sinks": 4}, "^budget 5 leaves no room"),
        ({"method": "snapkvv"}, "^unknown method 'snapkvv'"),
        ({"method": "knorm(p=2)"}, "has no option 'p'"),
        ({"method": "knorm, random"}, "names 2 methods where one is wanted"),
        ({"method": "qfilters_keysvd(sign=3)"}, "sign=3 is not valid: 1 or -1"),
        ({"method": "qfilters"}, "^method qfilters needs filters: pass filters="),
        ({"method": "qfilters_mean"}, "^method qfilters_mean needs filters"),
        ({"method": 7}, "7 is neither a method's name"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(model, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        make_prompt_cache(model, **({"method": "knorm", "budget": 64} | options))
    assert "\n" not in str(caught.value)


def test_room_for_one_row_is_enough(model):
    for budget, sinks, recent in ((21, 4, 16), (1, 0, 0), (1, 0, None), (6, 4, None)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QFiltersWarning)
            caches = make_prompt_cache(model, "knorm", budget, sinks, recent)
        run(model, caches, 40)
        assert {c.tokens_kept for c in caches} == {budget}


def test_filters_of_another_model_and_missing_files_are_refused(model, filters, tmp_path):
    other = tiny.make(seed=1)
    with pytest.raises(FilterError, match="fingerprint"):
        make_prompt_cache(other, "qfilters", 64, filters=filters)
    with pytest.raises(FilterError, match="no filters at"):
        make_prompt_cache(model, "qfilters", 64, filters=tmp_path / "none.npz")


def test_published_filters_serve_qfilters_but_carry_no_mean_queries(model, filters):
    published = Filters(filters.q_filters, filters.layer_index)
    with pytest.warns(QFiltersWarning, match="no fingerprint"):
        caches = make_prompt_cache(model, "qfilters", 16, filters=published)
    run(model, caches, 30)
    with pytest.raises(FilterError, match="method qfilters_mean needs query_mean, which"):
        make_prompt_cache(model, "qfilters_mean", 16, filters=published)


@pytest.mark.parametrize("method", ["none", "knorm", "qfilters", "h2o"])
def test_a_model_whose_layers_cannot_evict_is_refused(method, filters):
    latent = tiny.make("deepseek_v3")
    with pytest.raises(QFiltersError) as caught:
        make_prompt_cache(latent, method, 64, filters=filters)
    assert isinstance(caught.value, (ModelError, FilterError)) and "\n" not in str(caught.value)


# --- what is made ---


def test_methods_may_be_given_in_every_form(model, filters, tmp_path):
    path = filters.save(tmp_path / "f.npz")
    forms = [
        "qfilters_keysvd(sign=-1)",
        {"qfilters_keysvd": {"sign": -1}},
        make_method("qfilters_keysvd", {"sign": -1}),
    ]
    made = {make_prompt_cache(model, form, 64)[0].method for form in forms}
    assert made == {make_method("qfilters_keysvd", {"sign": -1})}
    cache = make_prompt_cache(model, "qfilters", 64, filters=str(path))[1]
    np.testing.assert_array_equal(np.array(cache.layer.q_filters), filters.q_filters[1])


def test_each_layer_gets_what_its_method_reads_and_no_more(model, filters):
    for method in [*AT_INSERTION, *WATCHING]:
        caches = make_prompt_cache(model, method, 64, filters=filters)
        needed = as_method(method).needs_filters
        for i, cache in enumerate(caches):
            assert (cache.layer.index, cache.layer.n_kv_heads, cache.layer.n_heads) == (i, 2, 4)
            for name in ("q_filters", "query_mean"):
                found = getattr(cache.layer, name)
                if needed == name:
                    np.testing.assert_array_equal(np.array(found), getattr(filters, name)[i])
                else:
                    assert found is None


def test_recent_is_a_quarter_of_the_budget_unless_said(model):
    cache = make_prompt_cache(model, "knorm", 64)[0]
    assert (cache.budget, cache.sinks, cache.recent) == (64, 4, 16)
    cache = make_prompt_cache(model, "knorm", 64, sinks=2, recent=9)[0]
    assert (cache.budget, cache.sinks, cache.recent) == (64, 2, 9)


def test_an_observation_window_is_protected_and_needs_room(model):
    for recent, in_force in ((2, 6), (9, 9)):
        caches = make_prompt_cache(model, "snapkv(window=6)", 24, sinks=2, recent=recent)
        assert {c.recent for c in caches} == {in_force}
    with pytest.raises(UsageError, match=r"^budget 8 leaves no room .*snapkv keeps its last 6"):
        make_prompt_cache(model, "snapkv(window=6)", 8, sinks=2, recent=0)


def test_sliding_window_has_no_sinks_whatever_was_said(model):
    caches = make_prompt_cache(model, "sliding_window", 16, sinks=15, recent=4)
    run(model, caches, 40)
    assert np.array(caches[0].positions)[0, 0].tolist() == list(range(24, 40))


def test_none_ignores_budget_sinks_and_recent(model):
    caches = make_prompt_cache(model, "none", budget=0, sinks=-3, recent="x")
    run(model, caches, 40)
    assert caches[0].tokens_kept == 40


def test_recent_zero_is_noted_where_it_costs(model):
    with pytest.warns(QFiltersWarning, match="recent 0 is the paper's setting"):
        make_prompt_cache(model, "knorm", 64, recent=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_prompt_cache(model, "streaming_llm", 64, recent=0)
        make_prompt_cache(model, "knorm", 64, recent=1)
        make_prompt_cache(model, "knorm", 64)


def test_the_end_of_the_trained_context_is_noted_once_for_all_layers():
    short = tiny.make(max_position_embeddings=32)
    caches = make_prompt_cache(short, "knorm", 16)
    run(short, caches, 32)
    with pytest.warns(QFiltersWarning, match="past the 32 tokens") as caught:
        run(short, caches, 9, start=32)
    assert len(caught) == 1


def test_a_model_may_make_its_caches_through_us(filters, model):
    owner = tiny.make()
    calls = []

    def make():
        calls.append(1)
        return make_prompt_cache(owner, "knorm", 16)

    owner.make_cache = make
    first, second = mlx_cache.make_prompt_cache(owner), mlx_cache.make_prompt_cache(owner)
    assert len(calls) == 2, "one call each, no recursion"
    assert not {id(c) for c in first} & {id(c) for c in second}
    run(owner, first, 40)
    assert first[0].offset == 40 and second[0].offset == 0 and second[0].empty()


def test_the_class_s_own_caches_are_used_whatever_the_instance_says():
    gemma = tiny.make("gemma3_text", num_hidden_layers=7)
    gemma.make_cache = lambda: pytest.fail("the instance attribute was called")
    caches = make_prompt_cache(gemma, "knorm", 32)
    kinds = [type(c).__name__ for c in caches]
    assert kinds == [p.cache if not p.evicts else "EvictingKVCache" for p in layer_plan(gemma)]
    rotating, ours = "RotatingKVCache", "EvictingKVCache"
    assert kinds == [rotating, rotating, ours, rotating, rotating, ours, rotating]
    run(gemma, caches, 50)
    assert [c.size() for c in caches if type(c).__name__ == ours] == [32, 32]


# --- accounts ---


@pytest.mark.parametrize("method", [*AT_INSERTION, *WATCHING])
def test_account_adds_up_what_is_really_held(model, filters, method):
    caches = make_prompt_cache(model, method, 16, filters=filters)
    run(model, caches, 100)
    run(model, caches, 1, start=100)
    found = account(caches)
    kept = 101 if method == "none" else 16
    held = tree_flatten([c.state for c in caches])
    arrays = [x for _, x in held if isinstance(x, mx.array)]
    row = 2 * 2 * 16 * 4
    needed = as_method(method).needs_filters
    filter_bytes = getattr(filters, needed).nbytes if needed else 0
    expected = {
        "tokens_seen": 101,
        "tokens_kept": kept,
        "rows_evicted": 101 - kept,
        "compression_ratio": 101 / kept,
        "kept_fraction": kept / 101,
        "cache_bytes": sum(x.nbytes for x in arrays),
        "full_cache_bytes": 3 * row * 101,
        "filter_bytes": filter_bytes,
        "bytes_ratio": 3 * row * 101 / (found["cache_bytes"] + filter_bytes),
        "peak_bytes": 3 * row * (101 if method == "none" else 100),
        "nan_rows": 0,
        "layers_evicting": 3,
        "layers_untouched": 0,
        "kernel": "reference",
    }
    assert {name: found[name] for name in expected} == expected


def test_account_of_a_fresh_and_of_a_mixed_list():
    gemma = tiny.make("gemma3_text")
    caches = make_prompt_cache(gemma, "knorm", 16)
    found = account(caches)
    assert (found["tokens_seen"], found["compression_ratio"], found["kept_fraction"]) == (0, 1, 1)
    assert found["cache_bytes"] == 0 and found["bytes_ratio"] == 1
    assert (found["layers_evicting"], found["layers_untouched"]) == (1, 2)
    run(gemma, caches, 10)
    found = account(caches)
    assert found["rows_evicted"] == 0 and found["compression_ratio"] == 1


def test_caches_share_nothing_but_the_layer(model):
    caches = make_prompt_cache(model, "knorm", 16)
    assert all(isinstance(c, EvictingKVCache) for c in caches)
    assert len({id(c.layer) for c in caches}) == 3
    assert dataclasses.is_dataclass(caches[0].layer)
