"""Intervals: perplexity by bootstrap over sequences, shares by Wilson, means of texts by t.

Thin over scipy. Knows nothing about models; deterministic for a given seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

Interval = tuple[float, float] | tuple[None, None]


def bootstrap_perplexity(
    nll_sums: Sequence[float],
    n_tokens: Sequence[int],
    iters: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap interval of exp(total NLL / total tokens), in perplexity.

    nll_sums: one total NLL (nat) per sequence, shape `[N]`; n_tokens: predicted tokens, `[N]`.
    Whole sequences are resampled, because the tokens of one text are not independent. With few
    sequences the interval is too narrow, as every bootstrap is: of nominal 95 % intervals about
    80 % cover the truth at N = 4, 87 % at 8, 93 % at 20. Below two sequences: (None, None).
    """
    sums = np.asarray(nll_sums, dtype=np.float64)
    tokens = np.asarray(n_tokens, dtype=np.float64)
    if sums.shape != tokens.shape or sums.ndim != 1:
        raise ValueError(f"one NLL and one count per sequence: got {sums.shape}, {tokens.shape}")
    if len(sums) < 2:
        return None, None

    def perplexity(sums: np.ndarray, tokens: np.ndarray, axis: int) -> np.ndarray:
        return np.exp(sums.sum(axis=axis) / tokens.sum(axis=axis))

    return _bootstrap((sums, tokens), perplexity, iters, seed, level)


def wilson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of the share k / n (0 to 1); 50 of 50 gives 0.929 to 1."""
    from scipy.stats import binomtest

    interval = binomtest(k, n).proportion_ci(level, method="wilson")
    return float(interval.low), float(interval.high)


def mean_t(
    values: Sequence[float], level: float = 0.95
) -> tuple[float, float | None, float | None]:
    """Mean with its Student t interval; (mean, low, high).

    For a few values that scatter about evenly, such as one of each text: exact for normal ones,
    where a bootstrap of four covers 80 % instead of 95 %. Below two values, and where all are
    equal, which says nothing about their spread, the interval is (None, None).
    """
    from scipy.stats import ttest_1samp

    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2 or np.ptp(sample) == 0:
        return mean, None, None
    found = ttest_1samp(sample, 0).confidence_interval(level)
    return mean, float(found.low), float(found.high)


def mean_interval(
    values: Sequence[float], iters: int = 10_000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Interval of the mean of scores between 0 and 1, over samples.

    Wilson when every score is 0 or 1, or when all are equal, because a bootstrap of equal values
    would have no width; then it covers both whole numbers of hits next to the sum. Else a
    percentile bootstrap. Below two samples: (None, None).
    """
    scores = np.asarray(values, dtype=np.float64)
    if len(scores) < 2:
        return None, None
    if np.isin(scores, (0, 1)).all() or np.ptp(scores) == 0:
        hits = round(float(scores.sum()), 9)
        low, _ = wilson(math.floor(hits), len(scores), level)
        _, high = wilson(math.ceil(hits), len(scores), level)
        return low, high
    return _mean_interval(scores, iters, seed, level)


def mean_of_means(
    groups: Sequence[Sequence[float]], iters: int = 10_000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Interval of the unweighted mean of group means: the samples of each group are resampled.

    Of n samples n - 1 are drawn, which makes the spread of a group's mean unbiased (Rao and Wu,
    1988): with five, n of n would be 11 % too narrow, however many groups there are.
    (None, None) where a group has fewer than two samples, or where no group varies.
    """
    if min(map(len, groups)) < 2 or max(map(np.ptp, groups)) == 0:
        return None, None
    # Groups of one size share their draws; their order is what makes groups independent.
    random = np.random.default_rng(seed)
    means = [
        random.permutation(
            _resamples(len(group), iters, seed, len(group) - 1) @ np.asarray(group, np.float64)
        )
        for group in groups
    ]
    return _quantiles(np.mean(means, axis=0), level)


def _mean_interval(values: np.ndarray, iters: int, seed: int, level: float) -> Interval:
    """Percentile bootstrap of a mean; (None, None) where the values do not vary."""
    if len(values) < 2 or np.ptp(values) == 0:
        return None, None
    return _quantiles(_resamples(len(values), iters, seed) @ values, level)


@lru_cache(maxsize=2)
def _resamples(n: int, iters: int, seed: int, draws: int | None = None) -> np.ndarray:
    """The share of `draws` (n) that each of n items is, `[iters, n]`: a bootstrap is a product."""
    draws = draws or n
    return np.random.default_rng(seed).multinomial(draws, np.full(n, 1 / n), size=iters) / draws


def _quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def paired_difference(
    a: Sequence[float],
    b: Sequence[float],
    iters: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float | None, float | None]:
    """Mean of a - b over pairs, with its percentile bootstrap interval; (mean, low, high).

    a, b: scores of two arms on the same items, shape `[N]`. Pairs are resampled together, so the
    spread between items cancels. Below two pairs, and where all differences are equal, which says
    nothing about their spread, the interval is (None, None).
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(f"pairs of scores are needed: got shapes {first.shape}, {second.shape}")
    difference = first - second
    mean = float(difference.mean())
    return mean, *_mean_interval(difference, iters, seed, level)


def gap_closed(
    nll_sums: Sequence[float],
    worse: Sequence[float],
    full: Sequence[float],
    n_tokens: Sequence[int],
    iters: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float | None, float | None, float | None]:
    """Share of the perplexity between `worse` and `full` that an arm wins back; (share, low, high).

    (worse - arm) / (worse - full) in perplexity, 1 at the full cache's; percentile bootstrap of
    whole sequences, the same for all three. Nothing (three None) where `worse` is not above `full`;
    no interval below two sequences, and where the one of worse - full does not lie above 0: the
    share of a gap that may be none is nowhere. The few draws without a gap are left out of it.

    nll_sums, worse, full: total NLL (nat) per sequence, shape `[N]`; n_tokens: predicted tokens.
    """
    samples = [np.asarray(x, dtype=np.float64) for x in (nll_sums, worse, full, n_tokens)]

    def won_and_gap(weights):
        *sums, tokens = (weights @ x for x in samples)
        arm, worse, full = (np.exp(x / tokens) for x in sums)
        return worse - arm, worse - full

    won, gap = won_and_gap(np.ones(len(samples[0])))
    if gap <= 0:
        return None, None, None
    found = float(won / gap)
    if len(samples[0]) < 2:
        return found, None, None
    won, gap = won_and_gap(_resamples(len(samples[0]), iters, seed))
    if _quantiles(gap, level)[0] <= 0:
        return found, None, None
    return found, *_quantiles(won[gap > 0] / gap[gap > 0], level)


def median_interval(
    values: Sequence[float], iters: int = 10_000, seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """Median of values, shape `[N]`, with its percentile bootstrap interval; N >= 2."""
    sample = np.asarray(values, dtype=np.float64)
    return float(np.median(sample)), *_bootstrap((sample,), np.median, iters, seed, level)


def _bootstrap(samples, statistic, iters: int, seed: int, level: float) -> tuple[float, float]:
    # Percentile, not BCa: BCa is NaN when all values are equal, and covers no better (see tests).
    from scipy.stats import bootstrap

    result = bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=iters,
        confidence_level=level,
        rng=np.random.default_rng(seed),
    )
    interval = result.confidence_interval
    return float(interval.low), float(interval.high)
