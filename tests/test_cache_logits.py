"""Logits of whole models under eviction, against plain, rotating, masked and obvious caches."""

import copy
import itertools

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm.models.cache import KVCache, RotatingKVCache
from obvious import ObviousCache, stay
from streams import AT_INSERTION, FIXED, TOKENS, WATCHING, feed, plain_caches

from qfilters import calibrate, make_prompt_cache
from qfilters.prompt_cache import as_method

KINDS = ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "gpt_oss"]


@pytest.fixture(scope="module")
def models():
    """Tiny models by kind, with filters where they can be calibrated."""
    made = {}

    def get(kind):
        if kind not in made:
            model, rows = tiny.make(kind), TOKENS[:, :100].tolist()
            made[kind] = model, None if kind == "gemma2" else calibrate(model, None, rows)
        return made[kind]

    return get


def for_kind(kind, methods):
    """gemma2 calls no attention function that could be observed."""
    made = {m: as_method(m) for m in methods}
    return [
        m for m in made if kind != "gemma2" or not (made[m].needs_filters or made[m].needs_queries)
    ]


# --- against mlx-lm's own caches ---


@pytest.mark.parametrize("kind", KINDS)
def test_first_chunk_logits_are_the_full_cache_s(models, kind):
    model, filters = models(kind)
    full = feed(model, plain_caches(model), [100])
    methods = [*AT_INSERTION, *WATCHING] if kind == "llama" else ["none", "qfilters", "knorm"]
    for method in for_kind(kind, methods):
        caches = make_prompt_cache(model, method, 32, filters=filters)
        np.testing.assert_array_equal(feed(model, caches, [100]), full, method)
        if method != "none":
            assert {c.tokens_kept for c in caches if hasattr(c, "budget")} == {32}


@pytest.mark.parametrize(
    ("kind", "budget"), [("llama", 76), ("llama", 77), ("gemma2", 76), ("gemma3_text", 1000)]
)
def test_a_budget_never_exceeded_gives_the_numbers_of_none(models, kind, budget):
    model, filters = models(kind)
    sizes = [40, 30, *[1] * 6]
    full = feed(model, plain_caches(model), sizes)
    # pyramidkv gives some layers less than the budget.
    watching = [m for m in WATCHING if not m.startswith("pyramidkv")]
    for method in for_kind(kind, [*AT_INSERTION, *watching]):
        caches = make_prompt_cache(model, method, budget, filters=filters)
        np.testing.assert_array_equal(feed(model, caches, sizes), full, method)


@pytest.mark.parametrize("size", [8, 40, 270])
def test_streaming_llm_token_by_token_is_mlx_lm_s_rotating_cache(models, size):
    model, _ = models("llama")
    ours = make_prompt_cache(model, "streaming_llm", size - 1, sinks=4, recent=size - 6)
    theirs = [RotatingKVCache(max_size=size, keep=4) for _ in model.layers]
    steps = [1] * (size + 30)
    got, want = feed(model, ours, steps), feed(model, theirs, steps)
    np.testing.assert_allclose(got, want, atol=1e-5)


# --- against the obvious cache ---


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_any_schedule_are_the_obvious_cache_s(models, kind):
    model, filters = models(kind)
    schedules = ([10, *[1] * 6, 5, 1, 1, 20, 2, 1], [1] * 25, [30, 3])
    for method, sizes in zip(for_kind(kind, FIXED), itertools.cycle(schedules)):
        ours = make_prompt_cache(model, method, 12, sinks=2, recent=4, filters=filters)
        obvious = [
            ObviousCache(c.method, c.layer, c.budget, c.sinks, c.recent)
            if hasattr(c, "budget")
            else copy.deepcopy(c)
            for c in ours
        ]
        got, want = feed(model, ours, sizes), feed(model, obvious, sizes)
        np.testing.assert_allclose(got, want, atol=2e-5, err_msg=method)
        for mine, theirs in zip(ours, obvious, strict=True):
            if hasattr(mine, "budget"):
                assert mine.offset == theirs.offset == sum(sizes)
                np.testing.assert_array_equal(np.array(mine.positions), theirs.kept)


class MaskedCache(KVCache):
    """Keeps everything and hides from attention what a method without scores has evicted."""

    def __init__(self, *limits):
        super().__init__()
        self.limits = limits

    def make_mask(self, N, return_array=False, window_size=None):
        total = self.offset + N
        mask = np.tri(N, total, self.offset, dtype=bool)
        if self.offset:
            positions = np.arange(self.offset, dtype=np.float32)[None, None]
            mask[:, : self.offset] = np.isin(positions[0, 0], stay(positions, *self.limits))
        return mx.array(mask)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize("method", ["streaming_llm", "sliding_window"])
def test_eviction_equals_hiding_the_rows_from_a_full_cache(models, kind, method):
    model, _ = models(kind)
    sizes = [50, *[1] * 20, 9, *[1] * 3, 30]
    ours = make_prompt_cache(model, method, 16, sinks=4, recent=5)
    masked = [MaskedCache(16, c.sinks, c.recent) for c in ours]
    got, want = feed(model, ours, sizes), feed(model, masked, sizes)
    np.testing.assert_allclose(got, want, atol=2e-5)


# --- positions, batches, dtypes ---


@pytest.mark.parametrize("method", ["qfilters", "random"])
def test_positions_do_not_drift(models, method):
    model, filters = models("llama")
    caches = make_prompt_cache(model, method, 64, filters=filters)
    full = plain_caches(model)
    feed(model, caches, [200, *[1] * 120])
    feed(model, full, [320])
    assert [c.offset for c in caches] == [320] * len(caches)
    # In the first layer a key depends on its token and its position only.
    first = copy.deepcopy(caches[0])
    kept = np.array(first.positions)
    probe = mx.zeros((1, kept.shape[1], 2, full[0].keys.shape[-1]))
    keys = np.array(first.update_and_fetch(probe, probe)[0])[:, :, :-2]
    expected = np.take_along_axis(np.array(full[0].keys), kept[..., None], axis=2)
    np.testing.assert_allclose(keys, expected, atol=1e-5)
    assert kept.shape[-1] == 64 and kept.max() == 319


@pytest.mark.parametrize("method", [*AT_INSERTION, *WATCHING])
def test_a_batch_is_its_rows_one_by_one(models, method):
    model, filters = models("llama")
    tokens = TOKENS[:, :120].reshape(3, 40)
    sizes = [22, *[1] * 4, 14]
    limits = {"budget": 16, "sinks": 2, "recent": 4, "filters": filters}
    caches = make_prompt_cache(model, method, **limits)
    together = feed(model, caches, sizes, tokens=tokens)
    for i in range(3):
        alone = make_prompt_cache(model, method, **limits)
        one = feed(model, alone, sizes, tokens=tokens[i : i + 1])
        np.testing.assert_allclose(together[i : i + 1], one, atol=1e-4)
        assert mx.array_equal(caches[0].positions[i], alone[0].positions[0])


def test_chunking_changes_nothing_in_the_first_layer(models):
    model, filters = models("llama")
    kept = []
    for size in (1, 64, 256):
        caches = make_prompt_cache(model, "qfilters", 48, filters=filters)
        sizes = [size] * (256 // size)
        feed(model, caches, sizes)
        kept.append(np.array(caches[0].positions))
    np.testing.assert_array_equal(kept[0], kept[1])
    np.testing.assert_array_equal(kept[0], kept[2])
