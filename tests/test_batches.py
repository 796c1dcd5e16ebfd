"""Arms in the batch dimension: every arm keeps and predicts what it does alone."""

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm.models import llama as llama_file
from mlx_lm.models.base import scaled_dot_product_attention

from qfilters import calibrate, evaluate_ppl
from qfilters.batches import arm_batches, make_arms_cache, sort_arms
from qfilters.errors import ModelError, UsageError
from qfilters.fork import Arm
from qfilters.future import future_attention
from qfilters.methods import METHODS
from qfilters.ppl import evaluate_arms
from qfilters.prompt_cache import as_method, make_prompt_cache
from qfilters.tap import ATTENTION

# No token twice: equal tokens have keys of equal norm, and rounding would decide between them.
ROWS = [np.random.default_rng(r).permutation(250)[:70].tolist() for r in range(2)]
SMALL = {
    "qfilters_keysvd": "qfilters_keysvd(calib_tokens=40)",
    "snapkv": "snapkv(window=4)",
    "pyramidkv": "pyramidkv(window=4, beta=2)",
    "chunkkv": "chunkkv(window=6, chunk=3)",
}
ALL = [as_method(SMALL.get(name, name)) for name in METHODS if name != "none"]
ALL.append(as_method("qfilters_keysvd(sign=-1, calib_tokens=10)"))


@pytest.fixture(scope="module")
def model():
    return tiny.make()


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, ROWS)


def arms_at(budget, methods=ALL, sinks=2, recent=5):
    return [Arm(method, budget, sinks, recent) for method in methods]


def alone(model, arm, filters, rows=ROWS, **options):
    sizes = {"budget": arm.budget, "sinks": arm.sinks, "recent": arm.recent}
    return evaluate_ppl(model, rows, method=arm.method, filters=filters, **sizes, **options)


def check(model, arms, filters, rows=ROWS, **options):
    """Evaluate arms in their batches and alone; the batches."""
    found = arm_batches(model, arms, max(map(len, rows)) - 1)
    for batch in found:
        together = evaluate_arms(model, rows, batch, filters=filters, **options)
        for arm, result in zip(batch, together, strict=True):
            one = alone(model, arm, filters, rows, **options)
            apart = np.abs(np.subtract(result.nll, one.nll)) / one.n_tokens
            assert apart.max() <= 1e-5, (str(arm.method), apart)
            assert result.accounts == one.accounts, str(arm.method)
            assert result.n_tokens == one.n_tokens
    return found


@pytest.mark.parametrize(("step", "rows"), [(1, [ROWS[0][:40]]), (9, ROWS), (32, ROWS)])
@pytest.mark.parametrize("budget", [12, 31])
def test_numbers_are_those_of_one_arm_at_a_time(model, filters, budget, step, rows):
    found = check(model, arms_at(budget), filters, rows, step_size=step)
    assert [len(batch) for batch in found] == [len(ALL) - 1, 1], "pyramidkv has its own budgets"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("gemma3_text", "knorm qfilters h2o"),
        ("gpt_oss", "random tova snapkv(window=4) oracle"),
        ("qwen3_next", "streaming_llm qfilters chunkkv(window=6,chunk=3)"),
        ("gemma2", "knorm keydiff random"),
        ("phi3", "qfilters_mean expected_attention snapkv(window=4) snapkv(window=7)"),
    ],
)
def test_other_models(kind, names):
    model = tiny.make(kind)
    methods = [as_method(name) for name in names.split()]
    filters = calibrate(model, None, ROWS) if "qfilters" in names else None
    arms = arms_at(20, methods)
    assert check(model, arms, filters, ROWS[:1], step_size=7) == [arms]


