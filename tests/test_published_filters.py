"""Filters as their authors publish them: safetensors, negated, without a fingerprint."""

import pickle
import warnings

import mlx.core as mx
import numpy as np
import pytest
import tiny

from qfilters import Filters, make_prompt_cache
from qfilters.calibration import calibrate
from qfilters.errors import FilterError, QFiltersWarning

ROWS = [[(7 * i * i + 3 * i) % 250 for i in range(40)]]


@pytest.fixture(scope="module")
def model():
    return tiny.make()


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, ROWS)


def publish(path, array, name="q_filters"):
    mx.save_safetensors(str(path), {name: mx.array(array)})
    return path


def refused(path, *words):
    with pytest.raises(FilterError) as caught:
        Filters.load(path)
    assert "\n" not in str(caught.value)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_they_are_negated_and_score_the_same(filters, model, tmp_path):
    folder = tmp_path / "llama_qfilt"
    folder.mkdir()
    path = publish(folder / "model.safetensors", -3 * filters.q_filters)
    published = Filters.load(path)
    np.testing.assert_allclose(published.q_filters, filters.q_filters, atol=1e-6)
    assert published.metadata["model"] == "llama_qfilt"
    with pytest.warns(QFiltersWarning, match="no fingerprint"):
        published.check(model)
    kept = []
    for source in (filters, published):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cache = make_prompt_cache(model, filters=source, budget=16, recent=4)
        model(mx.array(ROWS), cache=cache)
        kept.append([c.positions.tolist() for c in cache])
    assert kept[0] == kept[1]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision(filters, tmp_path, dtype):
    array = mx.array(-filters.q_filters).astype(dtype)
    published = Filters.load(publish(tmp_path / "f.safetensors", array))
    assert published.q_filters.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(published.q_filters, axis=-1), 1, atol=1e-6)


def test_they_cannot_become_an_artifact(filters, tmp_path):
    published = Filters.load(publish(tmp_path / "f.safetensors", filters.q_filters))
    with pytest.raises(FilterError, match=r"cannot be saved .*'query_mean'"):
        published.save(tmp_path / "f.npz")
    assert not (tmp_path / "f.npz").exists()


@pytest.mark.parametrize("shape", [(3, 16), (0, 2, 16), (3, 2, 0)])
def test_shapes_that_are_no_filters(tmp_path, shape):
    path = publish(tmp_path / "f.safetensors", np.ones(shape, np.float32))
    refused(path, "no array 'q_filters' of rank 3")


@pytest.mark.parametrize("value", [0, np.nan, np.inf])
def test_values_that_are_no_directions(filters, tmp_path, value):
    array = filters.q_filters.copy()
    array[1, 1] = value
    refused(publish(tmp_path / "f.safetensors", array), "zero vectors or values that are not")


def test_files_that_are_none(filters, model, tmp_path):
    path = publish(tmp_path / "f.safetensors", filters.q_filters, name="filters")
    refused(path, "no array 'q_filters'")
    data = path.read_bytes()
    for bad in (b"", data[:7], data[:40], data[:-9], b"hello world" * 9, pickle.dumps(1)):
        path.write_bytes(bad)
        refused(path, "cannot be read as safetensors")
    two = Filters.load(publish(path, filters.q_filters[:2]))
    with pytest.raises(FilterError, match=r"2 layers .* 3 layers"):
        two.check(model)
