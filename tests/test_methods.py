"""What each method scores, against numpy; how they are named and refused."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest
from streams import H, bits, live_rows, make_cache, rows_at, stay, stream

from qfilters.errors import UsageError
from qfilters.methods import METHODS, Layer, make_method

SIZE, GROUP = 16, 3


def layer(index=0):
    return Layer(
        index,
        H,
        SIZE,
        GROUP * H,
        q_filters=mx.random.normal((H, SIZE)),
        query_mean=mx.random.normal((GROUP * H, SIZE)),
    )


def scores(method, keys, of=None, positions=None):
    positions = mx.arange(keys.shape[2], dtype=mx.int32) if positions is None else positions
    found = method.score(keys, positions, of or layer(), None)
    assert found.dtype == mx.float32 and found.shape == keys.shape[:3]
    return np.array(found)


# --- scores ---


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_scores_are_their_formulas(dtype):
    keys, facts = mx.random.normal((2, H, 50, SIZE)).astype(dtype), layer()
    k = np.array(keys.astype(mx.float32), dtype=np.float64)
    filters, mean = np.array(facts.q_filters), np.array(facts.query_mean)
    logits = np.einsum("bhtd,hgd->bhtg", k, mean.reshape(H, GROUP, SIZE)) / np.sqrt(SIZE)
    position = np.broadcast_to(np.arange(50), k.shape[:3])
    formulas = {
        "qfilters": np.einsum("bhtd,hd->bht", k, filters),
        "qfilters_mean": np.log(np.exp(logits).sum(-1)),
        "knorm": -np.linalg.norm(k, axis=-1),
        "streaming_llm": position,
        "sliding_window": position,
    }
    for name, formula in formulas.items():
        found = scores(make_method(name), keys, facts)
        np.testing.assert_allclose(found, formula, rtol=1e-5, atol=1e-5, err_msg=name)


def test_half_precision_keys_are_scored_in_float32():
    keys = mx.full((1, H, 3, SIZE), 60000.0).astype(mx.float16)
    found = scores(make_method("knorm"), keys)
    np.testing.assert_allclose(found, -60000.0 * np.sqrt(SIZE), rtol=1e-3)


def test_filters_and_mean_queries_belong_to_their_heads():
    facts, keys = layer(), mx.zeros((1, H, 1, SIZE))
    for h in range(H):
        only = keys.at[:, h].add(facts.q_filters[h])
        found = scores(make_method("qfilters"), only, facts)
        assert (found != 0).nonzero()[1].tolist() == [h]


# --- random ---


def test_random_scores_are_uniform():
    found = scores(make_method("random"), mx.zeros((1, H, 20000, 1))).ravel()
    assert found.min() >= 0 and found.max() < 1
    counts, _ = np.histogram(found, bins=100, range=(0, 1))
    expected = found.size / 100
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert 60 < chi2 < 150, "99 degrees of freedom"
    rows = found.reshape(H, -1)
    for lag in (1, 2, 7, 64):
        assert abs(np.corrcoef(rows[0][lag:], rows[0][:-lag])[0, 1]) < 0.03


def test_random_scores_differ_by_seed_layer_and_head_and_by_nothing_else():
    keys = mx.zeros((3, H, 4000, 1))
    method = make_method("random", {"seed": 5})
    base = scores(method, keys, layer(2))
    assert (base == base[:1]).all(), "the same in every batch row"
    np.testing.assert_array_equal(base, scores(method, keys + 1, layer(2)))
    late = scores(method, keys[:, :, :9], layer(2), mx.arange(100, 109, dtype=mx.int32))
    np.testing.assert_array_equal(late, base[:, :, 100:109])
    first = base[0, 0]
    others = {
        "head": base[0, 1],
        "layer": scores(method, keys, layer(3))[0, 0],
        "seed": scores(make_method("random", {"seed": 6}), keys, layer(2))[0, 0],
        "seed and layer": scores(make_method("random", {"seed": 6}), keys, layer(1))[0, 0],
        "head and layer": scores(method, keys, layer(1))[0, 1],
    }
    for what, other in others.items():
        assert (first == other).mean() < 0.01, what
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.06, what


# --- qfilters_keysvd ---


def key_direction(keys: np.ndarray) -> np.ndarray:
    """`[B, H, D]` from keys `[B, H, n, D]`, by a full SVD in float64."""
    rows = keys.astype(np.float64)
    rows = rows - rows.mean(axis=2, keepdims=True)
    top = np.linalg.svd(rows, full_matrices=False)[2][..., 0, :]
    largest = np.take_along_axis(top, np.abs(top).argmax(-1)[..., None], axis=-1)
    return top * np.sign(largest)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_keysvd_direction_is_the_centred_top_singular_vector(dtype):
    # A mean far from the origin and unequal spreads: centring and the choice of axis both show.
    spread = mx.array(np.linspace(0.5, 3, SIZE).astype(np.float32))[None, None, None]
    keys = (mx.random.normal((3, H, 200, SIZE)) * spread + 5).astype(dtype)
    found = np.array(make_method("qfilters_keysvd").learn(keys, None))
    np.testing.assert_allclose(found, key_direction(np.array(keys.astype(mx.float32))), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-5)
    assert (np.take_along_axis(found, np.abs(found).argmax(-1)[..., None], -1) > 0).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("sizes", "frozen_after"),
    [
        ([30, 30], 30),  # enough keys in the first call
        ([9, 9, 30], 18),  # the second call completes the sample
        ([1] * 48, 12),  # token by token, exactly at calib_tokens
        ([5, 60], 65),  # the call that completes it counts whole
        ([12, 1, 35], 12),
    ],
)
def test_keysvd_freezes_when_enough_keys_were_seen(sizes, frozen_after, sign):
    method = make_method("qfilters_keysvd", {"sign": sign, "calib_tokens": 12})
    run_keysvd(method, (20, 2, 5), sizes, frozen_after)


@pytest.mark.parametrize(
    ("sizes", "frozen_after"),
    [
        ([60], 60),
        ([10, 50], 60),
        ([1] * 60, 21),  # the first token beyond the budget
        ([20, 1, 39], 21),
        ([21, 39], 21),
    ],
)
def test_keysvd_freezes_when_the_budget_is_exceeded(sizes, frozen_after):
    run_keysvd(make_method("qfilters_keysvd"), (20, 2, 5), sizes, frozen_after)


def run_keysvd(method, limits, sizes, frozen_after):
    """Feed a stream and compare with directions and sorting in numpy after every call."""
    cache = make_cache(method, *limits)
    keys, values = stream(sum(sizes), batch=2)
    plain = np.array(keys).astype(np.float64)
    direction = key_direction(plain[:, :, :frozen_after])
    projected = method.sign * np.einsum("bhtd,bhd->bht", plain, direction)
    start = 0
    for size in sizes:
        stop = start + size
        cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])
        assert cache.tokens_kept == min(stop, limits[0]), "the budget always holds"
        kept = stay(projected[:, :, :stop], *limits)
        np.testing.assert_array_equal(np.array(cache.positions), kept)
        start = stop
    positions, kept_keys, _ = live_rows(cache)
    np.testing.assert_array_equal(kept_keys, rows_at(bits(keys), positions))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("method", ["qfilters_keysvd", "keydiff"])
def test_what_is_learned_survives_keys_that_are_not_finite(method, bad):
    keys, values = stream(40)
    spoiled = keys.at[0, 0, 7, 1].add(bad)
    cache, clean = make_cache(method, 8, 1, 2), make_cache(method, 8, 1, 2)
    for start, stop in ((0, 20), (20, 40)):
        cache.update_and_fetch(spoiled[:, :, start:stop], values[:, :, start:stop])
        clean.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])
        mx.eval(cache.state)
    assert mx.array_equal(cache.positions[:, 1], clean.positions[:, 1]), "the other head as ever"
    assert cache.nan_rows <= 1
    if np.isnan(bad):
        assert 7 not in np.array(cache.positions)[0, 0] and cache.nan_rows == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_keysvd_counts_values_that_are_not_finite_as_zero(bad):
    keys = mx.random.normal((1, H, 50, SIZE))
    keys[0, 0, 7, 1] = bad
    zeroed = np.nan_to_num(np.array(keys), posinf=0, neginf=0)
    found = np.array(make_method("qfilters_keysvd").learn(keys, None))
    np.testing.assert_allclose(found, key_direction(zeroed), atol=1e-4)


def test_keysvd_of_equal_keys_is_a_unit_vector():
    for value in (0.0, 1.0):
        found = make_method("qfilters_keysvd").learn(mx.full((1, H, 5, SIZE), value), None)
        np.testing.assert_allclose(np.linalg.norm(np.array(found), axis=-1), 1, atol=1e-5)


# --- keydiff ---


def keydiff_scores(keys: np.ndarray, sizes) -> np.ndarray:
    """`-cos(k, mean of the unit keys up to the end of the key's own chunk)`, in float64."""
    unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    found, start = [], 0
    for stop in np.cumsum(sizes):
        mean = unit[:, :, :stop].mean(axis=2, keepdims=True)
        cosine = (unit[:, :, start:stop] * mean).sum(-1) / np.linalg.norm(mean, axis=-1)
        found.append(-cosine)
        start = stop
    return np.concatenate(found, axis=-1)


@pytest.mark.parametrize("sizes", [[60], [30, 1, 1, 20, 8], [1] * 60])
def test_keydiff_compares_with_the_mean_of_the_keys_seen_so_far(sizes):
    cache, (keys, values) = make_cache("keydiff", 8, 1, 2), stream(60, batch=2)
    expected = keydiff_scores(np.array(keys).astype(np.float64), sizes)
    start = 0
    for size in sizes:
        stop = start + size
        cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])
        kept = stay(expected[:, :, :stop], 8, 1, 2)
        np.testing.assert_array_equal(np.array(cache.positions), kept)
        start = stop


# --- names and options ---


def test_every_method_is_a_frozen_dataclass_under_its_own_name():
    for name, cls in METHODS.items():
        method = make_method(name)
        assert type(method) is cls and cls.name == name
        assert method == make_method(name), "equal options, equal methods"
        assert hash(method) == hash(make_method(name))
        with pytest.raises(dataclasses.FrozenInstanceError):
            method.name = "other"


def test_methods_print_the_options_that_were_changed():
    assert str(make_method("random")) == str(make_method("random", {"seed": 0})) == "random"
    options = {"calib_tokens": 64, "sign": -1}
    assert str(make_method("qfilters_keysvd", options)) == (
        "qfilters_keysvd(sign=-1, calib_tokens=64)"
    )


def test_only_sliding_window_has_no_sinks():
    most = {name: cls.max_sinks for name, cls in METHODS.items() if cls.max_sinks is not None}
    assert most == {"sliding_window": 0}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("qfilter", {}, r"unknown method 'qfilter'. Known: none, qfilters, .*sliding_window"),
        ("knorm", {"p": 2}, "method knorm has no option 'p': it has no options"),
        ("random", {"sed": 1}, "method random has no option 'sed': it has seed"),
        ("qfilters_keysvd", {"sign": 0}, "option sign=0 is not valid: 1 or -1"),
        ("qfilters_keysvd", {"sign": "plus"}, "option sign='plus' is not valid: 1 or -1"),
        ("qfilters_keysvd", {"sign": 2}, "sign=2 is not valid"),
        ("qfilters_keysvd", {"calib_tokens": 1}, "=1 is not valid: a whole number >= 2"),
        ("qfilters_keysvd", {"calib_tokens": 64.0}, "calib_tokens=64.0 is not valid"),
        ("qfilters_keysvd", {"calib_tokens": True}, "calib_tokens=True is not valid"),
        ("random", {"seed": -1}, "option seed=-1 is not valid: a whole number from 0"),
        ("random", {"seed": 2**32}, "is not valid: a whole number from 0"),
        ("random", {"seed": 0.5}, "seed=0.5 is not valid"),
        ("random", {"seed": True}, "seed=True is not valid"),
        ("qfilters_keysvd", {"sign": True}, "sign=True is not valid"),
        ("qfilters_keysvd", {"sign": 1.0}, "sign=1.0 is not valid"),
    ],
)
def test_wrong_names_and_options_are_refused_in_one_line(name, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        make_method(name, options)
    assert "\n" not in str(caught.value)
