"""Rotations are undone and averaged exactly, for every RoPE module of mlx-lm but one."""

import inspect

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from mlx_lm.models import rope_utils
from recorded import Recorder, run, tokens
from streams import plain_caches

from qfilters.errors import ModelError
from qfilters.methods import make_method
from qfilters.plan import evicting_layers
from qfilters.prompt_cache import make_prompt_cache
from qfilters.rotation import INVERTIBLE, mean_rotation, rope_of, unrotate

D = 16
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = [1.0 + i for i in range(D // 2)]
ROPES = {
    "plain": nn.RoPE(D),
    "traditional": nn.RoPE(D, traditional=True),
    "partial": nn.RoPE(D // 2),
    "partial, traditional": nn.RoPE(D // 2, traditional=True),
    "linear": nn.RoPE(D, base=500.0, scale=0.25),
    "llama3": rope_utils.Llama3RoPE(D, base=500.0, scaling_config=LLAMA3),
    "yarn": rope_utils.YarnRoPE(D, scaling_factor=4.0, original_max_position_embeddings=64),
    "yarn, scaled": rope_utils.YarnRoPE(D, scaling_factor=16.0, mscale=2.0, mscale_all_dim=1.0),
    "yarn, partial and scaled": rope_utils.YarnRoPE(D // 2, scaling_factor=16.0, mscale=2.0),
    "longrope": rope_utils.SuScaledRoPE(D, long_factor=LONG, max_position_embeddings=131072),
    "longrope, partial": rope_utils.SuScaledRoPE(D // 2, long_factor=LONG[: D // 4]),
    "proportional": rope_utils.ProportionalRoPE(D, D // 2),
    "proportional, traditional": rope_utils.ProportionalRoPE(D, D // 2, traditional=True),
}


def rotate_rows(rope, x, positions):
    """Every row `[B, H, 1, D]` through the module on its own."""
    rows = [rope(x[:, :, i : i + 1], offset=p) for i, p in enumerate(positions)]
    return mx.concatenate(rows, axis=2)


def test_every_class_of_mlx_lm_is_tried_or_refused():
    known = {
        cls
        for _, cls in inspect.getmembers(rope_utils, inspect.isclass)
        if issubclass(cls, nn.Module)
    }
    assert {*INVERTIBLE} == (known | {nn.RoPE}) - {rope_utils.DynamicNTKScalingRoPE}
    assert {type(rope) for rope in ROPES.values()} == {*INVERTIBLE}


@pytest.mark.parametrize("start", [0, 1, 37, 3000])
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_unrotate_undoes_the_rotation(rope, start):
    for batch, heads, count in ((2, 3, 9), (1, 1, 1), (2, 3, 1)):
        x = mx.random.normal((batch, heads, count, D))
        turned = rope(x, offset=start)
        np.testing.assert_allclose(
            np.array(turned), np.array(rotate_rows(rope, x, range(start, start + count))), atol=1e-5
        )
        np.testing.assert_allclose(np.array(unrotate(rope, turned, start)), np.array(x), atol=2e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 24, 31, 64])
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_mean_rotation_is_the_mean_of_the_rotations(rope, count):
    x = mx.random.normal((1, 1, 5, D))
    for first in (0, 50):
        turned = [rotate_rows(rope, x, [first + i] * 5) for i in range(count)]
        wanted = sum(np.array(t, dtype=np.float64) for t in turned) / count
        found = x @ mean_rotation(rope, first, count, D)
        np.testing.assert_allclose(np.array(found), wanted, atol=1e-4)


def test_a_mean_over_many_positions_is_short_in_the_fast_pairs():
    """The mean of rotations is no rotation."""
    turn = np.array(mean_rotation(nn.RoPE(D), 1000, 512, D))
    lengths = np.linalg.norm(turn, axis=1)
    assert lengths[0] < 0.01 and lengths[D // 2] < 0.01 and lengths[D // 2 - 1] > 0.95


def test_the_module_of_a_layer_is_found():
    layer = tiny.make().layers[1]
    found, why = rope_of(layer)
    assert found is layer.self_attn.rope and why == ""


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_oss", "gemma3", "qwen3_next"])
def test_queries_are_those_that_entered_the_rotation(kind, monkeypatch):
    """Of whole models: after QK norms, partial rotations, at the right positions."""
    model = tiny.make(kind)
    caches, entered = plain_caches(model), {}
    plans = evicting_layers(model, need_queries=True)
    for plan in plans:
        caches[plan.index] = Recorder(caches[plan.index])
    for cls in INVERTIBLE:

        def noted(self, x, *args, original=cls.__call__, **kwargs):
            entered.setdefault(id(self), []).append(x)
            return original(self, x, *args, **kwargs)

        monkeypatch.setattr(cls, "__call__", noted)
    for seen in run(model, caches, tokens(30), [20, 1, 9]):
        for plan in plans:
            rope, _ = rope_of(model.layers[plan.index])
            queries = caches[plan.index].queries
            before = next(x for x in entered[id(rope)] if x.shape == queries.shape)
            found = unrotate(rope, queries, seen - queries.shape[2])
            np.testing.assert_allclose(np.array(found), np.array(before), atol=1e-4)
        entered.clear()


def test_layers_without_a_module_to_invert_are_refused_with_a_reason():
    layer = tiny.make().layers[0]
    layer.self_attn.rope = nn.Identity()
    assert rope_of(layer) == (None, "0 RoPE modules in the layer, one is needed")
    layer.self_attn.rope = rope_utils.DynamicNTKScalingRoPE(D, 64, False, 10000.0, 2.0)
    found, why = rope_of(layer)
    assert found is None and why.startswith("DynamicNTKScalingRoPE is not a rotation")

    class StrangeRoPE(nn.RoPE):
        pass

    layer.self_attn.rope = StrangeRoPE(D)
    assert rope_of(layer)[0] is None, "a subclass may rotate otherwise"


def test_a_model_that_cannot_be_inverted_is_refused_for_expected_attention_only():
    model = tiny.make()
    model.layers[1].self_attn.rope = rope_utils.DynamicNTKScalingRoPE(D, 64, False, 10000.0, 2.0)
    with pytest.raises(ModelError, match=r"cannot undo the rotation of layer 1: DynamicNTK") as e:
        make_prompt_cache(model, "expected_attention", 32)
    assert "\n" not in str(e.value)
    make_prompt_cache(model, make_method("h2o"), 32)
