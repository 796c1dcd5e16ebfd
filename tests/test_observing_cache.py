"""The cache of methods that watch attention: what it refuses, survives, copies and allocates."""

import copy
import itertools

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import llama as llama_file
from mlx_lm.models.base import scaled_dot_product_attention
from recorded import llama, run, small, tokens

from qfilters import probabilities
from qfilters.cache import RANKS, EvictingKVCache
from qfilters.errors import QFiltersError
from qfilters.fork import Arm, prefill
from qfilters.methods import METHODS, Layer, make_method
from qfilters.observing_cache import ObservingKVCache
from qfilters.prompt_cache import make_prompt_cache
from qfilters.tap import ATTENTION

WATCHING = [name for name, cls in METHODS.items() if cls.needs_queries]


@pytest.mark.parametrize("name", WATCHING)
def test_a_call_that_is_not_observed_is_an_error_at_the_next(name, monkeypatch):
    model = llama("GQA")
    caches = make_prompt_cache(model, small(name), 16, 2, 4)
    monkeypatch.setattr(llama_file, ATTENTION, scaled_dot_product_attention)
    ids = mx.array(tokens(5))
    model(ids, cache=caches)
    with pytest.raises(QFiltersError, match=f"{name} saw no attention over .* layer 0: .* tap"):
        model(ids, cache=caches)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [*WATCHING, "keydiff"])
def test_keys_that_are_not_finite_stay_in_their_head(name, bad):
    """One bad key: no error, the budget holds, other heads (other batch rows) are as ever."""
    queries, keys, values = (mx.random.normal((2, h, 40, 8)) for h in (4, 2, 2))
    spoiled = keys.at[0, 0, 7, 1].add(bad)
    layer = Layer(0, 2, 8, 4, rope=nn.RoPE(8))
    kept = []
    for stream in (keys, spoiled):
        method = small(name)
        cls = ObservingKVCache if method.needs_queries else EvictingKVCache
        cache = cls(method, layer, 16, 2, max(4, method.window))
        start = 0
        for size in (10, 20, 1, 1, 8):
            part = slice(start, start + size)
            rows = cache.update_and_fetch(stream[:, :, part], values[:, :, part])
            if method.needs_queries:
                mask = "causal" if size > 1 else None
                cache.observe(queries[:, :, part], *rows, scale=0.3, mask=mask, sinks=None)
            mx.eval(cache.state)
            start += size
            assert cache.tokens_kept == cache.positions.shape[2] == min(start, 16)
        kept.append(np.array(cache.positions))
    np.testing.assert_array_equal(kept[1][1], kept[0][1])
    if name not in ("tova", "chunkkv"):
        np.testing.assert_array_equal(kept[1][0, 1], kept[0][0, 1], "heads are apart")
    if name == "keydiff":
        assert 7 not in kept[1][0, 0] and cache.nan_rows == 1
        overlap = np.isin(kept[1][0, 0], kept[0][0, 0]).mean()
        assert overlap > 0.8, "one bad key does not spoil the anchor of all later ones"


@pytest.mark.parametrize("name", WATCHING)
def test_copies_and_restored_states_go_on_alike(name):
    model, ids = llama("GQA"), tokens(80, 2)
    caches = make_prompt_cache(model, small(name), 16, 2, 4)
    for _ in run(model, caches, ids[:, :41], [30, 1, 10]):
        pass
    copies = copy.deepcopy(caches)
    restored = make_prompt_cache(model, small(name), 16, 2, 4)
    for old, new in zip(caches, restored, strict=True):
        new.state = old.state
    kept = []
    for some in (caches, copies, restored):
        for _ in run(model, some, ids[:, 41:], [1, 1, 20, 1, 16]):
            pass
        kept.append([np.array(c.positions) for c in some])
    for positions in zip(*kept, strict=True):
        for other in positions[1:]:
            np.testing.assert_array_equal(other, positions[0])
    assert copies[0].layer is caches[0].layer, "filters and modules are shared"


def test_methods_that_do_not_ask_cost_nothing(monkeypatch):
    """No statistics, no tap: the attention function stays the model's own."""
    monkeypatch.setattr(probabilities, "_softmax", None)
    monkeypatch.setattr(llama_file, ATTENTION, scaled_dot_product_attention)
    model, ids = llama("GQA"), tokens(60)
    for name in ("knorm", "streaming_llm", "keydiff", "none"):
        caches = make_prompt_cache(model, name, 16, 2, 4)
        assert getattr(llama_file, ATTENTION) is scaled_dot_product_attention
        for _ in run(model, caches, ids, [30, 1, 29]):
            pass
    done = prefill(model, ids[0].tolist(), [make_method("knorm")])
    assert done.kept(Arm(make_method("knorm"), 16))[0].shape == (1, 2, 16)


# --- memory ---


