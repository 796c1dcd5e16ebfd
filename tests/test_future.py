"""Hindsight: what later tokens attend to, and that nothing keeps more of it than the oracle."""

import mlx.core as mx
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import dense_histories, future, llama, small, tokens

from qfilters import calibrate
from qfilters.errors import ModelError, UsageError
from qfilters.fork import Arm, prefill
from qfilters.future import future_attention
from qfilters.methods import METHODS
from qfilters.ppl import evaluate_ppl
from qfilters.prompt_cache import make_prompt_cache


@pytest.mark.parametrize("heads", ["MHA", "GQA", "MQA"])
@pytest.mark.parametrize("step", [1, 7, 64])
def test_future_attention_is_the_lower_triangle_of_the_dense_model(heads, step):
    model, ids = llama(heads), tokens(40)
    dense = dense_histories(model, ids, [40])
    for since in (0, 1, 13, 39):
        found = future_attention(model, ids[0].tolist(), step, since=since)
        for i, history in enumerate(dense):
            np.testing.assert_allclose(np.array(found[i]), future(history, since), atol=2e-4)


def test_mass_of_a_whole_text_is_one_per_query_but_for_what_goes_to_itself():
    model, ids = llama("GQA"), tokens(30)
    for i, history in enumerate(dense_histories(model, ids, [30])):
        own = history.per_kv_head(np.diagonal(history.weights, axis1=2, axis2=3)).sum((2, 3))[0]
        total = np.array(future_attention(model, ids[0].tolist())[i]).sum(-1)
        np.testing.assert_allclose(total, 30 * history.group - own, rtol=1e-5)


N, MORE = 60, 12


@pytest.fixture(scope="module")
def contexts():
    """Prefills of all methods, and the attention that the continuation really pays."""
    model = llama("GQA")
    filters = calibrate(model, None, [tokens(64, seed=9)[0].tolist()])
    methods = [small(name) for name in METHODS if name != "none"]
    made = []
    for seed in range(3):
        ids = tokens(N + MORE, seed=seed)
        paid = [future(h, since=N)[:, :N] for h in dense_histories(model, ids, [N + MORE])]
        ids = ids[0].tolist()
        done = prefill(model, ids[:N], methods, filters, continuation=ids[N:], step_size=25)
        made.append((done, paid))
    return methods, made


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_after_a_prefill_no_method_keeps_more_of_what_is_to_come_than_the_oracle(contexts, data):
    """With equally many rows and the same protected ones, in every layer and KV head."""
    methods, made = contexts
    done, paid = made[data.draw(st.integers(0, len(made) - 1))]
    method = data.draw(st.sampled_from([m for m in methods if m.name != "oracle"]))
    oracle = next(m for m in methods if m.name == "oracle")
    sinks = data.draw(st.integers(0, 6)) if method.max_sinks is None else 0
    recent = data.draw(st.integers(method.window, 10))
    budget = data.draw(st.integers(sinks + recent + 1, N))
    theirs = done.kept(Arm(method, budget, sinks, recent))
    # Layers may differ in rows: pyramidkv is compared layer by layer, as all are.
    for i, rows in enumerate(theirs):
        protected = min(recent, rows.shape[2] - sinks)
        if rows.shape[2] == sinks + protected:
            continue
        best = done.kept(Arm(oracle, rows.shape[2], sinks, protected))[i]
        kept, most = (
            np.take_along_axis(paid[i], np.array(x)[0], axis=-1).sum(-1) for x in (rows, best)
        )
        assert (most >= kept - 1e-5).all(), method


def test_the_oracle_gains_over_every_method_in_all(contexts):
    """Not only never worse: better, or it would not look ahead at all."""
    methods, made = contexts
    kept = {}
    for method in methods:
        if method.name == "pyramidkv":
            continue
        arm = Arm(method, 20, 0, 6)
        kept[method.name] = sum(
            np.take_along_axis(p, np.array(rows)[0], axis=-1).sum()
            for done, paid in made
            for rows, p in zip(done.kept(arm), paid, strict=True)
        )
    best = kept.pop("oracle")
    assert best > 1.02 * max(kept.values()), kept


def test_the_oracle_needs_the_text_in_advance():
    model, ids = llama("GQA"), tokens(30)[0].tolist()
    with pytest.raises(UsageError, match="oracle needs the text in advance"):
        make_prompt_cache(model, "oracle", 16)
    with pytest.raises(UsageError, match="oracle needs the tokens that follow: pass continuation="):
        prefill(model, ids, [small("oracle")])
    for _ in range(2):
        result = evaluate_ppl(model, [ids, ids[::-1]], method="oracle", budget=16)
        assert np.isfinite(result.nll).all()
        assert result.accounts[-1]["tokens_kept"] == 16


def test_a_model_whose_attention_is_not_seen_has_no_oracle():
    model = tiny.make("gemma2")
    with pytest.raises(ModelError, match=r"no layer of this model can serve oracle"):
        evaluate_ppl(model, [list(range(30))], method="oracle", budget=16)


def test_future_attention_leaves_no_trace():
    model, ids = llama("GQA"), tokens(20)[0].tolist()
    row = mx.array(ids)[None]
    before = model(row)
    future_attention(model, ids)
    assert mx.array_equal(before, model(row))
