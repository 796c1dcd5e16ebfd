"""The embedded model itself: what only a trained model can show. Filters are the shipped ones."""

from pathlib import Path

import pytest

from qfilters import Filters, evaluate_ppl, load, make_prompt_cache
from qfilters.fork import Arm
from qfilters.generate import GenerationStats, chat_prompt, stream_text
from qfilters.ppl import evaluate_arms
from qfilters.prompt_cache import as_method
from qfilters.text import load_corpus, token_rows

pytestmark = pytest.mark.real
SHIPPED = Path(__file__).parents[1] / "artifacts" / "filters" / "smollm2-135m.npz"


@pytest.fixture(scope="module")
def real():
    return load()


def test_the_shipped_filters_are_of_this_model(real):
    filters = Filters.load(SHIPPED)
    filters.check(real[0], "smollm2-135m")
    assert filters.q_filters.shape == (30, 3, 64)
    assert (filters.mean_projection > 0).all()


def test_a_full_cache_answers(real):
    model, tokenizer = real
    prompt = chat_prompt(tokenizer, "What is the capital of France?")
    caches = make_prompt_cache(model, method="none")
    text = "".join(stream_text(model, tokenizer, prompt, caches, GenerationStats(), max_tokens=12))
    assert "Paris" in text


def test_eviction_by_filters_costs_less_than_by_chance(real):
    """none < qfilters < random on 512 tokens of prose at a budget of 48 rows."""
    model, tokenizer = real
    rows = token_rows(load_corpus("builtin", "evaluation"), tokenizer, 1, 512)
    filters = Filters.load(SHIPPED)
    arms = [Arm(as_method(name), 48) for name in ("qfilters", "random")]
    ours, chance = evaluate_arms(model, rows, arms, filters=filters)
    none = evaluate_ppl(model, rows, method="none", step_size=256)
    assert none.perplexity < ours.perplexity < chance.perplexity


def test_arms_in_one_batch_are_the_arms_alone(real):
    """One token at a time and in chunks, by filters, by norms and by attention."""
    model, tokenizer = real
    rows = token_rows(load_corpus("builtin", "evaluation"), tokenizer, 1, 64)
    filters = Filters.load(SHIPPED)
    arms = [Arm(as_method(name), 12) for name in ("qfilters", "h2o")]
    for row, step in ((rows[0][:20], 1), (rows[0], 20)):
        found = evaluate_arms(model, [row], arms, step_size=step, filters=filters)
        for arm, result in zip(arms, found, strict=True):
            how = {"method": arm.method, "budget": 12, "filters": filters}
            alone = evaluate_ppl(model, [row], step_size=step, **how)
            assert abs(result.nll[0] - alone.nll[0]) / len(row) < 1e-4
