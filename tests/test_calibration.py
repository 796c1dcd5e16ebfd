"""Calibration: the same filters however the work is cut, for every kind of model, or an error."""

from contextlib import nullcontext

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from mlx_lm.models import llama

import qfilters
from qfilters.calibration import QueryStats, calibrate
from qfilters.errors import ModelError, QFiltersError, QFiltersWarning, UsageError
from qfilters.estimator import QueryMoments
from qfilters.plan import evicting_layers, fingerprint
from qfilters.tap import ATTENTION

ROWS = [[(7 * i * i + 3 * i + 11 * r) % 250 for i in range(48)] for r in range(2)]
ARRAYS = ("q_filters", "query_mean", "explained_energy", "mean_projection", "other_projection")


def agree(one, other, atol=1e-4):
    for name in ARRAYS:
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), atol=atol, err_msg=name
        )


@pytest.fixture(scope="module")
def model():
    return tiny.make()


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, ROWS, model_id="tiny", corpus={"name": "made up", "sha256": "0"})


def test_shapes_and_metadata(model, filters):
    assert filters.q_filters.shape == (3, 2, 16) and filters.query_mean.shape == (3, 4, 16)
    assert filters.layer_index.tolist() == [0, 1, 2] and filters.layer_index.dtype == np.int32
    for name in ARRAYS:
        assert getattr(filters, name).dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(filters.q_filters, axis=-1), 1, atol=1e-6)
    assert (filters.mean_projection > 0).all()
    meta = filters.metadata
    assert meta["model"] == "tiny" and meta["fingerprint"] == fingerprint(model)
    assert (meta["tokens"], meta["sequence_length"], meta["dtype"]) == (96, 48, "float32")
    assert meta["corpus"] == {"name": "made up", "sha256": "0"}
    assert set(meta["versions"]) == {"qfilters-mlx", "mlx", "mlx-lm"}
    assert "degenerate_heads" not in meta


@pytest.mark.parametrize("step", [1, 7, 16, 48, 1000])
def test_chunks_do_not_matter(model, filters, step):
    agree(calibrate(model, None, ROWS, step_size=step), filters)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
def test_rows_start_from_empty_caches(kind):
    model = tiny.make(kind)
    together = calibrate(model, None, ROWS)
    apart = [calibrate(model, None, [row]) for row in ROWS]
    mean = np.mean([f.query_mean for f in apart], axis=0)
    np.testing.assert_allclose(together.query_mean, mean, atol=1e-5)
    agree(calibrate(model, None, ROWS[::-1]), together)


def test_twice_the_same_rows_twice_the_same_filters(model, filters):
    agree(calibrate(model, None, ROWS * 2), filters)
    again = calibrate(model, None, ROWS)
    assert all(np.array_equal(getattr(again, n), getattr(filters, n)) for n in ARRAYS)


def test_rows_of_any_kind(model, filters):
    kinds = [np.array(ROWS[0]), mx.array(ROWS[1])]
    mixed, plain = calibrate(model, None, kinds), calibrate(model, None, ROWS)
    agree(mixed, plain, atol=0)
    assert mixed.metadata == plain.metadata, "the hash is that of the token ids"
    text = calibrate(model, tiny.ByteTokenizer(), ["some text", [1, 2, 3]])
    assert text.metadata["tokens"] == 12


def test_the_shortest_rows(model):
    made = calibrate(model, None, [[5]])
    np.testing.assert_allclose(made.explained_energy, 1, atol=1e-5)
    assert np.isfinite(made.q_filters).all()
    assert calibrate(model, None, [[5], ROWS[0]], step_size=1).metadata["sequence_length"] == 48


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], []], [""]])
def test_empty_rows_are_refused(model, rows):
    with pytest.raises(UsageError, match="at least one token"):
        calibrate(model, tiny.ByteTokenizer(), rows)


def test_text_needs_a_tokenizer(model):
    with pytest.raises(UsageError, match="tokenizer"):
        calibrate(model, None, ["text"])


def test_progress_counts_rows(model):
    seen = []
    calibrate(model, None, ROWS, progress=lambda *args: seen.append(args))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma3", "gpt_oss", "qwen3_next", "afm7", "phi3"])
def test_only_layers_that_can_evict_get_filters(kind):
    model = tiny.make(kind)
    made = calibrate(model, None, ROWS, step_size=20)
    assert made.layer_index.tolist() == [p.index for p in evicting_layers(model)]
    made.check(model)


@pytest.mark.parametrize("kind", ["gemma2", "deepseek_v3", "gemma3n", "stablelm"])
def test_models_without_true_queries_are_refused(kind):
    with pytest.raises(ModelError, match="no layer of this model can serve calibration"):
        calibrate(tiny.make(kind), None, ROWS)


