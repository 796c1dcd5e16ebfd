"""The methods that watch attention keep the rows that a plain numpy implementation keeps."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from obvious_methods import History, assert_same_rows
from recorded import KV_HEADS, METHODS, Recorder, dense_histories, future, llama, run, small, tokens

from qfilters.fork import Arm, prefill
from qfilters.future import future_attention
from qfilters.prompt_cache import make_prompt_cache

BUDGET, SINKS, RECENT = 16, 2, 4
# Decode from nothing, chunks that end below, at and above the budget, and long and short ones.
STREAMS = [
    [11, 1, 1, 20, 7, 1, 1, 1, 1, 1, 30, 1, 1],
    [1] * 40,
    [17, 1, 1, 1, 2, 1, 33],
    [60, 1, 1, 1],
]


def pairwise(*axes):
    """Few rows of the product of `axes` such that all pairs of values occur together."""
    rows = list(itertools.product(*axes))
    places = list(itertools.combinations(range(len(axes)), 2))
    open_pairs = {(i, j, row[i], row[j]) for row in rows for i, j in places}
    chosen = []
    while open_pairs:
        row = max(rows, key=lambda r: sum((i, j, r[i], r[j]) in open_pairs for i, j in places))
        open_pairs -= {(i, j, row[i], row[j]) for i, j in places}
        chosen.append(row)
    return chosen


CASES = pairwise(
    METHODS, ["stream", "after_prefill"], list(KV_HEADS), [mx.float32, mx.float16], [1, 2]
)


@pytest.mark.parametrize(("name", "mode", "heads", "dtype", "batch"), CASES)
def test_kept_rows_are_those_of_the_plain_implementation(name, mode, heads, dtype, batch):
    model, which = llama(heads, dtype), METHODS.index(name)
    if mode == "stream":
        check_stream(model, small(name), batch, STREAMS[which % len(STREAMS)])
    else:
        check_after_prefill(model, small(name), batch, [23, 30, 1][: 1 + which % 3])


@pytest.mark.parametrize("sizes", STREAMS)
@pytest.mark.parametrize("name", METHODS)
def test_every_mixture_of_chunks_and_tokens(name, sizes):
    check_stream(llama(layers=2), small(name), 1, sizes)


def check_stream(model, method, batch, sizes):
    """After every call: what attention saw, what stays, and how many rows."""
    ids, facts = tokens(sum(sizes), batch), {}
    histories = [None] * len(model.layers)
    if method.needs_future:
        batch, ids = 1, ids[:1]
        facts["future"] = future_attention(model, ids[0].tolist(), 16)
        dense = dense_histories(model, ids, [sum(sizes)])
        for i, history in enumerate(dense):
            np.testing.assert_allclose(facts["future"][i], future(history), atol=2e-2)
        histories = [np.array(facts["future"][i]) for i in range(len(dense))]
    caches = make_prompt_cache(model, method, BUDGET, SINKS, RECENT, **facts)
    assert sum(c.budget for c in caches) == BUDGET * len(caches)
    histories = [
        History(method, (c.budget, c.sinks, c.recent), future=f)
        for c, f in zip(caches, histories, strict=True)
    ]
    caches = [Recorder(c) for c in caches]
    kept = [np.zeros((batch, c.layer.n_kv_heads, 0), dtype=int) for c in caches]
    for seen in run(model, caches, ids, sizes):
        for i, (cache, history) in enumerate(zip(caches, histories, strict=True)):
            history.call(*cache.call(), kept[i])
            for got, all_rows in zip(cache.rows, (history.keys, history.values), strict=True):
                rows = np.array(got.astype(mx.float32))[..., 0]
                for b, h in np.ndindex(rows.shape[:2]):
                    should = all_rows[b, h, history.held[b, h], 0]
                    np.testing.assert_array_equal(np.sort(rows[b, h]), np.sort(should))
            actual = np.array(cache.positions)
            assert cache.offset == seen and actual.shape[-1] == min(seen, cache.budget)
            scores, ideal = history.choose()
            assert_same_rows(actual, ideal, scores)
            kept[i] = actual
            if method.name == "tova":
                assert (actual == actual[:, :1]).all(), "one set for all heads"


def check_after_prefill(model, method, batch, sizes):
    """One prefill, `batch` arms; a fork holds what `kept` says."""
    ids, continuation = tokens(sum(sizes)), tokens(9, seed=1)
    step = sizes[0]
    histories = dense_histories(model, ids, [step] * (len(ids[0]) // step) or [step], method)
    n, arms = len(ids[0]), [Arm(method, BUDGET, SINKS, 4 + i) for i in range(batch)]
    rest = n % step
    if rest:
        whole = [step] * (n // step) + [rest]
        histories = dense_histories(model, ids, whole, method)
    if method.needs_future:
        both = np.concatenate([ids, continuation], axis=1)
        for history, longer in zip(
            histories, dense_histories(model, both, [both.shape[1]]), strict=True
        ):
            history.future = future(longer, since=n)
    done = prefill(
        model, ids[0].tolist(), [method], continuation=continuation[0].tolist(), step_size=step
    )
    kept = [done.kept(arm) for arm in arms]
    forked = done.fork(arms)
    assert sum(k.shape[-1] for k in kept[0]) == BUDGET * len(histories)
    for i, history in enumerate(histories):
        for b, arm in enumerate(arms):
            budget, recent = kept[b][i].shape[-1], max(arm.recent, method.window)
            history.limits = (budget, SINKS, min(recent, budget - SINKS))
            scores, ideal = history.choose()
            actual = np.array(kept[b][i])
            assert_same_rows(actual, ideal, scores)
            for got, rows in zip(forked[i].state[0], (history.keys, history.values), strict=True):
                got = np.array(got[b : b + 1].astype(mx.float32))
                np.testing.assert_array_equal(got, np.take_along_axis(rows, actual[..., None], 2))
        assert forked[i].offset == n
