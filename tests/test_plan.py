"""The plan of a model: which caches may evict, found by looking, without computing anything."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_causal_mask, scaled_dot_product_attention
from mlx_lm.models.cache import CacheList, KVCache

from qfilters import make_prompt_cache
from qfilters.errors import ModelError
from qfilters.plan import evicting_layers, layer_plan, make_model_cache, trained_context

SHARED = "the cache is shared with other layers"
LATENT = "stored rows are not the keys and values of attention (latent attention)"
UNSEEN = "queries cannot be observed: no call of mlx-lm's attention function"
MADE = "attention gets arrays made from the stored rows, not the rows"
WINDOW = "a sliding-window mask over a plain cache"
MASK = "its mask comes from, or is shared with, a layer that cannot evict"
ROTATING = "the model keeps its own RotatingKVCache"
ARRAYS = "the model keeps its own ArraysCache"
YES = ""

PLANS = {
    "llama": [YES] * 3,
    "qwen2": [YES] * 3,
    "qwen3": [YES] * 3,
    "phi3": [YES] * 3,
    "gemma3_text": [ROTATING, ROTATING, YES],
    "gemma3": [ROTATING, ROTATING, YES],
    "gpt_oss": [ROTATING, YES] * 2,
    "qwen3_next": [ARRAYS, YES] * 2,
    "gemma3n": [ROTATING, SHARED],
    "afm7": [YES, YES, SHARED],
    "deepseek_v3": [LATENT] * 3,
    "gemma2": [UNSEEN] * 3,
    "stablelm": [MADE] * 3,
}


@pytest.mark.parametrize("kind", PLANS)
def test_plans(kind):
    plan = layer_plan(tiny.make(kind))
    assert [p.reason for p in plan] == PLANS[kind]
    assert [p.index for p in plan] == list(range(len(plan)))
    for p in plan:
        assert p.true_queries == (p.reason == YES)
        assert p.evicts == (p.reason in (YES, UNSEEN, MADE))
        sizes = (p.n_kv_heads, p.head_dim, p.value_dim)
        assert sizes == ((2, 16, 16) if p.evicts else (None,) * 3)
        assert p.n_heads == (4 if p.evicts and p.reason != UNSEEN else None)


def test_a_plan_computes_nothing():
    """Evaluated, these weights alone would need 30 terabytes."""
    config = {"hidden_size": 2**17, "intermediate_size": 2**19, "num_hidden_layers": 32}
    from mlx_lm.models import llama

    model = llama.Model(llama.ModelArgs.from_dict({"model_type": "llama", **tiny.COMMON, **config}))
    assert sum(x.nbytes for _, x in tree_flatten(model.parameters())) > 3e13
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    assert len(layer_plan(model)) == 32
    assert mx.get_peak_memory() - before < 2**20


def test_looking_happens_once():
    model, calls = tiny.make(), []
    original = type(model).__call__
    Counting = type("Counting", (type(model),), {})
    Counting.__call__ = lambda self, *a, **k: calls.append(1) or original(self, *a, **k)
    model.__class__ = Counting
    assert layer_plan(model) is layer_plan(model)
    make_prompt_cache(model, method="knorm", budget=8)
    assert len(calls) == 1
    assert "_qfilters_plan" not in model, "not a weight"


def test_a_replaced_make_cache_may_call_us():
    """The form the README shows: the plan comes from the class, so nothing goes in circles."""
    from mlx_lm.models.cache import make_prompt_cache as theirs

    model = tiny.make("gemma3_text")
    model.make_cache = lambda: make_prompt_cache(model, method="knorm", budget=16)
    first, second = theirs(model), theirs(model)
    names = ["RotatingKVCache", "RotatingKVCache", "EvictingKVCache"]
    assert [type(c).__name__ for c in first] == names
    assert all(a is not b for a, b in zip(first, second, strict=True))


def test_a_class_without_make_cache_gets_one_plain_cache_per_layer():
    model = tiny.make("qwen2")
    assert not hasattr(type(model), "make_cache")
    model.make_cache = lambda: make_prompt_cache(model, method="knorm", budget=16)
    assert [type(c) for c in make_model_cache(model)] == [KVCache] * 3
    assert len(model.make_cache()) == 3


# Models made of parts that no architecture of today combines in this way.


class Part(nn.Module):
    """Attention of one head whose oddities are named by `odd`."""

    def __init__(self, odd=""):
        super().__init__()
        self.odd, self.proj = odd, nn.Linear(8, 24)

    def __call__(self, x, mask, cache):
        q, k, v = (part[:, None] for part in mx.split(self.proj(x), 3, axis=-1))
        if self.odd == "idle":
            return x
        if self.odd == "windowed":
            mask = cache.make_mask(x.shape[1], window_size=4)
        k, v = cache.update_and_fetch(k, v)
        if self.odd == "twice":
            k, v = cache.update_and_fetch(k, v)
        if self.odd == "reads":
            k = cache.keys[:, :, : cache.offset]
        if self.odd == "own mask":
            mask = create_causal_mask(x.shape[1], cache.offset - x.shape[1])
        attend, facts = scaled_dot_product_attention, {"cache": cache}
        if self.odd == "own attention":
            attend, facts = mx.fast.scaled_dot_product_attention, {}
        out = attend(q, k, v, scale=1.0, mask=mask, **facts)
        if self.odd == "attends twice":
            out = attend(q, k, v, scale=1.0, mask=mask, **facts)
        return x + out[:, 0]


class Odd(nn.Module):
    """`parts` in a list that is not called layers, under one mask."""

    def __init__(self, parts, return_array=False, window_size=None):
        super().__init__()
        self.blocks = [Part(odd) for odd in parts]
        self.mask = {"return_array": return_array, "window_size": window_size}

    def __call__(self, tokens, cache):
        x = mx.ones((*tokens.shape, 8))
        mask = cache[0].make_mask(tokens.shape[1], **self.mask)
        for part, c in zip(self.blocks, cache, strict=True):
            x = part(x, mask, c)
        return x

    def make_cache(self):
        return [KVCache() for _ in self.blocks]


@pytest.mark.parametrize(
    "parts, mask, reasons",
    [
        (["", ""], {}, [YES, YES]),
        (["", ""], {"return_array": True}, [YES, YES]),
        (["", "idle"], {}, [YES, "nothing is stored in this cache"]),
        (["", "twice"], {}, [YES, SHARED]),
        (["reads", ""], {}, [SHARED, YES]),
        (["attends twice", ""], {}, [SHARED, YES]),
        (["own mask", ""], {}, [MASK, YES]),
        (["own attention", ""], {}, [UNSEEN, YES]),
        (["windowed", ""], {}, [WINDOW, YES]),
        (["", ""], {"window_size": 4}, [WINDOW, WINDOW]),
        (["own attention"], {"window_size": 4}, [WINDOW]),
        # One array mask has one width: all who use it evict, or none.
        (["", "reads", ""], {"return_array": True}, [MASK, SHARED, MASK]),
        (["reads", "", ""], {"return_array": True}, [SHARED, MASK, MASK]),
        (["own attention", ""], {"return_array": True}, [UNSEEN, YES]),
    ],
)
def test_odd_models(parts, mask, reasons):
    assert [p.reason for p in layer_plan(Odd(parts, **mask))] == reasons


def test_what_cannot_evict_is_said():
    model = tiny.make("deepseek_v3")
    with pytest.raises(ModelError, match=r"no layer .* knorm: stored rows are not") as caught:
        make_prompt_cache(model, method="knorm", budget=16)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="queries cannot be observed"):
        evicting_layers(tiny.make("gemma2"), need_queries=True, what="calibration")
    assert len(evicting_layers(tiny.make("gemma2"))) == 3


def test_a_model_that_does_not_run_is_said():
    model = Odd([""])
    model.blocks[0].proj = nn.Linear(7, 24)
    with pytest.raises(ModelError, match="cannot be run on two tokens"):
        layer_plan(model)


def test_caches_that_are_more_than_plain_stay():
    class Own(KVCache):
        pass

    class Mixed(Odd):
        def make_cache(self):
            return [KVCache(), CacheList(KVCache(), KVCache()), Own()]

        def __call__(self, tokens, cache):
            return super().__call__(tokens, [cache[0], cache[1][0], cache[2]])

    reasons = [p.reason for p in layer_plan(Mixed(["", "", ""]))]
    assert reasons == [YES, *(f"the model keeps its own {name}" for name in ("CacheList", "Own"))]


@pytest.mark.parametrize("kind, wanted", [("llama", 4096), ("gemma3n", 4096), ("afm7", None)])
def test_trained_context(kind, wanted):
    assert trained_context(tiny.make(kind)) == wanted


def test_positions_of_evicting_layers_are_true_after_probing():
    """The probe leaves nothing behind: the first real pass starts at position 0."""
    model = tiny.make()
    layer_plan(model)
    cache = make_prompt_cache(model, method="none")
    tokens = mx.arange(5)[None]
    wanted = model(tokens, cache=[KVCache() for _ in range(3)])
    np.testing.assert_array_equal(model(tokens, cache=cache), wanted)
    assert cache[0].offset == 5
