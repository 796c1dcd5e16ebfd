"""The evicting cache on fused kernels: the same rows as on the reference, call by call."""

import copy
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import tiny
from emulated import bits, fused, needs_emulator
from obvious import FirstComponent, stay
from streams import FIXED, feed_checked, make_cache, stream

from qfilters import make_prompt_cache, prompt_cache
from qfilters.cache import EvictingKVCache
from qfilters.errors import UsageError
from qfilters.kernels import choose_kernels
from qfilters.methods import make_method

pytestmark = needs_emulator

KEYSVD = make_method("qfilters_keysvd", {"sign": -1})
SERVED = [*FIXED, "keydiff", KEYSVD]


@pytest.fixture(scope="module")
def kernels():
    return fused(order="random")


def on_kernels(cache, kernels) -> EvictingKVCache:
    """The same cache as `make_prompt_cache` would make it with kernels."""
    layer = replace(cache.layer, project=kernels.project)
    return EvictingKVCache(cache.method, layer, cache.budget, cache.sinks, cache.recent, kernels)


def same_state(a, b):
    """Buffers bit for bit, the victim, and the counters."""
    for x, y in zip(a.state[0], b.state[0], strict=True):
        np.testing.assert_array_equal(bits(x), bits(y))
    assert mx.array_equal(a.state[1], b.state[1]) if a.state[1] is not None else b.state[1] is None
    assert a.nan_rows == b.nan_rows and a.state[4:] == b.state[4:]


@pytest.mark.parametrize("sizes", [[40], [3, 8, 1, 1, 1, 9, 1, 1, 12, 1, 1, 1]])
@pytest.mark.parametrize("recent", [0, 1, 3])
def test_every_call_keeps_what_a_full_sort_of_the_scores_keeps(kernels, sizes, recent):
    cache = on_kernels(make_cache("qfilters", budget=8, sinks=1, recent=recent), kernels)
    keys, values = stream(40, batch=2, dtype=mx.float16)
    feed_checked(cache, keys, values, sizes, strided=True)
    assert cache.kernel == "metal, emulated"


@pytest.mark.parametrize("method", SERVED, ids=str)
def test_buffers_are_those_of_the_reference(kernels, method):
    keys, values = stream(60, batch=2, dtype=mx.float32)
    # Whole numbers have exact sums, so that scores do not depend on the order of additions.
    keys = mx.round(keys * 4)
    plain = make_cache(method, budget=8, sinks=1, recent=2)
    filters, means = (mx.round(x) for x in (plain.layer.q_filters, plain.layer.query_mean))
    plain.layer = replace(plain.layer, q_filters=filters, query_mean=means)
    if method is KEYSVD:
        plain._learned = mx.round(mx.random.normal((2, 2, 4)) * 3)
    ours = on_kernels(plain, kernels)
    ours._learned = plain._learned
    done = 0
    for size in (1, 5, 30, 1, 1, 1, 4, 1, 1, 15):
        chunk = [x[:, :, done : done + size] for x in (keys, values)]
        for x, y in zip(plain.update_and_fetch(*chunk), ours.update_and_fetch(*chunk), strict=True):
            np.testing.assert_array_equal(bits(x), bits(y))
        same_state(plain, ours)
        done += size


@pytest.mark.parametrize("recent", [0, 1, 8])
def test_sixty_decoded_tokens_with_many_ties_equal_one_block_over_all(kernels, recent):
    rng = np.random.default_rng(recent)
    scores = rng.choice([-1.0, -0.0, 0.0, 1.0, np.inf, -np.inf, np.nan], (1, 2, 90))
    keys, values = stream(90, first=scores)
    cache = EvictingKVCache(FirstComponent(), make_cache().layer, 16, 3, recent, kernels)
    cache.update_and_fetch(keys[:, :, :30], values[:, :, :30])
    for i in range(30, 90):
        cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
        expected = stay(scores[..., : i + 1].astype(np.float32), 16, 3, recent)
        np.testing.assert_array_equal(np.array(cache.positions), expected)
    block = EvictingKVCache(FirstComponent(), cache.layer, 16, 3, recent, kernels)
    block.update_and_fetch(keys, values)
    np.testing.assert_array_equal(np.array(block.positions), np.array(cache.positions))


def test_chunking_does_not_change_what_is_kept(kernels):
    """Also where fp32 sums are inexact: a row's score has the same bits in every launch."""
    keys, values = stream(50, batch=2, dtype=mx.bfloat16)
    kept = []
    for sizes in ([50], [13] * 3 + [11], [9] + [1] * 41):
        cache = on_kernels(make_cache("qfilters", budget=12, sinks=2, recent=3), kernels)
        done = 0
        for size in sizes:
            cache.update_and_fetch(*(x[:, :, done : done + size] for x in (keys, values)))
            done += size
        cache = copy.deepcopy(cache)
        ordered = cache._live_rows()
        kept.append([bits(x) for x in ordered])
    for other in kept[1:]:
        for x, y in zip(kept[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_model_runs_on_kernels_and_says_so(kernels, monkeypatch):
    monkeypatch.setattr(
        prompt_cache, "choose_kernels", lambda use: None if use is False else kernels
    )
    model = tiny.make("llama")
    tokens = mx.array(np.random.default_rng(0).integers(0, 250, (1, 40)))
    for method, name in (("knorm", kernels.name), ("h2o", "reference"), ("none", "reference")):
        logits = []
        for use in (None, False):
            caches = make_prompt_cache(model, method, 12, use_kernel=use)
            for size in (20, 1, 1, 6, 1):
                made = model(tokens[:, :size], cache=caches)
            logits.append(bits(made))
            path = name if use is None else "reference"
            assert prompt_cache.account(caches)["kernel"] == path
        np.testing.assert_array_equal(*logits)
    with pytest.raises(UsageError, match=r"h2o has no use for fused kernels, its scores change"):
        make_prompt_cache(model, "h2o", 12, use_kernel=True)
    make_prompt_cache(model, "none", use_kernel=True)


def test_kernels_cannot_be_required_without_a_gpu():
    if choose_kernels() is None:
        with pytest.raises(UsageError, match="Metal or CUDA back end, and it computes on cpu"):
            make_prompt_cache(tiny.make("llama"), "knorm", 12, use_kernel=True)
