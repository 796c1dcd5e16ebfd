"""One dense prefill, many evictions: arms in a batch are the arms alone, and the model masked."""

import copy

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm.models import llama as llama_file
from mlx_lm.models.cache import KVCache
from recorded import llama, small, tokens
from streams import plain_caches

from qfilters import calibrate
from qfilters.errors import FilterError, ModelError, QFiltersError, UsageError
from qfilters.fork import Arm, prefill
from qfilters.forked_cache import ForkedKVCache
from qfilters.methods import METHODS, make_method
from qfilters.prompt_cache import make_prompt_cache
from qfilters.tap import ATTENTION

N, QUESTION = 50, 9
IDS = tokens(N + QUESTION)
CONTEXT, QUESTION_IDS = IDS[0, :N].tolist(), mx.array(IDS[:, N:])
ALL = [small(name) for name in METHODS]
EVEN = [m for m in ALL if m.name != "pyramidkv"]


@pytest.fixture(scope="module")
def model():
    return llama("GQA")


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, [tokens(64, seed=5)[0].tolist()])


@pytest.fixture(scope="module")
def done(model, filters):
    more = QUESTION_IDS[0].tolist()
    return prefill(model, CONTEXT, ALL, filters, continuation=more, step_size=20)


def answer(model, caches, sizes=(4, 1, 1, 3), rows=1):
    """Logits `[B, QUESTION, V]` of the question, in chunks and single tokens."""
    ids, out, start = mx.broadcast_to(QUESTION_IDS, (rows, QUESTION)), [], 0
    for size in sizes:
        out.append(model(ids[:, start : start + size], cache=caches))
        mx.eval(out[-1], [c.state for c in caches])
        start += size
    return np.array(mx.concatenate(out, axis=1).astype(mx.float32))


def plain(model, context=CONTEXT, sizes=(4, 1, 1, 3), step=20):
    caches = plain_caches(model)
    for start in range(0, len(context), step):
        logits = model(mx.array(context[start : start + step])[None], cache=caches)
        mx.eval(logits)
    return logits[:, -1:], answer(model, caches, sizes)


