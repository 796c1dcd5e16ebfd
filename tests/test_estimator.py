"""The direction of drift: against planted directions, numpy's SVD, and the paper's subsampling."""

import mlx.core as mx
import numpy as np
import pytest

from qfilters.estimator import QueryMoments, chunk_moments, drift
from qfilters.methods import make_method

D = 16


def moments(queries):
    """Of `[B, H, T, D]`, all in one chunk."""
    made = QueryMoments(queries.shape[1], queries.shape[3])
    gram, total = chunk_moments(mx.array(queries))
    made.add(np.array(gram), np.array(total), queries.shape[0] * queries.shape[2])
    return made


def filters_of(queries, n_kv_heads=None):
    return drift(moments(queries), n_kv_heads or queries.shape[1]).q_filters


def unit(*size):
    vector = np.random.normal(size=size)
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def drifting(direction, shift, tokens=2000, heads=1, spread=1.0):
    """Random queries around `shift * direction`, float32 `[1, heads, tokens, D]`."""
    noise = np.random.normal(size=(1, heads, tokens, D)) * spread
    return (shift * direction + noise).astype(np.float32)


def paper_filter(queries, samples=3000, seed=0):
    """The paper's code: SVD of at most 3000 query rows, `sgn(1^T u1) v1`; queries `[T, D]`."""
    rows = np.random.default_rng(seed).permutation(len(queries))[:samples]
    left, _, right = np.linalg.svd(queries[rows].astype(np.float64), full_matrices=False)
    return np.sign(left[:, 0].sum()) * right[0], rows


def test_planted_drift_is_found_with_its_sign():
    planted = unit(D)
    queries = drifting(planted, 6.0)
    assert filters_of(queries)[0] @ planted > 0.99
    assert filters_of(-queries)[0] @ planted < -0.99


def test_queries_are_not_centred():
    drift_axis, variance_axis = np.eye(D)[3], np.eye(D)[7]
    queries = drifting(drift_axis, 5.0, spread=0.3)
    queries += 4.0 * np.random.normal(size=(1, 1, 2000, 1)) * variance_axis
    assert np.var(queries @ variance_axis) > 100 * np.var(queries @ drift_axis)
    assert filters_of(queries)[0] @ drift_axis > 0.99


def test_keys_that_only_drift_say_nothing_about_queries():
    """Without their mean, keys are noise around nothing; the queries' drift is still there."""
    planted = unit(D)
    queries, keys = drifting(planted, 6.0), drifting(planted, 6.0)
    from_keys = np.array(make_method("qfilters_keysvd").learn(mx.array(keys), None))[0, 0]
    assert abs(from_keys @ planted) < 0.3
    assert filters_of(queries)[0] @ planted > 0.99


@pytest.mark.parametrize("seed", range(5))
def test_it_is_numpys_top_right_vector_with_the_papers_sign(seed):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(2, 3, 400, D)) * rng.uniform(0.5, 2, size=(1, 3, 1, D))
    queries = (queries + 0.2 * rng.normal(size=(1, 3, 1, D))).astype(np.float32)
    found = drift(moments(queries), 3)
    for head in range(3):
        rows = queries[:, head].reshape(-1, D).astype(np.float64)
        wanted, _ = paper_filter(rows, samples=len(rows))
        assert found.q_filters[head] @ wanted > 1 - 1e-5
        singular = np.linalg.svd(rows, compute_uv=False)
        share = singular[0] ** 2 / (singular**2).sum()
        np.testing.assert_allclose(found.explained_energy[head], share, rtol=1e-4)
        np.testing.assert_allclose(found.query_mean[head], rows.mean(axis=0), atol=1e-5)
        along = rows.mean(axis=0) @ wanted
        np.testing.assert_allclose(found.mean_projection[head], along, atol=1e-4)
        assert found.mean_projection[head] >= 0
        others = np.linalg.svd(rows, full_matrices=False)[2][1:] @ rows.mean(axis=0)
        np.testing.assert_allclose(found.other_projection[head], abs(others).mean(), atol=1e-3)


