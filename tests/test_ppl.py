"""Perplexity: mlx-lm's own number without eviction, and honest accounts with it."""

import itertools

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from mlx_lm.perplexity import eval_ppl

from qfilters import calibrate, evaluate_ppl
from qfilters.errors import QFiltersError, UsageError
from qfilters.plan import make_model_cache

LENGTH = 520
ROWS = [[(7 * i * i + 3 * i + 17 * r) % 250 for i in range(LENGTH)] for r in range(2)]
SHORT = [row[:90] for row in ROWS]


@pytest.fixture(scope="module")
def model():
    return tiny.make()


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, SHORT)


@pytest.fixture(scope="module")
def theirs(model):
    return eval_ppl(model, mx.array(ROWS), batch_size=1)[0]


def reference(model, row, step, cache):
    """The same text token by token in float64, from the logits of each step."""
    total, logits = 0.0, []
    for start in range(0, len(row) - 1, step):
        out = model(mx.array(row[start : min(start + step, len(row) - 1)])[None], cache=cache)
        logits.append(np.array(out[0].astype(mx.float32), np.float64))
    for scores, target in zip(np.concatenate(logits), row[1:], strict=True):
        total += np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[target]
    return total


@pytest.mark.parametrize("step", [1, 32, 511, 519, 4096])
def test_none_is_mlx_lms_perplexity(model, theirs, step):
    result = evaluate_ppl(model, ROWS, method="none", step_size=step)
    assert result.perplexity == pytest.approx(theirs, rel=1e-5)
    assert result.n_tokens == [LENGTH - 1] * 2
    assert all(a["tokens_seen"] == a["tokens_kept"] == LENGTH - 1 for a in result.accounts)


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss", "qwen3_next", "gemma2"])
def test_none_on_models_with_caches_of_their_own(kind):
    model = tiny.make(kind)
    wanted = eval_ppl(model, mx.array(SHORT), batch_size=1)[0]
    result = evaluate_ppl(model, SHORT, method="none", step_size=16)
    assert result.perplexity == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    "method, step",
    [("knorm", 1), ("qfilters", 32), ("qfilters", 88), ("qfilters_keysvd", 32), ("random", 32)],
)
def test_a_budget_of_the_length_is_none_exactly(model, filters, method, step):
    options = {"step_size": step, "filters": filters}
    none = evaluate_ppl(model, SHORT, method="none", **options)
    full = evaluate_ppl(model, SHORT, method=method, budget=89, **options)
    assert full.nll == none.nll
    assert [a["rows_evicted"] for a in full.accounts] == [0, 0]
    less = evaluate_ppl(model, SHORT, method=method, budget=88, **options)
    assert [a["rows_evicted"] for a in less.accounts] == [1, 1]
    smaller = evaluate_ppl(model, SHORT, method=method, budget=30, **options)
    assert smaller.nll != none.nll
    assert [a["tokens_kept"] for a in smaller.accounts] == [30, 30]


@pytest.mark.parametrize("step", [1, 16, 50])
def test_it_is_what_a_loop_over_the_caches_gives(model, filters, step):
    from qfilters import make_prompt_cache

    options = {"method": "qfilters", "filters": filters, "budget": 24, "sinks": 2, "recent": 8}
    result = evaluate_ppl(model, SHORT, step_size=step, **options)
    for row, nll in zip(SHORT, result.nll, strict=True):
        wanted = reference(model, row, step, make_prompt_cache(model, **options))
        assert nll == pytest.approx(wanted, rel=1e-5)


def test_sequences_are_apart_and_add_up(model):
    rows = [SHORT[0], SHORT[1][:33], SHORT[0][:2]]
    result = evaluate_ppl(model, rows, method="knorm", budget=20, step_size=8)
    alone = [evaluate_ppl(model, [r], method="knorm", budget=20, step_size=8) for r in rows]
    assert result.nll == [r.nll[0] for r in alone]
    assert result.n_tokens == [89, 32, 1]
    mean = sum(result.nll) / 122
    assert result.perplexity == pytest.approx(np.exp(mean), rel=1e-12)
    assert [a["tokens_seen"] for a in result.accounts] == [89, 32, 1]
    assert [a["tokens_kept"] for a in result.accounts] == [20, 20, 1]
    assert result.seconds > 0


def test_every_next_token_is_predicted():
    """A model that knows the next token, and only that one, has perplexity 1."""

    class Successor(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __call__(self, tokens, cache=None):
            known = mx.where((tokens[..., None] + 1) % 259 == mx.arange(259), 100.0, 0.0)
            return 0 * self.inner(tokens, cache=cache) + known

        def make_cache(self):
            return make_model_cache(self.inner)

    model, row = Successor(tiny.make()), [i % 259 for i in range(70)]
    for step in (1, 23, 69):
        result = evaluate_ppl(model, [row], method="knorm", budget=16, step_size=step)
        assert result.perplexity == pytest.approx(1, abs=1e-6)
        assert result.n_tokens == [69]


def test_progress(model):
    seen = []
    result = evaluate_ppl(
        model, SHORT, method="none", step_size=40, progress=lambda *args: seen.append(args)
    )
    assert [done for done, *_ in seen] == [40, 80, 89, 129, 169, 178]
    assert {total for _, total, _ in seen} == {178}
    assert seen[-1][2] == result.perplexity


def test_rows_may_be_arrays(model):
    plain = evaluate_ppl(model, SHORT, method="none")
    for kind in (np.array, mx.array):
        assert evaluate_ppl(model, [kind(r) for r in SHORT], method="none").nll == plain.nll


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision(theirs, dtype):
    result = evaluate_ppl(tiny.make(dtype=dtype), SHORT, method="knorm", budget=100)
    wanted = evaluate_ppl(tiny.make(), SHORT, method="none")
    assert result.perplexity == pytest.approx(wanted.perplexity, rel=0.02)


@pytest.mark.parametrize("rows", [[], [[]], [[1]], [[1, 2], [3]]])
def test_rows_that_predict_nothing(model, rows):
    with pytest.raises(UsageError, match="at least 2 tokens"):
        evaluate_ppl(model, rows, method="none")


@pytest.mark.parametrize("step", [0, -1])
def test_steps_that_go_nowhere(model, step):
    with pytest.raises(UsageError, match="step_size"):
        evaluate_ppl(model, SHORT, method="none", step_size=step)


def test_logits_that_are_not_finite_are_an_error():
    model = tiny.make()
    model.model.norm.weight *= float("nan")
    with pytest.raises(QFiltersError, match="sequence 1: the model's logits are not finite"):
        evaluate_ppl(model, SHORT, method="none")


def test_more_room_is_not_worse_by_much(model, filters):
    """Not a law, but a cache that forgot the wrong rows would show here."""
    budgets = (12, 40, 89)
    found = [
        evaluate_ppl(model, SHORT, method="qfilters", filters=filters, budget=b).perplexity
        for b in budgets
    ]
    assert all(b < 1.2 * a for a, b in itertools.pairwise(found))
