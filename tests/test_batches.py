"""Arms in the batch dimension: every arm keeps and predicts what it does alone."""

import mlx.core as mx
import numpy as np
import pytest
import tiny

from qfilters import calibrate, evaluate_ppl
from qfilters.arms_cache import ArmsKVCache, arm_of
from qfilters.batches import batches, make_arms_cache, sort_arms
from qfilters.errors import UsageError
from qfilters.fork import Arm
from qfilters.future import future_attention
from qfilters.methods import METHODS
from qfilters.ppl import evaluate_arms
from qfilters.prompt_cache import as_method, make_prompt_cache

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


@pytest.mark.parametrize("step", [1, 9, 32])
@pytest.mark.parametrize("budget", [12, 31, 68])
def test_numbers_are_those_of_one_arm_at_a_time(model, filters, budget, step):
    together = {}
    for batch in batches(model, arms_at(budget), 69):
        found = evaluate_arms(model, ROWS, batch, step_size=step, filters=filters)
        together |= zip(batch, found, strict=True)
    assert len(together) == len(ALL)
    for arm, result in together.items():
        one = alone(model, arm, filters, step_size=step)
        difference = np.abs(np.subtract(result.nll, one.nll)) / one.n_tokens
        assert difference.max() <= 1e-5, (str(arm.method), difference)
        assert result.accounts == one.accounts, str(arm.method)
        assert result.n_tokens == one.n_tokens


@pytest.mark.parametrize("sizes", [[69], [1] * 69, [30, 1, 1, 1, 20, 1, 15], [5, 8, 1, 1, 30, 24]])
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
