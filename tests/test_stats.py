import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qfilters.stats import (
    bootstrap_perplexity,
    gap_closed,
    mean_of_means,
    mean_t,
    paired_difference,
    wilson,
)


def test_perplexity_interval_equals_a_bootstrap_by_hand():
    rng = np.random.default_rng(5)
    n = rng.integers(50, 500, size=9)
    nll = n * (3 + 0.3 * rng.standard_normal(9))
    low, high = bootstrap_perplexity(nll, n, iters=20_000, seed=1)
    drawn = np.random.default_rng(2).integers(9, size=(20_000, 9))
    replicates = np.exp(nll[drawn].sum(1) / n[drawn].sum(1))
    by_hand = np.quantile(replicates, [0.025, 0.975])
    assert [low, high] == pytest.approx(by_hand, rel=0.01)
    assert low < math.exp(nll.sum() / n.sum()) < high


def test_long_sequences_weigh_more():
    # Ratio of sums: the short outlier hardly moves it, the mean of perplexities would explode.
    _, high = bootstrap_perplexity([3000.0] * 9 + [80.0], [1000] * 9 + [10], iters=2000)
    assert high < 23


def test_below_two_sequences_there_is_no_interval():
    assert bootstrap_perplexity([3.0], [1]) == (None, None)
    assert bootstrap_perplexity([], []) == (None, None)


def test_equal_sequences_give_a_point_not_nan():
    low, high = bootstrap_perplexity([20.0, 20.0, 20.0], [10, 10, 10], iters=200)
    assert low == high == pytest.approx(math.e**2)


def test_same_seed_same_interval():
    nll, n = [30.0, 41.0, 35.0, 29.0], [10, 12, 11, 10]
    assert bootstrap_perplexity(nll, n, 500, seed=7) == bootstrap_perplexity(nll, n, 500, seed=7)
    assert bootstrap_perplexity(nll, n, 500, seed=7) != bootstrap_perplexity(nll, n, 500, seed=8)


def test_level_widens():
    nll, n = [30.0, 41.0, 35.0, 29.0, 33.0], [10, 12, 11, 10, 10]
    narrow = bootstrap_perplexity(nll, n, 2000, level=0.5)
    wide = bootstrap_perplexity(nll, n, 2000, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_one_count_per_sequence():
    with pytest.raises(ValueError, match="one NLL and one count per sequence"):
        bootstrap_perplexity([1.0, 2.0], [1])


def test_interval_covers_the_truth_about_as_often_as_documented():
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(200):
        n = np.full(20, 1023)
        nll = n * (3.1 + 0.25 * rng.standard_normal(20))
        low, high = bootstrap_perplexity(nll, n, iters=400, seed=trial)
        hits += low <= math.exp(3.1) <= high
    assert 0.87 <= hits / 200 <= 0.98


def test_intervals_that_treat_tokens_as_independent_would_be_far_too_narrow():
    rng = np.random.default_rng(3)
    n = np.full(30, 1000)
    nll = n * (3 + 0.2 * rng.standard_normal(30))
    low, high = bootstrap_perplexity(nll, n, iters=1000)
    token_width = 2 * 1.96 * math.exp(3) * 2.0 / math.sqrt(30_000)  # tokens spread by 2 nat
    assert high - low > 2 * token_width


@pytest.mark.parametrize(("k", "n"), [(50, 50), (0, 12), (7, 10), (1, 1)])
def test_wilson_by_its_formula(k, n):
    z = 1.959963984540054
    centre = (k / n + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert wilson(k, n) == pytest.approx((centre - half, centre + half), abs=1e-12)


def test_wilson_of_fifty_out_of_fifty():
    assert wilson(50, 50) == pytest.approx((0.929, 1.0), abs=5e-4)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=12))
def test_paired_difference_is_antisymmetric_and_contains_the_mean(pairs):
    a, b = zip(*pairs, strict=True)
    mean, low, high = paired_difference(a, b, iters=300, seed=1)
    assert mean == pytest.approx(np.mean(a) - np.mean(b), abs=1e-9)
    spread = np.ptp(np.subtract(a, b))
    if spread == 0:
        assert (low, high) == (None, None)
        return
    assert low - spread <= mean <= high + spread
    back = paired_difference(b, a, iters=300, seed=1)
    assert back == pytest.approx((-mean, -high, -low), abs=1e-9)


