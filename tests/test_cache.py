"""One cache against the obvious one, on streams of keys and values: what stays, and who sees it."""

import warnings
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obvious import FirstComponent, rows_at
from streams import AT_INSERTION, FIXED, H, bits, feed_checked, live_rows, make_cache, stream

from qfilters.errors import QFiltersWarning
from qfilters.rows import RowStore

DTYPES = [mx.float32, mx.float16, mx.bfloat16]
NAN, INF = float("nan"), float("inf")

# --- every chunking, every score ---

POOLS = {
    "ties": [0.0, 1.0],
    "equal": [0.5],
    "special": [NAN, -NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 6e-8, -6e-8, 65504.0, -65504.0],
    "infinite": [INF, -INF],
    "nan": [NAN, 1.0],
    "numbers": None,
}


@st.composite
def runs(draw):
    n = draw(st.integers(1, 40))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    budget = draw(st.integers(1, 12) | st.integers(max(1, n - 2), n + 1))
    sinks = draw(st.integers(0, min(budget - 1, 6)))
    room = budget - 1 - sinks
    return {
        "batch": draw(st.sampled_from([1, 3])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "pool": draw(st.sampled_from(list(POOLS))),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "sizes": np.diff([0, *cuts, n]).tolist(),
        "limits": (budget, sinks, draw(st.just(room) | st.just(0) | st.integers(0, room))),
        "step": draw(st.sampled_from([1, 3, 256])),
        "strided": draw(st.booleans()),
    }


def drawn_stream(run):
    n, rng = sum(run["sizes"]), np.random.default_rng(run["seed"])
    pool = POOLS[run["pool"]]
    first = None if pool is None else rng.choice(np.float32(pool), size=(run["batch"], H, n))
    return stream(n, run["batch"], run["dtype"], run["seed"], first)


@settings(deadline=None, max_examples=150)
@given(runs())
def test_every_chunking_keeps_what_a_full_sort_keeps(run):
    cache = make_cache(FirstComponent(), *run["limits"])
    keys, values = drawn_stream(run)
    with patch.object(RowStore, "step", run["step"]):
        feed_checked(cache, keys, values, run["sizes"], run["strided"])
    positions, kept_keys, kept_values = live_rows(cache)
    np.testing.assert_array_equal(kept_keys, rows_at(bits(keys), positions))
    np.testing.assert_array_equal(kept_values, rows_at(bits(values), positions))


@pytest.mark.parametrize("method", FIXED)
@settings(deadline=None, max_examples=15)
@given(run=runs())
def test_every_fixed_score_is_path_independent(method, run):
    cache = make_cache(method, *run["limits"], seed=run["seed"])
    assert cache.method.path_independent
    feed_checked(cache, *drawn_stream(run | {"pool": "numbers"}), run["sizes"], run["strided"])


@pytest.mark.parametrize("n", [62, 63, 64, 65, 66, 130])
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 130])
def test_around_the_budget(n, size):
    sizes = [size] * (n // size) + ([n % size] if n % size else [])
    feed_checked(make_cache("knorm", budget=64, sinks=4, recent=16), *stream(n), sizes)


@pytest.mark.parametrize("budget", [255, 256, 257, 511])
def test_growth_in_steps_of_256_stops_at_the_budget(budget):
    cache = make_cache("qfilters", budget=budget, sinks=4, recent=60)
    keys, values = stream(700)
    sizes = [250, *[1] * 20, 200, *[1] * 50, 100, *[1] * 20]
    feed_checked(cache, keys, values, sizes)
    assert {x.shape[2] for x in cache.state[0]} == {budget + 1}


def test_chunks_and_single_tokens_in_turns():
    sizes = [5, 1, 1, 30, 1, 2, 1, 1, 1, 17, 16, 1, 15, *[1] * 40, 3, 3, 1, 90, 1]
    for method in FIXED:
        feed_checked(make_cache(method, 16, 2, 5), *stream(sum(sizes), batch=3), sizes)


@pytest.mark.parametrize("method", AT_INSERTION)
def test_offset_counts_tokens_seen(method):
    cache = make_cache(method, budget=128, sinks=4, recent=32)
    keys, values = stream(300)
    for i in range(300):
        cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
    assert cache.offset == cache.tokens_seen == 300
    assert cache.tokens_kept == cache.positions.shape[2] == (300 if method == "none" else 128)


def test_none_keeps_every_row():
    cache = make_cache("none", budget=1, sinks=4, recent=4)
    sizes = [3, 1, 1, 300, 1]
    feed_checked(cache, *stream(sum(sizes)), sizes)


def test_sinks_and_recent_that_leave_one_row():
    keys, values = stream(60)
    for sinks, recent in ((0, 7), (7, 0), (3, 4)):
        for sizes in ([60], [1] * 60, [7, 1, 1, 51]):
            cache = make_cache("knorm", 8, sinks, recent)
            feed_checked(cache, keys, values, sizes)
            kept = np.array(cache.positions)
            assert (kept[..., :sinks] == np.arange(sinks)).all()
            assert (kept[..., 8 - recent :] == np.arange(60 - recent, 60)).all()


def test_positions_far_out_stay_true():
    cache = make_cache("streaming_llm", budget=8, sinks=0, recent=2)
    keys, values = stream(30)
    cache.update_and_fetch(keys[:, :, :10], values[:, :, :10])
    cache.offset = start = 2**24 - 10
    for i in range(10, 30):
        cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
    last = np.array(cache.positions)[..., -2:]
    assert (last == [start + 18, start + 19]).all()


# --- counters and reports ---


def test_nan_rows_are_counted_once_each():
    first = np.zeros((1, H, 40), dtype=np.float32)
    first[0, 0, [1, 5, 25, 39]] = NAN
    keys, values = stream(40, first=first)
    for sizes in ([40], [20, 20], [9, 31], [4, 6, 10, 20], [*[1] * 9, 31], [9, 11, 20]):
        cache = make_cache(FirstComponent(), budget=8, sinks=1, recent=2)
        assert cache.nan_rows == 0
        feed_checked(cache, keys, values, sizes)
        assert cache.nan_rows == 4, sizes


def test_nan_rows_of_decoded_tokens_are_not_counted():
    first = np.zeros((1, H, 40), dtype=np.float32)
    first[0, 0, [5, 25, 39]] = NAN
    cache = make_cache(FirstComponent(), budget=8, sinks=1, recent=2)
    feed_checked(cache, *stream(40, first=first), [25, 1, 1, 1, 12])
    assert cache.nan_rows == 2


def test_nan_keys_go_first():
    first = np.full((1, H, 12), -INF, dtype=np.float32)
    first[..., [3, 4]] = NAN
    for sizes in ([12], [1] * 12):
        cache = make_cache(FirstComponent(), budget=10, sinks=0, recent=0)
        feed_checked(cache, *stream(12, first=first), sizes)
        assert not np.isin([3, 4], np.array(cache.positions)).any()


def test_peak_rows_are_those_of_the_largest_call():
    cache = make_cache(budget=8)
    for size, peak in ((5, 5), (3, 8), (20, 28), (1, 28), (2, 28), (25, 33)):
        cache.update_and_fetch(*stream(size))
        assert cache.peak_rows == peak


def test_the_trained_context_is_noted_once():
    cache = make_cache(budget=8, max_position=20)
    keys, values = stream(40)
    cache.update_and_fetch(keys[:, :, :20], values[:, :, :20])
    with pytest.warns(QFiltersWarning, match="position 21 is past the 20 tokens"):
        cache.update_and_fetch(keys[:, :, 20:21], values[:, :, 20:21])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.update_and_fetch(keys[:, :, 21:], values[:, :, 21:])
