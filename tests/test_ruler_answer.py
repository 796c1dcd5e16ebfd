"""Answers: a batch says what its arms say alone, and what mlx-lm says with a full cache."""

import mlx.core as mx
import pytest
import tiny
from mlx_lm.generate import generate_step
from recorded import llama, small, tokens
from streams import plain_caches

from qfilters import Arm, calibrate, prefill
from qfilters.batches import arm_batches
from qfilters.errors import ModelError, QFiltersError, UsageError
from qfilters.methods import METHODS, make_method
from qfilters.prompt_cache import make_prompt_cache
from qfilters.ruler.answer import answer_arms, answer_streams, greedy

N = 60
IDS = tokens(N + 12, seed=3)[0].tolist()
CONTEXT, REST = IDS[:N], IDS[N:]
ALL = [small(name) for name in METHODS]
LIMIT = 20


@pytest.fixture(scope="module")
def model():
    return llama("GQA")


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, [tokens(64, seed=5)[0].tolist()])


@pytest.fixture(scope="module")
def done(model, filters):
    return prefill(model, CONTEXT, ALL, filters, continuation=REST, step_size=25)


def plain_greedy(model, ids, limit, eos=()):
    said = []
    for token, _ in generate_step(
        mx.array(ids), model, max_tokens=limit, prompt_cache=plain_caches(model)
    ):
        if token in eos:
            return said, "stop"
        said.append(token)
    return said, "length"


def arms(*budgets):
    return [Arm(m, b) for b in budgets for m in ALL if m.evicts] + [Arm(make_method("none"), None)]


def test_all_arms_at_once_say_what_each_says_alone(model, done):
    together = answer_arms(model, done, arms(24, 40), REST, LIMIT, set())
    for arm, answer in zip(arms(24, 40), together, strict=True):
        (alone,) = answer_arms(model, done, [arm], REST, LIMIT, set())
        assert answer == alone, arm


def test_one_prefill_serves_a_method_as_its_own_prefill_does(model, filters, done):
    for method in ALL:
        own = prefill(model, CONTEXT, [method], filters, continuation=REST, step_size=25)
        arm = Arm(method, 24)
        for shared, alone in zip(done.kept(arm), own.kept(arm), strict=True):
            assert mx.array_equal(shared, alone), method


@pytest.mark.parametrize("budget", [None, N, N + 5])
def test_what_keeps_the_whole_context_says_what_mlx_lm_says(model, done, budget):
    wanted = plain_greedy(model, IDS, LIMIT)
    method = make_method("none") if budget is None else ALL[1]
    (answer,) = answer_arms(model, done, [Arm(method, budget)], REST, LIMIT, set())
    assert (answer.tokens, answer.finish) == wanted and answer.kept == N


def test_every_row_stops_by_itself(model, done):
    """End tokens chosen from what arms really say, so that they stop at different steps."""
    free = answer_arms(model, done, arms(24), REST, LIMIT, set())
    eos = {answer.tokens[i] for i, answer in enumerate(free) if i < len(answer.tokens)}
    stopped = answer_arms(model, done, arms(24), REST, LIMIT, eos)
    assert len({len(answer.tokens) for answer in stopped}) > 2
    for without, answer in zip(free, stopped, strict=True):
        ends = [i for i, token in enumerate(without.tokens) if token in eos]
        assert answer.tokens == without.tokens[: ends[0] if ends else LIMIT]
        assert answer.finish == ("stop" if ends else "length")


def test_an_answer_may_be_empty_or_one_token_long(model, done):
    (free,) = answer_arms(model, done, [Arm(ALL[1], 24)], REST, 1, set())
    assert len(free.tokens) == 1 and free.finish == "length"
    (none,) = answer_arms(model, done, [Arm(ALL[1], 24)], REST, LIMIT, {free.tokens[0]})
    assert none.tokens == [] and none.finish == "stop"


def test_skipped_layers_keep_everything(model, done):
    arm = Arm(ALL[1], 24, skip=1)
    assert done.sizes(arm) == (N, *[24] * (len(done.layers) - 1))
    assert done.kept(arm)[0].shape[2] == N
    assert done.sizes(Arm(ALL[1], 24, skip=99)) == done.sizes(Arm(make_method("none"), None))


