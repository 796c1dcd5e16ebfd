import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obvious import stay

from qfilters.select import (
    RANK_NAN,
    RANK_PROTECTED,
    next_victim,
    protect,
    rank,
    rank_row,
    survivors,
    victim,
)

NAN, INF = float("nan"), float("inf")
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)
SPECIAL = [-NAN, NAN, -INF, -LARGEST, -1.0, -SMALLEST, -0.0, 0.0, SMALLEST, 1.0, LARGEST, INF]

any_score = st.sampled_from(SPECIAL) | st.floats(width=32)


def as_ranks(scores) -> np.ndarray:
    return np.array(rank(mx.array(np.array(scores, dtype=np.float32))))


@settings(deadline=None)
@given(any_score, any_score)
def test_rank_orders_as_numbers_with_nan_below_all(a, b):
    first, second = (int(x) for x in as_ranks([a, b]))
    if np.isnan(a) or np.isnan(b):
        assert (first == RANK_NAN) == bool(np.isnan(a))
        assert (first < second) == bool(np.isnan(a) and not np.isnan(b))
    else:
        assert (first < second) == (a < b) and (first == second) == (a == b)


def test_ranks_of_special_scores():
    ranks = as_ranks(SPECIAL)
    assert ranks.dtype == np.int32
    assert ranks[0] == ranks[1] == RANK_NAN, "both NaNs"
    assert ranks[6] == ranks[7] == 0, "-0 equals +0"
    distinct = np.delete(ranks, [0, 6])
    assert (np.diff(distinct.astype(np.int64)) > 0).all(), "strictly ascending otherwise"
    assert ranks.max() < RANK_PROTECTED, "+inf is below the protected rows"


def test_protect_lifts_sinks_and_recent_and_nothing_else():
    positions = mx.arange(10, dtype=mx.int32)[None, None]
    ranks = mx.full((1, 1, 10), RANK_NAN, dtype=mx.int32)
    lifted = np.array(protect(ranks, positions, sinks=2, limit=7))[0, 0] == RANK_PROTECTED
    assert lifted.tolist() == [True] * 2 + [False] * 5 + [True] * 3
    none = protect(ranks, positions, sinks=0, limit=10)
    assert (np.array(none) == RANK_NAN).all()


@st.composite
def selections(draw, pool=any_score):
    """Scores [B, H, n], a budget below n and a legal protection."""
    n = draw(st.integers(2, 24))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), n)
    scores = draw(st.lists(pool, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    budget = draw(st.integers(1, n - 1))
    sinks = draw(st.integers(0, budget - 1))
    recent = draw(st.just(budget - 1 - sinks) | st.integers(0, budget - 1 - sinks))
    return np.array(scores, dtype=np.float32).reshape(shape), budget, sinks, recent


few_values = selections(pool=st.sampled_from([-INF, 0.0, -0.0, 1.0, INF, NAN]))


def lifted_ranks(scores, sinks, recent):
    positions = mx.broadcast_to(mx.arange(scores.shape[-1], dtype=mx.int32), scores.shape)
    ranks = rank(mx.array(scores))
    return protect(ranks, positions, sinks, scores.shape[-1] - recent), positions


@settings(deadline=None)
@given(selections() | few_values)
def test_survivors_are_those_of_a_full_sort(case):
    scores, budget, sinks, recent = case
    ranks, _ = lifted_ranks(scores, sinks, recent)
    found = survivors(ranks, budget)
    assert found.dtype == mx.int32
    np.testing.assert_array_equal(np.array(found), stay(scores, budget, sinks, recent))


@settings(deadline=None)
@given(selections() | few_values, st.randoms(use_true_random=False))
def test_victim_is_the_row_a_full_sort_drops_whatever_the_order_of_the_slots(case, random):
    scores, _, sinks, recent = case
    n = scores.shape[-1]
    sinks, recent = min(sinks, n - 1), min(recent, n - 1 - min(sinks, n - 1))
    slots = list(range(n))
    random.shuffle(slots)
    ranks, positions = lifted_ranks(scores, sinks, recent)
    shuffled = mx.array(slots)
    found = victim(ranks[..., shuffled], positions[..., shuffled])
    assert found.shape == (*scores.shape[:2], 1) and found.dtype == mx.int32
    dropped = np.array(slots)[np.array(found)]
    stays = stay(scores, n - 1, sinks, recent)
    for b, h in np.ndindex(scores.shape[:2]):
        assert sorted([*stays[b, h], dropped[b, h, 0]]) == list(range(n))


def test_a_protected_row_outlives_plus_infinity():
    scores = np.full((1, 1, 6), INF, dtype=np.float32)
    scores[..., 0] = scores[..., 5] = NAN
    ranks, positions = lifted_ranks(scores, sinks=1, recent=1)
    assert np.array(survivors(ranks, 3))[0, 0].tolist() == [0, 1, 5]
    assert victim(ranks, positions).item() == 4


@pytest.mark.parametrize("value", [0.0, INF, -INF, NAN])
def test_among_equals_the_lower_positions_stay(value):
    ranks, positions = lifted_ranks(np.full((2, 3, 9), value, dtype=np.float32), 0, 0)
    assert (np.array(survivors(ranks, 4)) == [0, 1, 2, 3]).all()
    assert (np.array(victim(ranks, positions)) == 8).all()


def test_a_large_selection_is_exact():
    rng = np.random.default_rng(0)
    scores = rng.choice([0.0, 0.25, 1.0], size=(2, 3, 5000)).astype(np.float32)
    scores[:, :, ::7] = rng.normal(size=scores[:, :, ::7].shape)
    for budget in (1, 255, 2048, 4999):
        ranks, _ = lifted_ranks(scores, 0, 0)
        np.testing.assert_array_equal(
            np.array(survivors(ranks, budget)), stay(scores, budget, 0, 0)
        )


@settings(deadline=None)
@given(selections() | few_values)
def test_what_a_decoded_token_asks_is_answered_alike(case):
    """`rank_row` is `rank`; `next_victim` is `protect` and `victim`, for rows in any order."""
    scores, _, sinks, recent = case
    lifted, positions = lifted_ranks(scores, sinks, recent)
    plain = rank(mx.array(scores))
    assert mx.array_equal(rank_row(mx.array(scores)), plain)
    at = mx.array(np.random.default_rng(0).permutation(scores.shape[-1]))
    limit = mx.array(scores.shape[-1] - recent, dtype=mx.int32)
    found = next_victim(plain[..., at], positions[..., at], mx.array(sinks, dtype=mx.int32), limit)
    assert found.dtype == mx.int32
    assert mx.array_equal(found, victim(lifted[..., at], positions[..., at]))
