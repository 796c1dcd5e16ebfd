"""Observations 3.1 and 3.2 against singular vectors of the queries; cosines and stability."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest
from recorded import Recorder, llama, run, tokens
from streams import plain_caches

from qfilters import Filters, calibrate
from qfilters.attention import observe
from qfilters.errors import FilterError, QFiltersError, UsageError
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


def observed(texts, filters, keys=None):
    """Observations of queries `[texts][layers][H, T, D]` and keys as `Observed` has them."""
    keys = np.zeros((len(texts), 2, 2, H_KV, D)) if keys is None else keys
    return observations([[moments(q) for q in text] for text in texts], keys, filters)


def test_observations_are_what_singular_vectors_of_the_queries_say():
    queries = planted()
    calibration, *texts = queries
    filters = filters_of(calibration)
    found = observed(texts, filters)
    first, others, along, energy, ratios = [], [], [], [], {}
    for held_out, rest in (texts, texts[::-1]):
        for layer, head in np.ndindex(2, H):
            mine, other = held_out[layer, head], rest[layer, head]
            u, _, v = np.linalg.svd(other, full_matrices=False)
            v *= np.where(u.sum(axis=0) < 0, -1, 1)[:, None]
            means = (mine @ v.T).mean(axis=0)
            first.append(means[0])
            others.append(np.abs(means[1:]).mean())
            along.append((mine @ filters.q_filters[layer, head // (H // H_KV)]).mean())
            _, _, v = np.linalg.svd(np.concatenate([mine, other]), full_matrices=False)
            energy.append(((mine @ v[0]) ** 2).sum() / (mine**2).sum())
            ratios.setdefault(id(held_out), []).append((first[-1], others[-1]))
    assert found["mean_projection"] == pytest.approx(np.mean(first), rel=1e-4)
    assert found["other_projection"] == pytest.approx(np.mean(others), rel=1e-3)
    ratios = [np.divide(*np.mean(pairs, axis=0)) for pairs in ratios.values()]
    assert found["ratio"] == pytest.approx(np.mean(ratios), rel=1e-3)
    assert found["filter_projection"] == pytest.approx(np.mean(along), rel=1e-4)
    assert found["top_energy"] == pytest.approx(np.mean(energy), rel=1e-4)
    for name in ("filter_projection", "ratio", "top_energy"):
        low, high = found["intervals"][name]
        assert low < found[name] < high, name
    assert found["filter_energy"] <= found["top_energy"]
    assert (found["positive_query_heads"], found["positive_kv_heads"]) == (2 * H, 2 * H_KV)
    assert (found["n_query_heads"], found["n_kv_heads"]) == (2 * H, 2 * H_KV)
    assert (found["n_texts"], found["n_queries"]) == (2, 1000)
    assert np.shape(found["projection_by_layer"]) == (2, H)


def test_on_the_same_text_the_others_vanish_which_is_why_they_are_left_out():
    calibration, *texts = planted()
    found = observed(texts, filters_of(calibration))
    same = drift(moments(texts[0][0]), H_KV)
    assert found["ratio"] > 10
    assert same.mean_projection.mean() / same.other_projection.mean() > 5 * found["ratio"]


def test_filters_turned_round_are_seen_as_such():
    calibration, *texts = planted()
    filters = filters_of(calibration)
    q_filters = filters.q_filters.copy()
    q_filters[1, 0] *= -1
    turned = dataclasses.replace(filters, q_filters=q_filters)
    found = observed(texts, turned)
    assert (found["positive_query_heads"], found["positive_kv_heads"]) == (2 * H - 2, 2 * H_KV - 1)
    assert all(x < 0 for x in found["projection_by_layer"][1][: H // H_KV])


def test_keys_on_the_other_side_of_the_filter_are_counted():
    calibration, *texts = planted()
    filters = filters_of(calibration)
    means = np.stack([-filters.q_filters, -2 * filters.q_filters]).astype(float)
    means[:, 1, 0] *= -1
    axes = np.stack([filters.q_filters] * 2)
    axes[1] *= -0.5  # half as long is half the cosine: the second text's counts as 1/2
    found = observed(texts, filters, np.stack([means, axes], axis=2))
    assert found["key_axis"] == pytest.approx(0.75)
    assert (found["negative_keys"], found["n_kv_heads"]) == (2 * H_KV - 1, 2 * H_KV)
    assert np.allclose(found["keys_by_layer"], [[-1.5, -1.5], [1.5, -1.5]])


def test_one_text_has_no_other_directions():
    calibration, text, _ = planted()
    found = observed([text], filters_of(calibration))
    assert found["mean_projection"] is found["other_projection"] is found["ratio"] is None
    assert found["positive_query_heads"] == 2 * H
    assert all(tuple(pair) == (None, None) for pair in found["intervals"].values())
    for texts in ([], [[moments(text[0])]]):
        with pytest.raises(UsageError, match="for 2 of the filters"):
            observations(texts, [], filters_of(calibration))


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
    for (mean, axis), recorder in zip(text.keys, recorders, strict=True):
        for head, rows in enumerate(np.array(recorder.rows[0])[0]):
            np.testing.assert_allclose(mean[head], rows.mean(axis=0), atol=1e-5)
            top = np.linalg.svd(rows - rows.mean(axis=0))[2][0]
            assert abs(axis[head] @ top) == pytest.approx(1, abs=1e-4)


def test_queries_that_are_not_finite_are_one_line():
    model, ids = llama("GQA"), tokens(40)[0].tolist()
    attention = model.layers[1].self_attn
    attention.q_proj.weight = attention.q_proj.weight * mx.nan
    for measure in (
        lambda: observe(model, ids, [], later=11),
        lambda: stability(model, [ids], [20]),
        lambda: calibrate(model, None, [ids]),
    ):
        with pytest.raises(QFiltersError, match="layer 1 computed queries that are not finite"):
            measure()


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