def test_the_papers_subsample_agrees_on_the_same_rows():
    queries = drifting(unit(D), 2.0, tokens=8000)[0, 0]
    wanted, rows = paper_filter(queries)
    assert len(rows) == 3000
    assert filters_of(queries[rows][None, None])[0] @ wanted > 0.9999
    assert filters_of(queries[None, None])[0] @ wanted > 0.999


def test_a_group_is_averaged_to_unit_length():
    axes = np.stack([unit(D), unit(D), unit(D), unit(D)])
    queries = drifting(axes[None, :, None], 5.0, heads=4)
    each, grouped = filters_of(queries), filters_of(queries, n_kv_heads=2)
    for group in range(2):
        mean = each[2 * group : 2 * group + 2].mean(axis=0)
        np.testing.assert_allclose(grouped[group], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(grouped, axis=-1), 1, atol=1e-12)


def test_groups_that_cancel_and_heads_that_saw_zeros_are_marked():
    planted = unit(D)
    queries = np.zeros((1, 6, 300, D), np.float32)
    queries[0, 0] = drifting(planted, 5.0, tokens=300)[0, 0]
    queries[0, 1] = -queries[0, 0]
    queries[0, 4] = queries[0, 0]
    found = drift(moments(queries), 3)
    assert found.degenerate == (0, 1, 2)
    np.testing.assert_allclose(np.linalg.norm(found.q_filters, axis=-1), 1)
    assert abs(found.q_filters[0] @ planted) > 0.99
    assert found.q_filters[2] @ planted > 0.99, "a head of zeros must not pull the others away"
    assert found.explained_energy[2:4].tolist() == [0, 0]
    for array in (found.query_mean, found.mean_projection, found.other_projection):
        assert np.isfinite(array).all()


@pytest.mark.parametrize("size, marked", [(2e-4, (0,)), (0.02, ())])
def test_a_group_cancels_below_a_thousandth(size, marked):
    """Two unit vectors whose mean has length `size`."""
    first = np.array([size, np.sqrt(1 - size**2)])
    pair = np.stack([first, first * [1, -1]]).astype(np.float64)
    made = QueryMoments(2, 2)
    made.add(pair[:, :, None] * pair[:, None, :], pair, 1)
    assert drift(made, 1).degenerate == marked


def test_no_drift_at_all_keeps_the_sign_positive():
    made = QueryMoments(1, 2)
    made.add(np.diag([4.0, 1.0])[None], np.zeros((1, 2)), 5)
    (vector,) = np.linalg.eigh(made.gram)[1][..., -1]
    np.testing.assert_array_equal(drift(made, 1).q_filters[0], vector)


def test_a_single_dimension():
    found = drift(moments(-np.ones((1, 2, 4, 1), np.float32)), 2)
    assert found.q_filters.tolist() == [[-1.0], [-1.0]]
    assert found.other_projection.tolist() == [0, 0]


def test_moments_of_parts_add_up():
    queries = np.random.normal(size=(2, 3, 60, D)).astype(np.float32)
    parts = QueryMoments(3, D)
    for part in (queries[:1, :, :10], queries[:1, :, 10:], queries[1:]):
        gram, total = chunk_moments(mx.array(part))
        parts.add(np.array(gram), np.array(total), part.shape[0] * part.shape[2])
    whole = moments(queries)
    assert parts.count == whole.count == 120
    np.testing.assert_allclose(parts.gram, whole.gram, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(parts.total, whole.total, rtol=1e-5, atol=1e-4)


def test_long_sums_do_not_lose_small_queries():
    """Added up in float64: in float32 a chunk of 1 on top of 2^24 would vanish."""
    made = QueryMoments(1, 1)
    for value in (2.0**24, *[1.0] * 8):
        made.add(np.full((1, 1, 1), value, np.float32), np.full((1, 1), value, np.float32), 1)
    assert made.gram.item() == made.total.item() == 2**24 + 8


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    queries = mx.full((1, 1, 5000, 2), 3, dtype=dtype)
    gram, total = chunk_moments(queries)
    assert gram.dtype == total.dtype == mx.float32
    assert total.tolist() == [[15000.0, 15000.0]]
    assert gram[0, 0, 1].item() == 45000.0