@pytest.mark.parametrize("name", WATCHING)
def test_a_long_decode_holds_no_more_than_its_rows(name):
    """Only the token is evaluated, as mlx-lm's loop does: nothing may pile up unevaluated."""
    model, ids = llama("GQA", layers=2), mx.array(tokens(200))
    caches, active = make_prompt_cache(model, small(name), 24, 2, 4), {}
    for i in range(200):
        mx.eval(model(ids[:, i : i + 1], cache=caches))
        active[i] = mx.get_active_memory()
    assert active[199] <= active[80] + 16384, "what is seen changes nothing any more"


@pytest.mark.parametrize("name", WATCHING)
def test_text_is_that_of_a_step_by_step_loop(name):
    """mlx-lm evaluates asynchronously, chunk by chunk and one token ahead."""
    model, prompt = llama("GQA"), tokens(60)[0]
    caches = make_prompt_cache(model, small(name), 24, 2, 4)
    steps = generate_step(mx.array(prompt), model, prompt_cache=caches, prefill_step_size=16)
    found = [token for token, _ in itertools.islice(steps, 20)]
    caches, wanted = make_prompt_cache(model, small(name), 24, 2, 4), []
    ids = prompt[None, :-1]
    for _ in run(model, caches, ids, [16, 16, 16, 11]):
        pass
    last = int(prompt[-1])
    for _ in range(20):
        logits = model(mx.array([[last]]), cache=caches)
        mx.eval(logits, [c.state for c in caches])
        last = mx.argmax(logits[0, -1]).item()
        wanted.append(last)
    assert found == wanted and caches[0].tokens_kept == caches[0].budget


def one_call(cache, heads, count):
    """Feed and observe one call; bytes allocated beyond what was there."""
    kv_heads, size, dtype = cache.layer.n_kv_heads, cache.layer.head_dim, cache.state[0][0].dtype
    queries = mx.ones((1, heads, count, size), dtype)
    keys, values = (mx.ones((1, kv_heads, count, size), dtype) for _ in range(2))
    mx.eval(queries, keys, values)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    rows = cache.update_and_fetch(keys, values)
    mask = "causal" if count > 1 else None
    statistics = cache.observe(queries, *rows, scale=size**-0.5, mask=mask, sinks=None)
    out = mx.depends(rows[0][..., :1, :1], statistics)
    del rows
    mx.eval(out, cache.state)
    return mx.get_peak_memory() - before


def filled(name, budget, seen, dtype, heads=4, size=64):
    """A cache in the state it has after `seen` tokens, without the work of getting there."""
    method = make_method(name)
    cache = ObservingKVCache(
        method, Layer(0, heads, size, heads, rope=nn.RoPE(size)), budget, 4, 64
    )
    slots = min(-(-seen // 256) * 256, budget + 1)
    rows = [mx.ones((1, heads, slots, size), dtype) for _ in range(2)]
    statistic = mx.random.uniform(shape=(1, heads, slots, *method.statistic_shape))
    positions = mx.broadcast_to(mx.arange(slots, dtype=mx.int32), (1, heads, slots))
    full = seen > budget
    victim = mx.full((1, heads, 1), 9, dtype=mx.int32) if full else None
    nan_rows = mx.array(0) if full else None
    buffers = [*rows, statistic, positions]
    cache.state = (buffers, victim, None, nan_rows, slots if full else seen, seen, seen)
    mx.eval(cache.state)
    return cache


@pytest.mark.parametrize("name", WATCHING)
@pytest.mark.parametrize("seen", [8000, 8300], ids=["growing", "full"])
def test_a_decoded_token_is_written_in_place(name, seen):
    """Also by methods that read all rows: a copy of the keys would be 8 MB."""
    cache = filled(name, 8192, seen, mx.float32)
    taken = [one_call(cache, 4, 1) for _ in range(4)]
    assert cache.state[0][0].nbytes > 8e6
    # Until the buffer is full a ring of probabilities is copied, 4 MB, as the live slice of it is.
    ring = cache.state[0][RANKS].nbytes if cache.method.statistic_shape and seen < 8192 else 0
    assert max(taken[1:]) < 2e6 + 2 * ring, taken


@pytest.mark.parametrize("name", WATCHING)
def test_half_precision_keys_are_cast_head_by_head(name):
    """Eight heads of 2048 rows: 4 MB of keys, 8 MB in float32; MLX runs some blocks ahead."""
    cache = filled(name, 2048, 3000, mx.float16, heads=8, size=128)
    taken = [one_call(cache, 32, 1) for _ in range(4)]
    assert max(taken[1:]) < 7e6, taken


@pytest.mark.parametrize("name", ["h2o", "tova", "snapkv", "expected_attention"])
@pytest.mark.parametrize("kv_heads", [1, 32])
def test_a_chunk_needs_less_than_64_megabytes_more(name, kv_heads):
    """32 heads, 2048 new tokens at budget 1024; fewer for h2o, whose blocks are as large."""
    cache = filled(name, 1024, 1500, mx.float16, heads=kv_heads, size=128)
    count = 2048 if name != "h2o" else 350
    stored = 2 * kv_heads * (1024 + count) * 128 * 2
    assert one_call(cache, 32, count) < 64e6 + stored
