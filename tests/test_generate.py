"""Generation: mlx-lm's text, and numbers that agree with what happened."""

import time
import warnings

import mlx.core as mx
import pytest
import tiny
from mlx_lm import load, stream_generate

from qfilters import make_prompt_cache
from qfilters.errors import QFiltersWarning, UsageError
from qfilters.generate import GenerationStats, chat_prompt, stream_text
from qfilters.plan import make_model_cache

PROMPT = [(7 * i * i + 3 * i) % 250 for i in range(70)]


@pytest.fixture(scope="module")
def loaded(tiny_folder):
    return load(str(tiny_folder))


@pytest.fixture
def fresh(loaded, tiny_folder):
    """Model and a tokenizer that a test may change."""
    return loaded[0], load(str(tiny_folder))[1]


def cache(model, budget=1000, **options):
    return make_prompt_cache(model, method="knorm", budget=budget, recent=budget // 4, **options)


def run(loaded, prompt=PROMPT, caches=None, **options):
    stats = GenerationStats()
    caches = caches or cache(loaded[0])
    pieces = list(stream_text(*loaded, prompt, caches, stats, **options))
    return "".join(pieces), stats, caches


def greedy(model, prompt, n):
    """Tokens of a loop of our own over the model's caches."""
    caches, tokens, out = make_model_cache(model), prompt, []
    for _ in range(n):
        logits = model(mx.array(tokens)[None], cache=caches)
        out.append(mx.argmax(logits[0, -1]).item())
        tokens = out[-1:]
    return out


@pytest.mark.parametrize("step", [16, 69, 70, 2048])
def test_the_text_is_mlx_lms_when_everything_fits(loaded, step):
    theirs = "".join(r.text for r in stream_generate(*loaded, PROMPT, max_tokens=40))
    text, stats, _ = run(loaded, max_tokens=40, prefill_step_size=step)
    assert text == theirs and text
    assert stats.account["rows_evicted"] == 0


@pytest.mark.parametrize("length", [1, 2, 70])
@pytest.mark.parametrize("max_tokens", [1, 2, 30])
def test_counts(loaded, length, max_tokens):
    prompt = PROMPT[:length]
    assert not set(greedy(loaded[0], prompt, max_tokens)) & loaded[1].eos_token_ids
    _, stats, caches = run(loaded, prompt, max_tokens=max_tokens)
    assert (stats.prompt_tokens, stats.generated_tokens) == (length, max_tokens)
    assert stats.finish_reason == "length"
    assert stats.account["tokens_seen"] == caches[0].tokens_seen == length + max_tokens
    assert (stats.decode_tps is None) == (max_tokens == 1)
    assert stats.ttft_s > 0 and stats.peak_memory_gb > 0


def test_under_a_budget_over_several_chunks(loaded):
    text, stats, caches = run(
        loaded, caches=cache(loaded[0], 24), max_tokens=50, prefill_step_size=16
    )
    assert text and stats.generated_tokens == 50
    assert stats.account["tokens_kept"] == 24 and stats.account["tokens_seen"] == 120
    assert stats.account["cache_bytes"] == sum(c.nbytes for c in caches)
    assert stats.account["full_cache_bytes"] == 3 * 120 * 2 * 2 * 16 * 4


def test_an_end_token_is_not_counted(fresh):
    model, tokenizer = fresh
    tokens = greedy(model, PROMPT, 12)
    end = tokens[7]
    first = tokens.index(end)
    tokenizer.add_eos_token(tokenizer.convert_ids_to_tokens(end))
    text, stats, _ = run(fresh, max_tokens=12)
    assert stats.finish_reason == "stop"
    assert stats.generated_tokens == first
    assert text == tokenizer.decode(tokens[:first])


def test_an_end_token_at_once(fresh):
    model, tokenizer = fresh
    tokenizer.add_eos_token(tokenizer.convert_ids_to_tokens(greedy(model, PROMPT, 1)[0]))
    for most in (1, 5):
        text, stats, _ = run(fresh, max_tokens=most)
        assert (text, stats.generated_tokens, stats.finish_reason) == ("", 0, "stop")
        assert stats.decode_tps is None and stats.ttft_s > 0


def test_an_end_token_in_the_last_place_is_a_stop(fresh):
    model, tokenizer = fresh
    tokens = greedy(model, PROMPT, 12)
    first = tokens.index(tokens[7])
    tokenizer.add_eos_token(tokenizer.convert_ids_to_tokens(tokens[7]))
    _, stats, _ = run(fresh, max_tokens=first + 1)
    assert (stats.finish_reason, stats.generated_tokens) == ("stop", first)


def test_speed_is_that_of_the_tokens_after_the_first(loaded, monkeypatch):
    """With a clock that ticks a second per call: first token after 1 s, then one per second."""
    clock = iter(range(1000))
    monkeypatch.setattr("qfilters.generate.time.perf_counter", lambda: float(next(clock)))
    answers = [
        type("Response", (), {"text": "x", "generation_tokens": n, "finish_reason": None})
        for n in (1, 2, 3, 4)
    ]
    answers[-1].finish_reason = "stop"
    monkeypatch.setattr("mlx_lm.stream_generate", lambda *a, **k: iter(answers))
    caches = cache(loaded[0])
    loaded[0](mx.array([[1]]), cache=caches)
    _, stats, _ = run(loaded, caches=caches)
    assert (stats.ttft_s, stats.decode_tps, stats.generated_tokens) == (1, 1, 3)


def test_speed_agrees_with_the_wall(loaded):
    start = time.perf_counter()
    _, stats, _ = run(loaded, max_tokens=60)
    wall = time.perf_counter() - start
    assert stats.ttft_s + 59 / stats.decode_tps <= wall


def test_a_reader_that_stops_early_still_gets_numbers(loaded):
    stats = GenerationStats()
    stream = stream_text(*loaded, PROMPT, cache(loaded[0]), stats, max_tokens=30)
    for _ in range(3):
        next(stream)
    stream.close()
    assert 3 <= stats.generated_tokens < 30 and stats.finish_reason is None
    assert stats.account["tokens_seen"] >= 70 + 3 and stats.decode_tps > 0


def test_a_conversation_goes_on(loaded):
    """A second call with the same caches continues at the right position."""
    _, _, caches = run(loaded, max_tokens=5)
    _, stats, _ = run(loaded, [1, 2, 3], caches=caches, max_tokens=5)
    assert stats.prompt_tokens == 3
    assert stats.account["tokens_seen"] == 70 + 5 + 3 + 5


def test_sampling_follows_the_seed(loaded):
    from mlx_lm.sample_utils import make_sampler

    texts = []
    for seed in (0, 0, 1):
        mx.random.seed(seed)
        texts.append(run(loaded, max_tokens=20, sampler=make_sampler(temp=1.0))[0])
    assert texts[0] == texts[1] != texts[2]


def test_the_trained_context_is_noted_once(loaded):
    model = tiny.make(max_position_embeddings=75)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        run((model, loaded[1]), caches=cache(model, 24), max_tokens=20, prefill_step_size=16)
    texts = [str(n.message) for n in notes if n.category is QFiltersWarning]
    assert len(texts) == 1 and "75 tokens the model was trained on" in texts[0]


# Prompts.


def test_one_bos_through_the_template(loaded):
    ids = chat_prompt(loaded[1], "hello")
    assert ids.count(257) == 1 and ids[0] == 257
    assert loaded[1].decode(ids) == "<bos>user: hello\n"
    with_system = chat_prompt(loaded[1], "hello", system_prompt="be brief")
    assert loaded[1].decode(with_system) == "<bos>system: be brief\nuser: hello\n"


def test_without_the_template(loaded):
    ids = chat_prompt(loaded[1], "hello", ignore_chat_template=True)
    assert loaded[1].decode(ids) == "hello"
    ids = chat_prompt(loaded[1], "<bos>hello", ignore_chat_template=True)
    assert ids.count(257) == 1


def test_one_bos_where_the_tokenizer_adds_it(tiny_folder):
    from tokenizers import processors

    _, tokenizer = load(str(tiny_folder))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 257)]
    )
    for prompt in ("hello", "<bos>hello"):
        for ignored in (True, False):
            ids = chat_prompt(tokenizer, prompt, ignore_chat_template=ignored)
            wanted = 1 + (prompt.startswith("<bos>") and not ignored)
            assert ids.count(257) == wanted, "a BOS the user wrote into a message is text"
            assert ids[0] == 257


