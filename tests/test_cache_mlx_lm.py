"""The cache inside mlx-lm's loops: generation, several turns, trimming, draft models."""

import copy

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm import generate, load, stream_generate
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache
from obvious import ObviousCache
from streams import AT_INSERTION, TOKENS, WATCHING, feed, plain_caches

from qfilters import calibrate, make_prompt_cache


@pytest.fixture(scope="module")
def model():
    return tiny.make()


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, TOKENS[:, :100].tolist())


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return load(str(tiny_folder))[1]


# --- copies ---


@pytest.mark.parametrize("method", ["knorm", *WATCHING])
def test_states_and_deep_copies_go_on_identically(model, method):
    def fresh():
        return make_prompt_cache(model, method, 16, sinks=2, recent=4)

    walker, expected, start = fresh(), fresh(), 0
    for size in (5, 1, 11, 1, 1, 20, 1, 3):
        restored, from_snapshot = fresh(), fresh()
        snapshot = [c.state for c in walker]
        for cache, state in zip(restored, snapshot, strict=True):
            cache.state = state
        copied = copy.deepcopy(walker)
        feed(model, walker, [1, 2], start=300)
        for cache, state in zip(from_snapshot, snapshot, strict=True):
            cache.state = state
        want = feed(model, expected, [size], start=start)
        for caches in (restored, copied, from_snapshot):
            np.testing.assert_array_equal(feed(model, caches, [size], start=start), want)
            for cache, other in zip(caches, expected, strict=True):
                assert mx.array_equal(cache.positions, other.positions)
        walker, start = from_snapshot, start + size


# --- trimming and drafts ---


@pytest.mark.parametrize("method", ["knorm", "qfilters_keysvd", "h2o"])
def test_trimming_an_evicting_cache_returns_0_and_changes_nothing(model, filters, method):
    for sizes in ([], [10], [60], [60, 1, 1]):
        caches, twin = (make_prompt_cache(model, method, 16, filters=filters) for _ in range(2))
        for c in (caches, twin):
            for i, size in enumerate(sizes):
                feed(model, c, [size], start=sum(sizes[:i]))
        assert not can_trim_prompt_cache(caches) and trim_prompt_cache(caches, 5) == 0
        got, want = (feed(model, c, [3, 1], start=sum(sizes)) for c in (caches, twin))
        np.testing.assert_array_equal(got, want)


def test_none_trims_and_goes_on_rightly(model):
    caches = make_prompt_cache(model, "none")
    feed(model, caches, [300])
    assert can_trim_prompt_cache(caches) and trim_prompt_cache(caches, 60) == 60
    got = feed(model, caches, [1, 20, 1], start=240)
    want = feed(model, plain_caches(model), [240, 1, 20, 1])[:, 240:]
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("through_make_cache", [False, True])
def test_draft_models_are_refused_before_any_token(model, tokenizer, through_make_cache):
    draft = tiny.make(num_hidden_layers=1)
    options = {"prompt_cache": make_prompt_cache(model, "knorm", 16) + plain_caches(draft)}
    if through_make_cache:
        model, options = tiny.make(), {}
        model.make_cache = lambda: make_prompt_cache(model, "knorm", 16)
    seen = []
    with pytest.raises(ValueError, match="trimmable"):
        seen.extend(stream_generate(model, tokenizer, "hello", draft_model=draft, **options))
    assert not seen


def test_none_serves_speculative_decoding(model, tokenizer):
    draft = tiny.make(num_hidden_layers=1)
    caches = make_prompt_cache(model, "none") + plain_caches(draft)
    text = generate(
        model, tokenizer, "hello", max_tokens=30, draft_model=draft, prompt_cache=caches
    )
    assert text == generate(model, tokenizer, "hello", max_tokens=30)


# --- mlx-lm's loops ---


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_generate_with_chunked_prefill_and_a_long_decode(tokenizer, dtype):
    model = tiny.make(dtype=dtype)
    filters = calibrate(model, None, TOKENS[:, :100].tolist())
    prompt, few = TOKENS[0, :100].tolist(), ["none", "qfilters", "qfilters_keysvd", "h2o"]
    for method in [*AT_INSERTION, *WATCHING] if dtype == mx.float32 else few:
        caches = make_prompt_cache(model, method, 32, filters=filters)
        tokens = [
            r.token
            for r in stream_generate(
                model, tokenizer, prompt, max_tokens=40, prompt_cache=caches, prefill_step_size=40
            )
        ]
        seen = 100 + len(tokens) - 1
        assert {c.offset for c in caches} <= {seen, seen + 1}, "mlx-lm works one token ahead"
        assert {c.tokens_kept for c in caches} == ({caches[0].offset} if method == "none" else {32})
        assert {x.dtype for c in caches for x in c.state[0][:2]} == {dtype}


def test_generated_text_is_the_obvious_cache_s(model, tokenizer):
    prompt = TOKENS[0, :150].tolist()
    options = {"max_tokens": 60, "prefill_step_size": 64}
    ours = make_prompt_cache(model, "knorm", 32)
    obvious = [ObviousCache(c.method, c.layer, 32, c.sinks, c.recent) for c in ours]
    got = [
        [r.token for r in stream_generate(model, tokenizer, prompt, prompt_cache=c, **options)]
        for c in (ours, obvious)
    ]
    assert got[0] == got[1]


def test_a_budget_beyond_the_text_generates_what_a_plain_cache_does(model, tokenizer):
    prompt = TOKENS[0, :150].tolist()
    plain = generate(model, tokenizer, prompt, max_tokens=50)
    for method in ("knorm", "none", "qfilters_keysvd"):
        caches = make_prompt_cache(model, method, 200)
        assert generate(model, tokenizer, prompt, max_tokens=50, prompt_cache=caches) == plain


def test_several_turns_on_one_cache(model, tokenizer):
    caches = make_prompt_cache(model, "knorm", 32)
    seen = 0
    for turn in range(4):
        prompt = TOKENS[0, 50 * turn : 50 * turn + 40].tolist()
        generate(model, tokenizer, prompt, max_tokens=11, prompt_cache=caches)
        assert caches[0].offset >= seen + 50
        seen = caches[0].offset
        assert {c.tokens_kept for c in caches} == {32}
        assert np.array(caches[0].positions)[..., :4].tolist() == [[[0, 1, 2, 3]] * 2]


def test_make_cache_of_the_model_bounds_every_generation(tokenizer):
    model = tiny.make()
    made = []

    def make():
        made.append(make_prompt_cache(model, "knorm", 32))
        return made[-1]

    model.make_cache = make
    texts = [generate(model, tokenizer, TOKENS[0, :100].tolist(), max_tokens=20) for _ in range(2)]
    assert texts[0] == texts[1] and len(made) == 2
    assert all(c.tokens_kept == 32 for caches in made for c in caches)


@pytest.mark.parametrize(("method", "prompt_length"), [("qfilters_keysvd", 20), ("knorm", 100)])
def test_memory_is_flat_over_a_long_decode(model, tokenizer, method, prompt_length):
    caches = make_prompt_cache(model, method, 64)
    active = []
    for _ in stream_generate(
        model,
        tokenizer,
        TOKENS[0, :prompt_length].tolist(),
        max_tokens=300,
        prompt_cache=caches,
        logits_processors=[lambda _, logits: logits.at[:, 256].add(-1e9)],
    ):
        active.append((mx.get_active_memory(), sum(c.nbytes for c in caches)))
    assert len(active) == 300
    assert len({held for _, held in active[100:]}) == 1
    assert max(m for m, _ in active[200:]) <= max(m for m, _ in active[100:200]) + 8192