@pytest.mark.parametrize("dtype, atol", [(mx.bfloat16, 0.1), (mx.float16, 0.02)])
def test_half_precision(filters, dtype, atol):
    made = calibrate(tiny.make(dtype=dtype), None, ROWS)
    assert made.metadata["dtype"] == str(dtype).removeprefix("mlx.core.")
    assert made.q_filters.dtype == np.float32
    agree(made, filters, atol)


def test_a_quantised_model():
    model = tiny.make(dtype=mx.bfloat16)
    known = calibrate(model, None, ROWS)
    nn.quantize(model, group_size=32, bits=8)
    made = calibrate(model, None, ROWS)
    assert made.metadata["dtype"] == "bfloat16"
    assert (np.einsum("nhd,nhd->nh", made.q_filters, known.q_filters) > 0.9).all()
    known.check(model)
    nn.quantize(model := tiny.make(dtype=mx.bfloat16), group_size=32, bits=4)
    calibrate(model, None, ROWS).check(model)


def test_a_model_with_adapters():
    from mlx_lm.tuner.utils import linear_to_lora_layers

    model = tiny.make()
    plain = calibrate(model, None, ROWS)
    linear_to_lora_layers(model, 3, {"rank": 2, "scale": 20.0, "dropout": 0.0})
    for layer in model.layers:
        layer.self_attn.q_proj.lora_b = mx.random.normal(layer.self_attn.q_proj.lora_b.shape)
    tuned = calibrate(model, None, ROWS)
    assert not np.allclose(tuned.q_filters, plain.q_filters, atol=0.05)
    tuned.check(model)


def test_layers_with_different_heads_are_refused():
    """One artifact has one shape; nothing is measured before that is known."""
    model, other = tiny.make(), tiny.make(num_key_value_heads=4)
    model.layers[1].self_attn = other.layers[1].self_attn
    with pytest.raises(ModelError, match=r"different heads .*\(4, 2, 16\), \(4, 4, 16\)"):
        calibrate(model, None, ROWS)


def test_queries_that_are_not_finite_are_an_error(model):
    model = tiny.make()
    model.layers[1].self_attn.q_proj.weight *= float("nan")
    with pytest.raises(
        QFiltersError, match="layer 1 computed queries that are not finite"
    ) as error:
        calibrate(model, None, ROWS)
    assert "--dtype" in str(error.value)


def test_heads_without_drift_are_noted_and_marked():
    model = tiny.make()
    attention = model.layers[2].self_attn
    attention.q_proj.weight[:16] = 0
    with pytest.warns(QFiltersWarning, match=r"no drift found in .*\[\[2, 0\]\]"):
        made = calibrate(model, None, ROWS)
    assert made.metadata["degenerate_heads"] == [[2, 0]]
    np.testing.assert_allclose(np.linalg.norm(made.q_filters, axis=-1), 1, atol=1e-6)


def test_the_tap_is_gone_after_an_interruption(model):
    def stop(*args):
        raise KeyboardInterrupt

    original = vars(llama)[ATTENTION]
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, None, ROWS, progress=stop)
    assert vars(llama)[ATTENTION] is original
    assert not hasattr(original, "qfilters_tap")


def test_an_attention_call_that_is_not_seen_is_an_error(model, monkeypatch):
    """Seen by the probe, not seen later: no silent zeros."""
    evicting_layers(model)
    monkeypatch.setattr("qfilters.calibration.tapped", lambda model: nullcontext())
    with pytest.raises(ModelError, match="attention call was not seen"):
        calibrate(model, None, ROWS)


def test_an_attention_call_counts_once():
    cache = QueryStats(QueryMoments(1, 2))
    cache.observe(mx.ones((1, 1, 3, 2)), None, None, scale=1, mask=None, sinks=None)
    cache.flush()
    assert cache.moments.total.tolist() == [[3, 3]] and cache.moments.count == 3
    with pytest.raises(ModelError):
        cache.flush()


def test_memory_does_not_grow_with_the_text(model):
    def peak(rows):
        mx.clear_cache()
        mx.reset_peak_memory()
        calibrate(model, None, rows, step_size=64)
        return mx.get_peak_memory()

    row = [(3 * i) % 250 for i in range(256)]
    few, many = peak([row] * 2), peak([row] * 8)
    assert many < 1.1 * few


@pytest.mark.real
def test_the_embedded_models_queries_drift_in_every_head():
    model, tokenizer = qfilters.load()
    text = "The harbour was quiet when the last of the fishing boats came in, and nobody spoke. "
    made = calibrate(model, tokenizer, [text * 12])
    assert made.mean_projection.shape == (30, 9)
    assert (made.mean_projection > 0).all()
    assert made.mean_projection.mean() > 5 * made.other_projection.mean()
