"""What mlx-lm asks of a cache: state, copies, trimming, masks."""

import copy

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from streams import AT_INSERTION, D, H, live_rows, make_cache, stream

from qfilters.cache import EvictingKVCache


def test_nothing_is_inherited_that_would_turn_eviction_off():
    cache = make_cache()
    for name in ("merge", "to_quantized", "__len__", "__bool__", "bits", "keys", "values"):
        assert not hasattr(cache, name), name
    assert EvictingKVCache.__bases__ == (object,)
    assert cache, "mlx-lm tests `if cache`"


@pytest.mark.parametrize("method", AT_INSERTION[1:])
def test_an_evicting_cache_is_never_trimmable(method):
    cache, (keys, values) = make_cache(method, 8, 1, 2), stream(20)
    for size in (0, 5, 15):
        if size:
            cache.update_and_fetch(keys[:, :, :size], values[:, :, :size])
        before = [np.array(cache.positions), cache.offset, cache.tokens_kept, cache.nbytes]
        assert not cache.is_trimmable() and cache.trim(3) == 0
        after = [np.array(cache.positions), cache.offset, cache.tokens_kept, cache.nbytes]
        np.testing.assert_equal(after, before)


def test_none_trims_as_a_plain_cache_does():
    ours, plain = make_cache("none"), KVCache()
    keys, values = stream(60)
    at = 0
    for size, drop in ((20, 7), (1, 1), (9, 100), (5, 0), (1, 0)):
        new = keys[:, :, at : at + size], values[:, :, at : at + size]
        at += size
        for x, y in zip(ours.update_and_fetch(*new), plain.update_and_fetch(*new), strict=True):
            assert mx.array_equal(x, y)
        assert ours.is_trimmable() and ours.trim(drop) == plain.trim(drop)
        assert ours.offset == ours.tokens_kept == plain.offset == ours.positions.shape[2]
        assert ours.empty() == (plain.offset == 0)


def split_at(n, *cuts):
    return list(zip([0, *cuts], [*cuts, n], strict=True))


@pytest.mark.parametrize("method", AT_INSERTION)
@pytest.mark.parametrize("evaluate", [True, False])
def test_state_is_valid_and_goes_round_at_any_time(method, evaluate):
    keys, values = stream(60, batch=2)
    other_keys, other_values = stream(60, batch=2, seed=1)
    cuts = (3, 6, 7, 8, 9, 10, 11, 30, 31, 32, 40)
    cache = make_cache(method, 8, 1, 2)
    expected = make_cache(method, 8, 1, 2)
    mx.eval(cache.state)
    for start, stop in split_at(60, *cuts):
        before, cache = cache, make_cache(method, 8, 1, 2)
        cache.state = before.state
        # The old one goes its own way; the new one must not notice.
        before.update_and_fetch(other_keys[:, :, :1], other_values[:, :, :1])
        before.update_and_fetch(other_keys[:, :, :1], other_values[:, :, :1])
        new = keys[:, :, start:stop], values[:, :, start:stop]
        got, want = cache.update_and_fetch(*new), expected.update_and_fetch(*new)
        for x, y in zip(got, want, strict=True):
            order = [mx.argsort(v[..., 0], axis=-1)[..., None] for v in (got[1], want[1])]
            x, y = (mx.take_along_axis(a, o, axis=2) for a, o in zip((x, y), order, strict=True))
            assert mx.array_equal(x, y)
        if evaluate:
            mx.eval(cache.state)
        for name in ("offset", "tokens_kept", "peak_rows", "nan_rows", "nbytes"):
            assert getattr(cache, name) == getattr(expected, name), name
        assert mx.array_equal(cache.positions, expected.positions)


@pytest.mark.parametrize("seen", [5, 20, 21])
def test_state_is_a_snapshot_of_the_moment(seen):
    cache, (keys, values) = make_cache("knorm", 8, 1, 2), stream(30)
    cache.update_and_fetch(keys[:, :, :seen], values[:, :, :seen])
    state = cache.state
    before = [np.array(x) for x in state[0]], np.array(cache.positions)
    for i in range(seen, seen + 3):
        cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
    for x, old in zip(state[0], before[0], strict=True):
        np.testing.assert_array_equal(np.array(x), old)
    later = make_cache("knorm", 8, 1, 2)
    later.state = state
    np.testing.assert_array_equal(np.array(later.positions), before[1])


@pytest.mark.parametrize("method", AT_INSERTION)
@pytest.mark.parametrize("seen", [0, 5, 8, 9, 20, 21])
def test_a_deep_copy_is_independent_and_shares_the_layer(method, seen):
    keys, values = stream(40)
    cache, expected = (make_cache(method, 8, 1, 2) for _ in range(2))
    for i in range(seen):
        for c in (cache, expected):
            c.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
    twin = copy.deepcopy(cache)
    assert twin.layer is cache.layer
    for i in range(25, 40):
        cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
    for i in range(seen, 25):
        for c in (twin, expected):
            c.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
    assert twin.offset == 25 and mx.array_equal(twin.positions, expected.positions)
    for x, y in zip(live_rows(twin), live_rows(expected), strict=True):
        np.testing.assert_array_equal(x, y)


# --- masks ---


@pytest.mark.parametrize("seen", [0, 5, 8, 9, 30])
@pytest.mark.parametrize("decoded", [0, 3])
def test_masks_have_the_width_of_what_attention_gets(seen, decoded):
    cache, (keys, values) = make_cache("knorm", 8, 1, 2), stream(60)
    for start, stop in split_at(seen + decoded, *range(seen, seen + decoded)):
        if stop > start:
            cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])
    assert cache.make_mask(1) is None and cache.make_mask(1, return_array=True) is None
    assert cache.make_mask(7) == "causal"
    array = cache.make_mask(7, return_array=True)
    window = cache.make_mask(7, window_size=3), cache.make_mask(7, True, window_size=3)
    rows = cache.update_and_fetch(*stream(7))[0].shape[2]
    assert array.shape == (7, rows) and all(w.shape[-2:] == (7, rows) for w in window)
    stored = rows - 7
    assert np.array(array)[:, :stored].all(), "every stored row is older"
    np.testing.assert_array_equal(np.array(array)[:, stored:], np.tri(7, dtype=bool))


def attention(queries, keys, values, mask):
    return np.array(mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1, mask=mask))


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("seen", [0, 6, 8, 9, 20, 23])
@pytest.mark.parametrize("window", [1, 4, 10, 100])
def test_a_sliding_window_is_measured_in_true_positions(n, seen, window):
    cache, (keys, values) = make_cache("random", 8, 1, 2), stream(60, batch=2)
    for i in range(seen):
        cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
    mask = cache.make_mask(n, window_size=window)
    new = keys[:, :, seen : seen + n], values[:, :, seen : seen + n]
    got_keys, got_values = cache.update_and_fetch(*new)
    queries = mx.random.normal((2, 2 * H, n, D))
    found = attention(queries, got_keys, got_values, mask)

    at = np.array(got_values[..., 0])
    now = np.arange(seen, seen + n)
    age = now[:, None] - at[:, :, None, :]
    logits = np.array(queries) @ np.array(got_keys).swapaxes(2, 3).repeat(2, axis=1)
    visible = ((age >= 0) & (age < window)).repeat(2, axis=1)
    weights = np.exp(np.where(visible, logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    expected = weights @ np.array(got_values).repeat(2, axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-4)
