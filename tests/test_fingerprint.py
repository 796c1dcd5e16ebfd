"""The fingerprint of a model: what changes it, and what must not."""

import mlx.core as mx
import mlx.nn as nn
import pytest
import tiny
from mlx.utils import tree_flatten

from qfilters.plan import fingerprint


def changed_norms(model, name="norm", factor=1.01):
    weights = tree_flatten(model.parameters())
    scaled = [(key, factor * value) for key, value in weights if name in key]
    model.load_weights(scaled, strict=False)
    return model


def test_it_is_the_same_in_another_dtype_and_quantised():
    stored = tiny.make(dtype=mx.bfloat16)
    known = fingerprint(stored)
    assert len(known) == 64
    nn.quantize(stored, group_size=32, bits=4)
    assert fingerprint(stored) == known
    wide = tiny.make(dtype=mx.bfloat16)
    wide.set_dtype(mx.float32)
    assert fingerprint(wide) == known == fingerprint(tiny.make(dtype=mx.bfloat16))


def test_it_is_the_same_for_whole_numbers_written_with_a_point():
    assert fingerprint(tiny.make(rope_theta=10000)) == fingerprint(tiny.make(rope_theta=10000.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"rope_theta": 20000.0},
        {"num_hidden_layers": 2},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 8},
        {"rope_traditional": True},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 512,
            }
        },
    ],
)
def test_it_tells_models_apart(changes):
    assert fingerprint(tiny.make(**changes)) != fingerprint(tiny.make())


def test_it_reads_frequencies():
    def phi3(factor):
        scaling = {"type": "longrope", "long_factor": factor, "short_factor": [1.0] * 8}
        return tiny.make("phi3", rope_scaling=scaling, original_max_position_embeddings=512)

    assert fingerprint(phi3([1.0] * 8)) != fingerprint(phi3([1.0] * 7 + [2.0]))


@pytest.mark.parametrize("name", ["input_layernorm", "model.norm", "q_norm"])
def test_it_reads_every_norm(name):
    model = tiny.make("qwen3")
    assert fingerprint(changed_norms(tiny.make("qwen3"), name)) != fingerprint(model)


def test_it_reads_all_of_float32():
    model = changed_norms(tiny.make(), factor=1 + 1e-6)
    assert fingerprint(model) != fingerprint(tiny.make())


def test_it_does_not_read_matrices():
    """So that it survives quantisation; a model tuned without its norms is not told apart."""
    model, known = tiny.make(), fingerprint(tiny.make())
    model.layers[0].mlp.up_proj.weight *= 2
    model.layers[0].input_layernorm.table = mx.ones((2, 2))
    assert fingerprint(model) == known
    model.eval()
    assert fingerprint(model) == known
