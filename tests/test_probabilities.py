"""Probabilities are those of attention, whatever the mask; folding them needs little memory."""

import mlx.core as mx
import numpy as np
import pytest

from qfilters import probabilities as module
from qfilters.methods.observing import Attention
from qfilters.probabilities import fold, probabilities, spans

B, H, KV, T, S, D = 2, 6, 3, 7, 12, 8
RNG = np.random.default_rng(0)
BOOL = RNG.random((B, H, T, S)) < 0.6
BOOL[..., 0] = True
MASKS = {
    "none": None,
    "causal": "causal",
    "one row of keys": BOOL[0, 0, 0],
    "queries and keys": BOOL[0, 0],
    "batch": BOOL[:, :1],
    "batch, the same for all queries": BOOL[:, :1, :1],
    "heads": BOOL,
    "heads of one batch row": BOOL[0],
    "heads, the same for all queries": BOOL[:1, :, :1],
    "additive": RNG.normal(size=(T, S)).astype(np.float32),
    "additive heads": np.where(BOOL, RNG.normal(size=BOOL.shape), -np.inf).astype(np.float32),
}


def arrays(dtype=mx.float32):
    return [mx.random.normal(shape).astype(dtype) for shape in ((B, H, T, D), (B, KV, S, D))]


def plain(queries, keys, scale, mask, sinks=None):
    """`[B, H, T, S]` in float64."""
    q, k = (np.array(x.astype(mx.float32), dtype=np.float64) for x in (queries, keys))
    logits = np.einsum("bhtd,bhsd->bhts", q, np.repeat(k, H // KV, axis=1)) * scale
    if isinstance(mask, str):
        mask = np.arange(S) <= np.arange(S - T, S)[:, None]
    if mask is not None:
        logits = np.where(mask, logits, -np.inf) if mask.dtype == bool else logits + mask
    powers = np.exp(logits)
    total = powers.sum(-1, keepdims=True)
    return powers / (total if sinks is None else total + np.exp(np.array(sinks))[:, None, None])


def as_mx(mask):
    return mx.array(mask) if isinstance(mask, np.ndarray) else mask


@pytest.fixture(params=[None, 1, 700], ids=["one block", "single rows", "some rows"])
def blocks(request, monkeypatch):
    """Blocks of all, of one query and head, and of some."""
    if request.param:
        monkeypatch.setattr(module, "LOGIT_BYTES", request.param)
        monkeypatch.setattr(module, "KEY_BYTES", 2 * request.param)


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_probabilities_and_folds_are_the_softmax(mask, with_sinks, blocks):
    mask = MASKS[mask]
    queries, keys = arrays()
    sinks = mx.random.normal((H,)) if with_sinks else None
    wanted = plain(queries, keys, 0.3, mask, sinks)
    grouped = wanted.reshape(B, KV, H // KV, T, S)
    found = probabilities(queries, keys, 0.3, as_mx(mask), sinks)
    assert found.dtype == mx.float32
    np.testing.assert_allclose(np.array(found), grouped, atol=1e-6)

    def step(total, a, first):
        asking = mx.arange(first, first + a.shape[3]).astype(mx.float32) + 1
        return total + (a * asking[:, None]).sum(axis=(2, 3))

    start = mx.random.normal((B, KV, S))
    folded = fold(queries, keys, 0.3, as_mx(mask), sinks, step, start)
    weighted = (grouped * (np.arange(T) + 1)[:, None]).sum(axis=(2, 3))
    np.testing.assert_allclose(np.array(folded), np.array(start) + weighted, atol=2e-5)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    queries, keys = arrays(dtype)
    found = probabilities(queries * 8, keys, 0.3)
    assert found.dtype == mx.float32
    wanted = plain(queries * 8, keys, 0.3, None).reshape(found.shape)
    np.testing.assert_allclose(np.array(found), wanted, atol=2e-6)


def test_causal_is_aligned_to_the_lower_right_as_in_mlx():
    queries, keys = arrays()
    values = mx.random.normal((B, KV, S, D))
    for count in (T, 1):
        part = queries[:, :, :count]
        a = probabilities(part, keys, 0.3, "causal")
        out = (a @ values[:, :, None]).reshape(B, H, count, D)
        wanted = mx.fast.scaled_dot_product_attention(part, keys, values, scale=0.3, mask="causal")
        np.testing.assert_allclose(np.array(out), np.array(wanted), atol=1e-5)


@pytest.mark.parametrize("mask", ["causal", "queries and keys", "heads", "batch", "none"])
@pytest.mark.parametrize("count", [1, 3, T, T + 5])
def test_the_last_queries_see_what_they_saw_in_the_whole_call(mask, count):
    queries, keys = arrays()
    mask = as_mx(MASKS[mask])
    seen = Attention(queries, keys, keys, 0.3, mask, None, None, None, S)
    last = seen.last(count)
    found = probabilities(last.queries, keys, 0.3, last.mask)
    whole = probabilities(queries, keys, 0.3, mask)
    np.testing.assert_allclose(np.array(found), np.array(whole[..., -count:, :]), atol=1e-6)


def test_spans_cover_once():
    for total, size in ((10, 3), (10, 5), (10, 0), (10, 99), (1, 1)):
        cut = [i for s in spans(total, size) for i in range(s.start, s.stop)]
        assert cut == list(range(total))
        assert all(s.stop - s.start <= max(1, size) for s in spans(total, size))


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_blocks_are_not_held_at_once(kv_heads, monkeypatch):
    """All the logits would be 29 MB, the keys in float32 8 MB."""
    monkeypatch.setattr(module, "LOGIT_BYTES", 2**19)
    monkeypatch.setattr(module, "KEY_BYTES", 2**19)
    queries = mx.random.normal((1, 4, 900, 256)).astype(mx.float16)
    keys = mx.random.normal((1, kv_heads, 2000, 256)).astype(mx.float16)
    start = mx.zeros((1, kv_heads, 2000))
    mx.eval(queries, keys, start)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    total = fold(queries, keys, 1.0, "causal", None, lambda t, a, _: t + a.sum(axis=(2, 3)), start)
    mx.eval(total)
    assert mx.get_peak_memory() - before < 8e6
    np.testing.assert_allclose(total.sum().item(), 4 * 900, rtol=1e-4)
