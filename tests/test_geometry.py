"""Observations 3.1 and 3.2 against singular vectors of the queries; cosines and stability."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest
from recorded import Recorder, llama, run, tokens
from streams import plain_caches

from qfilters import Filters, calibrate
from qfilters.attention import observe
from qfilters.errors import FilterError, UsageError
from qfilters.estimator import QueryMoments, chunk_moments, drift
from qfilters.geometry import observations
from qfilters.similarity import compare
from qfilters.study.stability import stability

H, H_KV, D = 4, 2, 16


def moments(queries):
    """Moments of queries `[H, T, D]`."""
    made = QueryMoments(queries.shape[0], queries.shape[2])
    gram, total = chunk_moments(mx.array(queries.astype(np.float32))[None])
    made.add(np.array(gram), np.array(total), queries.shape[1])
    return made


def planted(n_texts=3, shift=4.0, seed=0):
    """Queries `[texts][layers][H, T, D]` that drift along one direction per KV head."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=(2, H_KV, D))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    noise = rng.normal(size=(n_texts, 2, H, 500, D))
    return shift * direction.repeat(H // H_KV, axis=1)[None, :, :, None] + noise


def filters_of(text):
    found = np.stack([drift(moments(q), H_KV).q_filters for q in text]).astype(np.float32)
    return Filters(q_filters=found, layer_index=np.arange(len(text), dtype=np.int32))


def test_observations_are_what_singular_vectors_of_the_queries_say():
    queries = planted()
    calibration, *texts = queries
    filters = filters_of(calibration)
    found = observations([[moments(q) for q in text] for text in texts], filters)
    first, others, along, energy = [], [], [], []
    for held_out, rest in (texts, texts[::-1]):
        for layer, head in np.ndindex(2, H):
            mine, other = held_out[layer, head], rest[layer, head]
            u, _, v = np.linalg.svd(other, full_matrices=False)
            v *= np.where(u.sum(axis=0) < 0, -1, 1)[:, None]
            means = (mine @ v.T).mean(axis=0)
            first.append(means[0])
            others.append(np.abs(means[1:]).mean())
            along.append((mine @ filters.q_filters[layer, head // (H // H_KV)]).mean())
            both = np.concatenate([mine, other])
            sizes = np.linalg.svd(both, compute_uv=False) ** 2
            energy.append(sizes[0] / sizes.sum())
    assert found["mean_projection"] == pytest.approx(np.mean(first), rel=1e-4)
    assert found["other_projection"] == pytest.approx(np.mean(others), rel=1e-3)
    assert found["ratio"] == pytest.approx(np.mean(first) / np.mean(others), rel=1e-3)
    assert found["filter_projection"] == pytest.approx(np.mean(along), rel=1e-4)
    assert found["top_energy"] == pytest.approx(np.mean(energy), rel=1e-4)
    assert found["low"] <= found["filter_projection"] <= found["high"]
    assert found["filter_energy"] <= found["top_energy"]
    assert found["positive_query_heads"] == found["positive_kv_heads"] == 1
    assert (found["n_query_heads"], found["n_kv_heads"]) == (2 * H, 2 * H_KV)
    assert (found["n_texts"], found["n_queries"]) == (2, 1000)
    assert np.shape(found["projection_by_layer"]) == (2, H)


def test_on_the_same_text_the_others_vanish_which_is_why_they_are_left_out():
    calibration, *texts = planted()
    found = observations([[moments(q) for q in t] for t in texts], filters_of(calibration))
    same = drift(moments(texts[0][0]), H_KV)
    assert found["ratio"] > 10
    assert same.mean_projection.mean() / same.other_projection.mean() > 5 * found["ratio"]


def test_filters_turned_round_are_seen_as_such():
    calibration, *texts = planted()
    filters = filters_of(calibration)
    q_filters = filters.q_filters.copy()
    q_filters[1, 0] *= -1
    turned = dataclasses.replace(filters, q_filters=q_filters)
    found = observations([[moments(q) for q in text] for text in texts], turned)
    assert found["positive_kv_heads"] == found["positive_query_heads"] == 3 / 4
    assert all(x < 0 for x in found["projection_by_layer"][1][: H // H_KV])


def test_one_text_has_no_other_directions():
    calibration, text, _ = planted()
    found = observations([[moments(q) for q in text]], filters_of(calibration))
    assert found["mean_projection"] is found["other_projection"] is found["ratio"] is None
    assert found["low"] is None and found["positive_query_heads"] == 1
    for texts in ([], [[moments(text[0])]]):
        with pytest.raises(UsageError, match="for 2 of the filters"):
            observations(texts, filters_of(calibration))


def test_moments_of_an_observed_text_are_those_of_its_queries():
    model, ids = llama("GQA"), tokens(40)
    text = observe(model, ids[0].tolist(), [], later=11, step_size=13)
    recorders = [Recorder(c) for c in plain_caches(model)]
    assert list(run(model, recorders, ids, [40])) == [40]
    for found, recorder in zip(text.moments, recorders, strict=True):
        wanted = moments(np.array(recorder.queries)[0])
        assert found.count == wanted.count == 40
        np.testing.assert_allclose(found.gram, wanted.gram, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(found.total, wanted.total, rtol=1e-4, atol=1e-3)


def test_cosine_of_an_artifact_with_itself_its_reverse_and_another():
    a = filters_of(planted()[0])
    same = compare(a, a)
    assert np.shape(same["cosine"]) == (2, H_KV) and same["n_heads"] == 2 * H_KV
    assert same["min_cosine"] == pytest.approx(1) and same["opposed"] == 0
    turned = compare(a, dataclasses.replace(a, q_filters=-a.q_filters))
    assert np.allclose(turned["cosine"], -1) and turned["opposed"] == 2 * H_KV
    assert turned["min_abs_cosine"] == turned["mean_abs_cosine"] == pytest.approx(1)
    b = filters_of(planted(seed=3)[0])
    found = compare(a, b)
    for layer, head in np.ndindex(2, H_KV):
        wanted = a.q_filters[layer, head] @ b.q_filters[layer, head]
        assert found["cosine"][layer][head] == pytest.approx(wanted, abs=1e-6)
        assert found["abs_cosine"][layer][head] == pytest.approx(abs(wanted), abs=1e-6)
    assert found["mean_abs_cosine"] < 0.6
    for other in (
        dataclasses.replace(a, layer_index=a.layer_index + 1),
        dataclasses.replace(a, q_filters=a.q_filters[:1]),
    ):
        with pytest.raises(FilterError, match="different layers or heads"):
            compare(a, other)


def test_stability_is_the_cosine_of_filters_calibrated_on_less():
    model = llama("GQA")
    rows = [tokens(30, seed=s)[0].tolist() for s in range(4)]
    counts = [120, 7, 30, 75]
    found = stability(model, rows, counts, step_size=8)
    assert [row["tokens"] for row in found] == sorted(counts)

    def calibrated(count):
        whole, part = divmod(count, 30)
        cut = rows[:whole] + ([rows[whole][:part]] if part else [])
        return calibrate(model, None, cut)

    largest = calibrated(120)
    for row in found:
        wanted = compare(calibrated(row["tokens"]), largest)
        np.testing.assert_allclose(row["cosine"], wanted["cosine"], atol=1e-4)
        assert row["n_heads"] == wanted["n_heads"] == 6
    assert found[-1]["min_cosine"] == pytest.approx(1)
    assert found[0]["mean_cosine"] < found[-2]["mean_cosine"] < 1
    for wrong in ([], [0, 5], [121]):
        with pytest.raises(UsageError, match="between 1 and the 120 tokens"):
            stability(model, rows, wrong)