class Masked(KVCache):
    """A plain cache whose layer's questions see only some rows of the context."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept


def masked(model, kept, monkeypatch):
    """The question through the dense model, evicted rows hidden by a mask in every layer."""

    def attention(queries, keys, values, cache, scale, mask, sinks=None):
        heads, n, count = queries.shape[1], keys.shape[2], queries.shape[2]
        allowed = np.ones((1, keys.shape[1], count, n), dtype=bool)
        if n > N:
            allowed[..., :N] = False
            hidden = np.array(cache.kept)[:, :, None].repeat(count, 2)
            np.put_along_axis(allowed, hidden, True, axis=-1)
        allowed &= np.arange(n) <= np.arange(n - count, n)[:, None]
        repeats = heads // keys.shape[1]
        logits = (queries * scale) @ mx.repeat(keys, repeats, 1).swapaxes(-1, -2)
        logits = mx.where(mx.array(allowed.repeat(repeats, 1)), logits, -mx.inf)
        return mx.softmax(logits, axis=-1) @ mx.repeat(values, repeats, 1)

    monkeypatch.setattr(llama_file, ATTENTION, attention)
    caches = [Masked(k) for k in kept]
    mx.eval(model(mx.array(CONTEXT)[None], cache=caches))
    return answer(model, caches)


def test_arms_in_a_batch_are_the_arms_alone_and_the_masked_model(model, done, monkeypatch):
    arms = [Arm(method, 16, 2, 4) for method in EVEN if method.evicts]
    arms.append(Arm(make_method("none"), None, 2, 4))
    alone = [answer(model, done.fork([arm])) for arm in arms]
    arms.pop()
    together = answer(model, done.fork(arms), rows=len(arms))
    for b, arm in enumerate(arms):
        np.testing.assert_allclose(together[b : b + 1], alone[b], atol=1e-4, err_msg=str(arm))
        brute = masked(model, done.kept(arm), monkeypatch)
        np.testing.assert_allclose(brute, alone[b], atol=1e-4, err_msg=str(arm))
        assert np.abs(alone[b] - alone[-1]).max() > 1e-3, "something was evicted"


def test_uneven_layers_fork_too(model, done, monkeypatch):
    arm = Arm(small("pyramidkv"), 16, 2, 4)
    kept = done.kept(arm)
    rows = [k.shape[2] for k in kept]
    assert rows[0] > rows[1] > rows[2] and sum(rows) == 48
    brute = masked(model, kept, monkeypatch)
    for b in range(2):
        found = answer(model, done.fork([arm, arm]), rows=2)[b : b + 1]
        np.testing.assert_allclose(found, brute, atol=1e-4)
    with pytest.raises(UsageError, match="equally many rows in every layer"):
        done.fork([arm, Arm(small("h2o"), 16, 2, 4)])


def test_arms_of_different_sizes_share_a_batch(model, done, monkeypatch):
    """Shorter arms are padded, and nothing attends to padding."""
    arms = [Arm(m, rows, 2, 4) for m in (small("knorm"), small("tova")) for rows in (16, 30, N)]
    found = answer(model, done.fork(arms), rows=len(arms))
    for b, arm in enumerate(arms):
        brute = masked(model, done.kept(arm), monkeypatch)
        np.testing.assert_allclose(brute, found[b : b + 1], atol=1e-4, err_msg=str(arm))


def test_batches_hold_all_arms_once_and_bound_their_padding(model, done):
    arms = [Arm(m, rows, 2, 4) for m in EVEN if m.evicts for rows in (16, 40, 48)]
    arms += [Arm(small("pyramidkv"), 16, 2, 4), Arm(small("pyramidkv"), 40, 2, 4)]
    row = sum(c.keys.nbytes // c.keys.shape[2] * 2 for c in done.caches)
    for limit, most in ((0, 5), (10 * row * len(EVEN), 4), (10**9, 3)):
        batches = done.batches(arms, limit)
        assert len(batches) <= most
        assert sorted(str(arm) for batch in batches for arm in batch) == sorted(map(str, arms))
        for batch in batches:
            rows = [sum(done.sizes(arm)) for arm in batch]
            assert sum(max(rows) - n for n in rows) * row <= limit * len(done.layers)
    assert [len(b) for b in done.batches(arms, 10**9)].count(1) <= 2


@pytest.mark.parametrize("arm", [Arm(make_method("none"), 16), Arm(small("h2o"), None)], ids=str)
def test_a_fork_that_keeps_all_is_the_plain_model(model, done, arm):
    found, wanted = answer(model, done.fork([arm, arm]), rows=2), plain(model)[1]
    for row in found:
        np.testing.assert_allclose(row[None], wanted, atol=1e-5)


@pytest.mark.parametrize("method", [m for m in ALL if m.evicts], ids=lambda m: m.name)
def test_a_budget_of_the_whole_context_is_the_plain_model(model, done, method):
    for budget in (N, N + 1, 10 * N):
        caches = done.fork([Arm(method, budget, 2, 4)])
        assert {c.size() for c in caches} == {N}
    np.testing.assert_allclose(answer(model, caches), plain(model)[1], atol=1e-5)


def test_forked_caches_count_from_the_context_and_grow(model, done):
    caches = done.fork([Arm(small("tova"), 16, 2, 4)] * 2)
    for cache in caches:
        assert isinstance(cache, ForkedKVCache)
        assert cache.offset == N and cache.size() == 16
        assert not cache.is_trimmable() and not cache.empty()
        assert cache.make_mask(1) is None and cache.make_mask(3) == "causal"
        assert cache.make_mask(3, return_array=True).shape == (3, 19)
    copies = copy.deepcopy(caches)
    first = answer(model, caches, rows=2)
    for cache in caches:
        rows = 16 + QUESTION
        assert cache.offset == N + QUESTION and cache.size() == rows
        assert cache.nbytes == sum(x.nbytes for x in cache.state[0]) >= 2 * 2 * 2 * 16 * 4 * rows
    np.testing.assert_array_equal(answer(model, copies, rows=2), first)
    np.testing.assert_array_equal(
        answer(model, done.fork([Arm(small("tova"), 16, 2, 4)] * 2), rows=2),
        first,
        "the prefill is untouched",
    )


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss", "qwen3_next"])
def test_layers_that_cannot_evict_are_repeated(kind):
    model = tiny.make(kind)
    method = make_method("h2o")
    done = prefill(model, CONTEXT, [method], step_size=20)
    arms = [Arm(method, None), Arm(make_method("none"), None)]
    caches = done.fork(arms)
    assert len({type(c) for c in caches}) > 1
    for row in answer(model, caches, rows=2):
        np.testing.assert_allclose(row[None], plain(model)[1], atol=2e-4)
    small_arms = [Arm(method, 20, 2, 4), Arm(method, 20, 4, 6)]
    together = answer(model, done.fork(small_arms), rows=2)
    for b, arm in enumerate(small_arms):
        alone = answer(model, done.fork([arm]))
        np.testing.assert_allclose(together[b : b + 1], alone, atol=2e-4)


@pytest.mark.parametrize("method", [m for m in ALL if m.evicts], ids=lambda m: m.name)
def test_one_chunk_of_a_stream_keeps_what_a_prefill_keeps(model, filters, method):
    """The two modes meet: sinks, recent rows and budget equal."""
    more = QUESTION_IDS[0].tolist()
    done = prefill(model, CONTEXT, [method], filters, continuation=more, step_size=N)
    facts = {"future": {x.index: x.future for x in done.layers}} if method.needs_future else {}
    for budget, sinks, recent in ((16, 2, 4), (24, 0, 6), (26, 4, None)):
        caches = make_prompt_cache(model, method, budget, sinks, recent, filters, **facts)
        mx.eval(model(mx.array(CONTEXT)[None], cache=caches), [c.state for c in caches])
        kept = done.kept(Arm(method, budget, sinks, recent))
        for cache, rows in zip(caches, kept, strict=True):
            np.testing.assert_array_equal(np.array(cache.positions), np.array(rows))


@pytest.mark.parametrize("method", [m for m in ALL if m.needs_queries], ids=lambda m: m.name)
def test_the_steps_of_the_prefill_do_not_matter(model, method):
    """Also when the last step is a single token."""
    whole = prefill(model, CONTEXT, [method], step_size=N)
    arm = Arm(method, 16, 2, 4)
    for step in (7, 49, 1):
        cut = prefill(model, CONTEXT, [method], step_size=step)
        for layer in cut.layers:
            a, b = (np.array(p.caches[layer.index].scores(method)) for p in (whole, cut))
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-6)
    for a, b in zip(whole.kept(arm), cut.kept(arm), strict=True):
        assert (np.array(a) == np.array(b)).mean() > 0.9


def test_what_is_refused(model, filters, done):
    with pytest.raises(UsageError, match="at least one token"):
        prefill(model, [], ALL, filters)
    with pytest.raises(UsageError, match="needs filters"):
        prefill(model, CONTEXT, [make_method("qfilters")])
    with pytest.raises(QFiltersError, match="no layer of this model can serve h2o"):
        prefill(tiny.make("gemma2"), CONTEXT, [make_method("h2o")])
    other = make_method("snapkv", {"window": 7})
    with pytest.raises(UsageError, match=r"was made for none, .*not for snapkv\(window=7\)"):
        done.fork([Arm(other, 16)])
    with pytest.raises(UsageError, match=r"budget 16 leaves no room for --sinks 4 .* 12"):
        done.fork([Arm(small("h2o"), 16, 4, 12)])
    with pytest.raises(UsageError, match=r"budget 9 leaves .*snapkv keeps its last 5 rows"):
        done.fork([Arm(small("snapkv"), 9, 4, 0)])
    with pytest.raises(FilterError):
        prefill(tiny.make(seed=3), CONTEXT, [make_method("qfilters")], filters)
    with pytest.raises(ModelError):
        prefill(tiny.make("deepseek_v3"), CONTEXT, [make_method("knorm")])