def test_layers_with_states_of_their_own_follow_the_batch():
    """A hybrid model: the untouched layers' states are repeated, and leave with their rows."""
    model = tiny.make("qwen3_next")
    knorm, window = make_method("knorm"), make_method("streaming_llm")
    done = prefill(model, CONTEXT, [knorm, window], None, step_size=25)
    both = [Arm(knorm, 24), Arm(window, 24)]
    free = answer_arms(model, done, both, REST, LIMIT, set())
    eos = {free[0].tokens[2]}
    stopped = answer_arms(model, done, both, REST, LIMIT, eos)
    for without, answer in zip(free, stopped, strict=True):
        ends = [i for i, token in enumerate(without.tokens) if token in eos]
        assert answer.tokens == without.tokens[: ends[0] if ends else LIMIT]


@pytest.mark.parametrize("kind", tiny.CONFIGS)
def test_arms_together_say_what_each_says_alone_on_any_model(kind):
    """Also where layers share masks, and some keep caches of their own."""
    model = tiny.make(kind)
    methods = [make_method("knorm"), make_method("streaming_llm")]
    try:
        done = prefill(model, CONTEXT, methods, None, step_size=25)
    except ModelError:
        return  # nothing of it can be evicted
    everything = [Arm(make_method("none"), None)]
    for skip in (0, 1):
        few = [Arm(m, b, skip=skip) for m in methods for b in (24, 40, N + 1)] + everything
        if skip and done.one_mask:
            with pytest.raises(UsageError, match="none can be skipped"):
                done.sizes(few[0])
            continue
        together = answer_arms(model, done, few, REST, 6, set())
        for arm, answer in zip(few, together, strict=True):
            (alone,) = answer_arms(model, done, [arm], REST, 6, set())
            assert answer == alone, (arm, done.batches(few))


def test_layers_that_share_a_mask_refuse_padding():
    model, knorm = tiny.make("afm7"), make_method("knorm")
    done = prefill(model, CONTEXT, [knorm], None, step_size=25)
    assert not done.may_pad
    with pytest.raises(UsageError, match="share masks"):
        done.fork([Arm(knorm, 24), Arm(knorm, 40)])


def test_a_batch_is_no_larger_than_its_limit(done):
    alike = [Arm(m, 24) for m in ALL if m.evicts and m.name != "pyramidkv"]
    assert len(done.batches(alike)) == 1
    assert {len(b) for b in done.batches(alike, batch_bytes=2 * 24 * done._row_bytes)} <= {1, 2}
    assert {len(b) for b in done.batches(alike, batch_bytes=1)} == {1}


def test_a_stream_answers_as_generation_under_the_budget_does(model, filters):
    arm = Arm(make_method("qfilters"), 24)
    (answer,) = answer_streams(
        model, [arm], CONTEXT, REST, LIMIT, set(), step_size=16, filters=filters
    )
    caches = make_prompt_cache(model, "qfilters", 24, filters=filters)
    steps = generate_step(
        mx.array(IDS), model, max_tokens=LIMIT, prompt_cache=caches, prefill_step_size=16
    )
    assert answer.tokens == [token for token, _ in steps]
    assert (answer.kept, answer.seen) == (24, len(IDS) - 1)


@pytest.mark.parametrize("budget", [24, len(IDS) + 8, len(IDS) + LIMIT])
def test_streams_together_say_what_each_says_alone(model, filters, budget):
    """At the middle budget rows go while an answer is given, unless it ended before."""
    arms_here = [a for a in arms(budget) if not a.method.needs_future]
    how = {"step_size": 16, "filters": filters}
    (free,) = answer_streams(model, arms_here[:1], CONTEXT, REST, LIMIT, set(), **how)
    eos, found = {free.tokens[3]}, {}
    for batch in arm_batches(model, arms_here, len(IDS) + LIMIT):
        together = answer_streams(model, batch, CONTEXT, REST, LIMIT, eos, **how)
        for arm, answer in zip(batch, together, strict=True):
            assert [answer] == answer_streams(model, [arm], CONTEXT, REST, LIMIT, eos, **how)
            found[arm.method.name] = answer
    assert found["knorm"].evicted == (len(IDS) + len(found["knorm"].tokens) > budget)
    assert found["qfilters"].finish == "stop" and not found["none"].evicted
    if budget == 24:
        assert max(map(len, arm_batches(model, arms_here, len(IDS) + LIMIT))) > 10


def test_a_model_without_finite_logits_answers_nothing():
    model = llama("GQA")
    model.layers[1].self_attn.o_proj.weight *= mx.nan
    with pytest.raises(QFiltersError, match="logits are not finite"):
        greedy(model, plain_caches(model), IDS, 1, 5, set())


def test_greedy_feeds_the_same_tokens_to_every_row(model):
    (alone,) = greedy(model, plain_caches(model), IDS, 1, 5, set())
    assert greedy(model, plain_caches(model), IDS, 3, 5, set()) == [alone] * 3