def test_the_t_interval_covers_as_it_says_with_four_values_where_a_bootstrap_does_not():
    draws = np.random.default_rng(0).normal(1, 2, size=(2000, 4))
    inside = {"t": 0, "bootstrap": 0}
    for values in draws:
        for name, (_, low, high) in (
            ("t", mean_t(values)),
            ("bootstrap", paired_difference(values, np.zeros(4), iters=200)),
        ):
            inside[name] += low <= 1 <= high
    assert 0.93 < inside["t"] / 2000 < 0.97 and inside["bootstrap"] / 2000 < 0.87
    assert mean_t([3.0]) == (3.0, None, None) and mean_t([2.0, 2.0]) == (2.0, None, None)


def test_pairing_cancels_what_items_share():
    items = np.random.default_rng(0).normal(0, 100, size=40)
    mean, low, high = paired_difference(items + 1 + 0.1 * np.sin(items), items, iters=1000)
    assert mean == pytest.approx(1, abs=0.1) and 0.9 < low < high < 1.1


def test_the_interval_of_a_mean_is_scipys():
    from scipy.stats import bootstrap

    random = np.random.default_rng(0)
    values = random.normal(2, 3, size=30)
    wanted = bootstrap((values,), np.mean, method="percentile", n_resamples=20000, rng=random)
    _, low, high = paired_difference(values, np.zeros(30), iters=20000)
    assert (low, high) == pytest.approx(tuple(wanted.confidence_interval), abs=0.06)


def test_groups_are_resampled_independently():
    """The spread of a mean of means is that of independent means."""
    random = np.random.default_rng(1)
    groups = random.normal(0, 1, size=(8, 5))
    low, high = mean_of_means(groups, iters=20000)
    wanted = 2 * 1.96 * np.sqrt((groups.var(axis=1, ddof=1) / 5).sum()) / 8
    assert high - low == pytest.approx(wanted, rel=0.05) and low < groups.mean() < high
    assert mean_of_means([[1.0, 1.0], [0.0, 0.0]]) == (None, None) == mean_of_means([[1.0], [1, 2]])


def test_paired_difference_of_few():
    assert paired_difference([3.0], [1.0]) == (2.0, None, None)
    assert paired_difference([1.0, 2.0], [1.0, 2.0], iters=100) == (0.0, None, None)
    with pytest.raises(ValueError, match="pairs of scores"):
        paired_difference([1.0], [1.0, 2.0])


# --- the gap between a worse arm and the full cache ---


def test_gap_closed_is_the_share_won_back():
    """The earlier port's own row: 8.476 between 13.358 and 4.050 closes 52 %."""
    arms = [[10 * math.log(x)] for x in (8.476, 13.358, 4.050)]
    share, low, high = gap_closed(*arms, [10])
    assert (
        share == pytest.approx((13.358 - 8.476) / (13.358 - 4.050)) and (low, high) == (None,) * 2
    )
    assert round(100 * share) == 52


def test_gap_closed_resamples_whole_sequences_together():
    full, worse = np.array([10.0, 20.0, 30.0]), np.array([12.0, 23.0, 34.0])
    tokens = [10, 10, 10]
    assert gap_closed(full, worse, full, tokens)[0] == 1
    assert gap_closed(worse, worse, full, tokens) == pytest.approx((0, 0, 0))
    share, low, high = gap_closed((full + worse) / 2, worse, full, tokens, 500)
    assert low < share < high
    assert gap_closed(full, full, worse, tokens) == (None, None, None)


def test_a_gap_that_may_be_none_has_a_share_but_no_interval():
    tokens = [10] * 4
    full, worse = np.array([10.0, 20.0, 30.0, 40.0]), np.array([15.0, 18.0, 33.0, 39.0])
    share, low, high = gap_closed(full, worse, full, tokens)
    assert share == 1 and low is None and high is None


def test_draws_without_a_gap_make_no_nan():
    """In some draws of eight no text is among those whose gap is not 0."""
    full = np.arange(10.0, 18.0)
    worse = full + np.array([0, 0, 0, 2, 3, 2, 3, 2])
    share, low, high = gap_closed((full + worse) / 2, worse, full, [10] * 8)
    assert 0 < low <= share <= high < 1