@pytest.mark.parametrize("sizes", [[69], [1] * 36, [30, 1, 1, 1, 20, 1, 15], [5, 8, 1, 1, 30, 24]])
def test_rows_kept_are_those_of_one_arm_at_a_time(model, filters, sizes):
    """Call by call, in every layer and head, and for single arms that go on by themselves."""
    arms = sort_arms([arm for arm in arms_at(24) if arm.method.name != "pyramidkv"])
    future = future_attention(model, ROWS[0])
    caches = make_arms_cache(model, arms, filters, future)
    singles = [make_prompt_cache(model, arm.method, 24, 2, 5, filters, future) for arm in arms]
    ids, start = mx.array(ROWS[0]), 0
    for size in sizes:
        tokens = ids[start : start + size][None]
        logits = model(mx.repeat(tokens, len(arms), axis=0), cache=caches)
        mx.eval(logits, [c.state for c in caches])
        for b, single in enumerate(singles):
            own = model(tokens, cache=single)
            mx.eval(own, [c.state for c in single])
            np.testing.assert_allclose(np.array(logits[b]), np.array(own[0]), atol=2e-4)
            for cache, one in zip(caches, single, strict=True):
                name = str(arms[b].method)
                kept = cache.alone(b)
                np.testing.assert_array_equal(kept.positions, one.positions, name)
                assert kept.nbytes == one.nbytes and kept.nan_rows == one.nan_rows, name
        start += size
    assert {c.tokens_kept for c in caches} == {24}


def test_arms_with_nothing_to_evict_are_the_full_cache_exactly(model, filters):
    methods = [as_method(name) for name in ("none", "knorm", "h2o", "streaming_llm")]
    arms = [Arm(methods[0], None), *arms_at(69, methods[1:3]), *arms_at(68, methods[1:])]
    found = arm_batches(model, arms, 69)
    assert found == [[arms[0]], [arms[1]], [arms[2]], arms[3:]]
    none, *full = [evaluate_arms(model, ROWS, [arm])[0] for arm in arms[1:3]]
    assert all(result.nll == none.nll for result in full)
    assert none.nll == evaluate_ppl(model, ROWS, method="none").nll


def test_layers_that_cannot_serve_an_arm_are_another_batch():
    """In gemma2 queries cannot be observed: filters need them, norms do not."""
    model = tiny.make("gemma2")
    with pytest.raises(ModelError, match="qfilters"):
        arm_batches(model, arms_at(20, [as_method("knorm"), as_method("qfilters")]), 69)


@pytest.mark.parametrize(("name", "budget"), [("random", 21), (SMALL["pyramidkv"], 20)])
def test_arms_with_other_rows_do_not_fit(model, name, budget):
    arms = [Arm(as_method("knorm"), 20), Arm(as_method(name), budget, 2)]
    with pytest.raises(UsageError, match=r"equally many rows: knorm 20, .* do not"):
        evaluate_arms(model, ROWS, arms)


def test_progress_has_a_number_per_arm_in_the_order_asked(model):
    seen = []
    arms = arms_at(20, [as_method(name) for name in ("h2o", "knorm")])
    found = evaluate_arms(
        model, ROWS[:1], arms, step_size=40, progress=lambda *args: seen.append(args)
    )
    assert [args[:2] for args in seen] == [(40, 69), (69, 69)]
    assert seen[-1][2] == [result.perplexity for result in found]
    assert found[0].perplexity != found[1].perplexity


def test_fixed_scores_need_no_tap(model, monkeypatch):
    monkeypatch.setattr(llama_file, ATTENTION, scaled_dot_product_attention)
    evaluate_arms(model, ROWS[:1], arms_at(20, [as_method("knorm"), as_method("random")]))
    assert getattr(llama_file, ATTENTION) is scaled_dot_product_attention


def test_arms_that_watch_nothing_ignore_the_tap_of_others(filters):
    """Once a cache has installed the tap for good, it calls every cache that could observe."""
    model = tiny.make()
    fixed = arms_at(16, [as_method(name) for name in ("knorm", "random")])
    before = [result.nll for result in evaluate_arms(model, ROWS, fixed, filters=filters)]
    make_prompt_cache(model, "h2o", 16)
    after = [result.nll for result in evaluate_arms(model, ROWS, fixed, filters=filters)]
    assert after == before