def test_template_settings_reach_the_template(fresh):
    tokenizer = fresh[1]
    tokenizer.chat_template = (
        "{{ mood }} {{ messages[0]['content'] }}{% if add_generation_prompt %}!{% endif %}"
    )
    ids = chat_prompt(tokenizer, "hello", chat_template_config={"mood": "calm"})
    assert tokenizer.decode(ids) == "calm hello!"


def test_prompts_that_cannot_be(loaded):
    with pytest.raises(UsageError, match="the prompt is empty"):
        chat_prompt(loaded[1], "", ignore_chat_template=True)
    with pytest.raises(UsageError, match="needs a chat template"):
        chat_prompt(loaded[1], "x", system_prompt="y", ignore_chat_template=True)


def test_a_template_that_refuses(fresh):
    template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system') }}{% endif %}"
    )
    fresh[1].chat_template = template + "x"
    assert chat_prompt(fresh[1], "hello")
    with pytest.raises(UsageError, match="template refuses this prompt: No system"):
        chat_prompt(fresh[1], "hello", system_prompt="be brief")


@pytest.mark.real
def test_the_embedded_model_answers_with_a_full_cache():
    import qfilters

    model, tokenizer = qfilters.load()
    prompt = chat_prompt(tokenizer, "What is the capital of France?")
    text, stats, _ = run((model, tokenizer), prompt, max_tokens=12)
    assert "Paris" in text and stats.decode_tps > 0
