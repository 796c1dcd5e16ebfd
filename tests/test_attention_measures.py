"""Attention received, rank correlation and retained mass against an explicit softmax in float64."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from recorded import KV_HEADS, dense_histories, llama, small, tokens
from scipy.stats import ttest_1samp

from qfilters import calibrate
from qfilters.attention import ORACLE, observe
from qfilters.errors import UsageError
from qfilters.foresight import rank_correlation, retained_mass, spearman
from qfilters.methods import METHODS, make_method

CONTEXT, LATER, LAYERS = 48, 17, 3
N = CONTEXT + LATER
BUDGETS = (12, 24, CONTEXT, 1000)
NAMES = [name for name in METHODS if name not in ("none", "oracle")]
SINKS, RECENT = 2, 4


@pytest.fixture(scope="module", params=["MHA", "GQA", "MQA"])
def heads(request):
    return request.param


@pytest.fixture(scope="module")
def model(heads):
    return llama(heads)


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, [tokens(64, seed=9)[0].tolist()])


@pytest.fixture(scope="module")
def texts(model, filters):
    """Three texts, as `observe` sees them."""
    methods = [small(name) for name in NAMES]
    facts = {"later": LATER, "budgets": BUDGETS, "sinks": SINKS, "recent": RECENT}
    return [
        observe(model, tokens(N, seed=s)[0].tolist(), methods, filters, step_size=20, **facts)
        for s in range(3)
    ]


@pytest.fixture(scope="module")
def truth(model):
    """Per text `[layers, H_kv, G, N, N]`: the attention of every query to every row."""
    found = []
    for seed in range(3):
        histories = dense_histories(model, tokens(N, seed=seed), [N])
        found.append(np.stack([h.per_kv_head(h.weights)[0] for h in histories]))
    return found


def test_attention_received_is_the_mean_over_later_queries_and_the_group(texts, truth):
    for text, weights in zip(texts, truth, strict=True):
        weights = weights.reshape(-1, *weights.shape[2:])
        for head, row in np.ndindex(text.received.shape):
            paid = weights[head, :, row + 1 :, row]
            assert paid.shape[1] == N - 1 - row
            assert abs(text.received[head, row] - paid.mean()) < 1e-5
        mass = weights[..., CONTEXT:, :CONTEXT].sum(axis=(1, 2))
        np.testing.assert_allclose(text.later_mass, mass, atol=1e-4)
    assert texts[0].received.shape == (LAYERS * texts[0].kv_heads[0], CONTEXT)


def test_retained_mass_is_the_share_of_what_queries_after_the_context_pay(texts, truth):
    """The rows are those of the prefill; here they are chosen once more, from the scores."""
    for text, weights in zip(texts, truth, strict=True):
        mass = weights[..., CONTEXT:, :CONTEXT].sum(axis=(2, 3)).reshape(-1, CONTEXT)
        for (name, budget), share in text.retained.items():
            if name.startswith((ORACLE, "pyramidkv")):
                continue
            scores = text.scores[name].astype(float)
            scores[:, : share.sinks] = np.inf
            scores[:, CONTEXT - share.recent :] = np.inf
            for head in range(len(mass)):
                kept = np.argsort(-scores[head], kind="stable")[:budget]
                assert abs(share.every[head] - mass[head, kept].sum() / mass[head].sum()) < 1e-4
                beyond = kept[kept >= SINKS]
                part = mass[head, beyond].sum() / mass[head, SINKS:].sum()
                assert abs(share.beyond_sinks[head] - part) < 1e-4, (name, budget)


def test_no_method_keeps_more_than_the_oracle_and_all_rows_are_exactly_all(texts):
    names = {name for text in texts for name, _ in text.retained}
    assert ORACLE in names and len(names) == len(NAMES) + 1
    for text in texts:
        for (name, budget), share in text.retained.items():
            if name.startswith("pyramidkv"):  # it has more rows than the budget in early layers
                continue
            best = text.retained[ORACLE, budget]
            assert (share.every <= best.every + 1e-12).all()
            assert (share.beyond_sinks <= best.beyond_sinks + 1e-12).all()
            if budget >= CONTEXT:
                assert (share.every == 1).all() and (share.beyond_sinks == 1).all()
    rows = {(r["method"], r["budget"]): r["retained"] for r in retained_mass(texts)}
    assert rows[ORACLE, 12] > rows["random", 12] + 0.1
    assert rows[ORACLE, 12] < rows[ORACLE, 24] < 1


def test_chunks_of_the_pass_do_not_matter(model, filters, texts):
    methods = [small(name) for name in ("qfilters", "knorm")]
    ids = tokens(N)[0].tolist()
    for step in (1, 7, 100):
        text = observe(model, ids, methods, filters, later=LATER, step_size=step)
        np.testing.assert_allclose(text.received, texts[0].received, atol=1e-5)
        for a, b in zip(text.moments, texts[0].moments, strict=True):
            assert a.count == b.count == N
            np.testing.assert_allclose(a.gram, b.gram, rtol=1e-4, atol=1e-3)
    assert set(text.retained) == set()


def test_tables_are_means_over_heads_and_texts(texts, heads):
    n_heads = LAYERS * KV_HEADS[heads]
    for skip in (0, 4):
        for row in rank_correlation(texts, skip=skip):
            found = np.stack(
                [spearman(t.scores[row["method"]][:, skip:], t.received[:, skip:]) for t in texts]
            )
            assert abs(row["correlation"] - found.mean()) < 1e-12
            assert row["right_sign"] == (found.mean(axis=0) > 0).mean()
            assert row["size"] == pytest.approx(np.abs(found.mean(axis=0)).mean())
            wanted = ttest_1samp(found.mean(axis=1), 0).confidence_interval()
            assert (row["low"], row["high"]) == pytest.approx((wanted.low, wanted.high))
            assert (row["n_texts"], row["n_heads"]) == (3, n_heads)
            assert (row["n_rows"], row["skipped"]) == (CONTEXT - skip, skip)
            by_head = [value for layer in row["by_layer"] for value in layer]
            np.testing.assert_allclose(by_head, found.mean(axis=0))
            after = [
                spearman(t.scores[row["method"]][:, skip:], t.later_mass[:, skip:]) for t in texts
            ]
            assert row["later"] == pytest.approx(np.mean(after), abs=1e-12)
            assert row["later_low"] < row["later"] < row["later_high"]
    for row in retained_mass(texts):
        if row["budget"] >= CONTEXT:
            assert (row["retained"], row["low"], row["high"]) == (1, None, None), "all is all"
        else:
            assert row["low"] <= row["retained"] <= row["high"]
        assert abs(np.mean(row["by_layer"]) - row["retained"]) < 1e-12
        assert (row["n_rows"], row["n_queries"], row["n_texts"]) == (CONTEXT, LATER, 3)
    alone = rank_correlation(texts[:1])[0]
    assert alone["low"] is None and alone["high"] is None


def test_random_foresees_nothing_and_the_truth_foresees_itself(texts):
    rows = {row["method"]: row for row in rank_correlation(texts)}
    heads = rows["random"]["n_heads"]
    assert abs(rows["random"]["correlation"]) < 4 / np.sqrt(CONTEXT * heads)
    known = [dataclasses.replace(t, scores={"self": t.received, "not": -t.received}) for t in texts]
    right, wrong = rank_correlation(known)
    assert right["correlation"] == pytest.approx(1) and right["right_sign"] == 1
    assert wrong["correlation"] == pytest.approx(-1) and wrong["right_sign"] == 0


def test_with_queries_all_along_one_direction_the_filter_is_right_and_its_reverse_wrong():
    """Planted: queries nearly constant before a rotation that hardly turns, so logits are k . q."""
    model = llama("GQA", layers=2)
    rng = np.random.default_rng(0)
    for layer in model.layers:
        attention = layer.self_attn
        drift = mx.array(rng.normal(size=attention.q_proj.weight.shape[0]).astype(np.float32))
        keep, shift = attention.q_proj, 3 * drift
        attention.q_proj = lambda x, keep=keep, shift=shift: 0.05 * keep(x) + shift
        attention.rope = lambda x, offset=0: x
    ids = [tokens(N, seed=s)[0].tolist() for s in range(5, 7)]
    filters = calibrate(model, None, [tokens(64, seed=9)[0].tolist()])
    turned = dataclasses.replace(filters, q_filters=-filters.q_filters)
    method = [make_method("qfilters")]
    for used, sign in ((filters, 1), (turned, -1)):
        (row,) = rank_correlation([observe(model, x, method, used, later=LATER) for x in ids])
        assert row["right_sign"] == (sign > 0)
        assert sign * row["correlation"] > 0.5


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float64, (2, 3, 9), elements=st.sampled_from([0.0, 1.0, 1.5, -2.0, np.inf]))
)
def test_spearman_is_scipys(pair):
    from scipy.stats import spearmanr

    found = spearman(*pair)
    for row, a, b in zip(found, *pair, strict=True):
        if len(set(a)) > 1 and len(set(b)) > 1:
            assert abs(row - spearmanr(a, b).statistic) < 1e-12
        else:
            assert np.isnan(row)
    with_nan = pair.copy()
    with_nan[0, 0, 3] = np.nan
    assert np.isnan(spearman(*with_nan)[0])


def test_a_head_without_a_correlation_is_null(texts):
    scores = texts[0].received.copy()
    scores[0] = 1.0
    (row,) = rank_correlation([dataclasses.replace(texts[0], scores={"flat": scores})])
    assert row["by_layer"][0][0] is None and row["n_heads"] == len(scores) - 1
    assert row["correlation"] == pytest.approx(1)
    (row,) = rank_correlation([dataclasses.replace(texts[0], scores={"flat": scores * 0})])
    assert row["correlation"] is None and row["right_sign"] is None and row["low"] is None


def test_all_numbers_are_of_the_same_heads(texts):
    """A head that has no correlation in one text only counts in none."""
    scores = [text.received.copy() for text in texts]
    scores[0][1] = 1.0
    scores[1][1:2] *= -1
    scores[2][0] *= -1
    known = [
        dataclasses.replace(text, scores={"planted": mine})
        for text, mine in zip(texts, scores, strict=True)
    ]
    (row,) = rank_correlation(known)
    heads = [value for layer in row["by_layer"] for value in layer]
    counted = [value for value in heads if value is not None]
    assert heads[1] is None and row["n_heads"] == len(counted) == len(heads) - 1
    assert row["correlation"] == pytest.approx(np.mean(counted))
    assert row["right_sign"] == np.mean(np.array(counted) > 0)


def test_what_is_refused(model, filters):
    ids = tokens(N)[0].tolist()
    for later in (0, N, -1):
        with pytest.raises(UsageError, match="both parts need at least one"):
            observe(model, ids, [], later=later)
    for name in ("none", "oracle"):
        with pytest.raises(UsageError, match=f"method {name} does not foresee"):
            observe(model, ids, [make_method(name)], later=LATER)
    with pytest.raises(UsageError, match="budget 8 leaves no room"):
        observe(model, ids, [small("knorm")], later=LATER, budgets=(8,), sinks=4, recent=4)
    with pytest.raises(UsageError, match="needs filters"):
        observe(model, ids, [make_method("qfilters")], later=LATER)
