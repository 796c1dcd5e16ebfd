"""The artifact: the same bytes for the same input, and nothing doubtful is read or used."""

import io
import json
import pickle
import random
import warnings
import zipfile
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten

from qfilters import Filters, make_prompt_cache
from qfilters.calibration import calibrate
from qfilters.errors import FilterError, QFiltersWarning
from qfilters.filters import ARRAYS

ROWS = [[(7 * i * i + 3 * i) % 250 for i in range(40)]]


@pytest.fixture(scope="module")
def model():
    return tiny.make()


@pytest.fixture(scope="module")
def filters(model):
    return calibrate(model, None, ROWS, model_id="tiny", corpus={"name": "café", "seed": None})


@pytest.fixture
def artifact(filters, tmp_path):
    return filters.save(tmp_path / "new folder" / "f.npz")


def refused(call, *words):
    """The call must fail with one line that has all words; nothing else may be said."""
    with warnings.catch_warnings(), pytest.raises(FilterError) as caught:
        warnings.simplefilter("error")
        call()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    for word in words:
        assert word in text, text


def rewrite(path, drop=(), **changes):
    """Another artifact with some arrays changed; metadata as a dict."""
    with np.load(path) as data:
        arrays = dict(data) | changes
    if isinstance(arrays["metadata"], dict):
        text = json.dumps(arrays["metadata"]).encode()
        arrays["metadata"] = np.frombuffer(text, dtype=np.uint8)
    np.savez(path, **{name: array for name, array in arrays.items() if name not in drop})
    return path


def test_round_trip(filters, artifact):
    read = Filters.load(str(artifact))
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(read, name), getattr(filters, name))
        assert getattr(read, name).dtype == ARRAYS[name][0]
    assert read.metadata == filters.metadata
    assert read.metadata["corpus"]["name"] == "café"


def test_the_same_bytes_whenever_it_is_made(model, filters, artifact):
    again = calibrate(model, None, ROWS, model_id="tiny", corpus={"seed": None, "name": "café"})
    assert again.save(artifact.with_name("g.npz")).read_bytes() == artifact.read_bytes()
    with zipfile.ZipFile(artifact) as archive:
        assert {entry.date_time[:3] for entry in archive.infolist()} == {(1980, 1, 1)}
        assert {entry.filename for entry in archive.infolist()} == {
            f"{name}.npy" for name in (*ARRAYS, "metadata")
        }


def test_mlx_reads_it_too(filters, artifact):
    arrays = mx.load(str(artifact))
    assert mx.array_equal(arrays["q_filters"], mx.array(filters.q_filters))
    assert json.loads(bytes(arrays["metadata"].tolist())) == filters.metadata


def test_a_layers_rows(filters):
    rows = filters.layer(1)
    assert mx.array_equal(rows["q_filters"], mx.array(filters.q_filters[1]))
    assert mx.array_equal(rows["query_mean"], mx.array(filters.query_mean[1]))


# Files that are refused.


def test_no_file_and_a_folder(tmp_path):
    refused(lambda: Filters.load(tmp_path / "x.npz"), "no filters at", "qfilters calibrate")
    refused(lambda: Filters.load(tmp_path), "is a folder")


@pytest.mark.parametrize("name", [*ARRAYS, "metadata"])
def test_a_missing_array(artifact, name):
    refused(
        lambda: Filters.load(rewrite(artifact, drop=[name])), str(artifact), f"no array '{name}'"
    )


@pytest.mark.parametrize("schema", [None, 0, 2, "1"])
def test_another_schema(filters, artifact, schema):
    meta = filters.metadata | {"schema_version": schema}
    rewrite(artifact, metadata=meta)
    refused(lambda: Filters.load(artifact), f"schema version {schema}", "reads 1", "calibrate")


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
def test_metadata_that_says_nothing(artifact, text):
    rewrite(artifact, metadata=np.frombuffer(text, dtype=np.uint8))
    refused(lambda: Filters.load(artifact), str(artifact))


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99, -1])
def test_truncated(artifact, kept):
    data = artifact.read_bytes()
    artifact.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    refused(lambda: Filters.load(artifact), str(artifact), "cannot be read")


def test_other_files(artifact):
    for data in (b"hello", pickle.dumps({"q_filters": 1}), b"PK\x03\x04" + bytes(100)):
        artifact.write_bytes(data)
        refused(lambda: Filters.load(artifact), "cannot be read")
    array = io.BytesIO()
    np.save(array, np.zeros((1, 2, 3)))
    artifact.write_bytes(array.getvalue())
    refused(lambda: Filters.load(artifact), "cannot be read")


def test_pickled_arrays_are_not_run(artifact):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("a pickle was run",)

    rewrite(artifact, q_filters=np.array([Bomb()], dtype=object))
    refused(lambda: Filters.load(artifact), "cannot be read", "allow_pickle")


@pytest.mark.parametrize("name", [name for name, (kind, _) in ARRAYS.items() if kind == "float32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(filters, artifact, name, bad):
    array = getattr(filters, name).copy()
    array.flat[-1] = bad
    rewrite(artifact, **{name: array})
    refused(lambda: Filters.load(artifact), f"'{name}'", "not finite")
    refused(lambda: replace(filters, **{name: array}).save(artifact), "not finite")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"q_filters": np.zeros((3, 2), np.float32)}, ["'q_filters'", "rank 2", "rank 3"]),
        ({"q_filters": np.zeros((3, 2, 16), np.float64)}, ["float64", "float32"]),
        ({"q_filters": np.zeros((2, 2, 16), np.float32)}, ["'layer_index'", "(3,)", "(2,)"]),
        ({"q_filters": np.zeros((3, 3, 16), np.float32)}, ["4 query heads", "3 KV heads"]),
        ({"q_filters": np.zeros((3, 0, 16), np.float32)}, ["0 KV heads"]),
        ({"q_filters": np.zeros((3, 2, 8), np.float32)}, ["'query_mean'", "(3, 4, 8)"]),
        ({"layer_index": np.zeros(3, np.int64)}, ["int64", "int32"]),
        ({"explained_energy": np.zeros((3, 5), np.float32)}, ["(3, 5)", "(3, 4)"]),
        ({"other_projection": np.zeros((2, 4), np.float32)}, ["'other_projection'"]),
        (
            {
                "q_filters": np.zeros((0, 2, 16), np.float32),
                "query_mean": np.zeros((0, 4, 16), np.float32),
                "layer_index": np.zeros(0, np.int32),
            },
            ["0 layers"],
        ),
    ],
)
def test_shapes_that_do_not_fit(filters, artifact, changes, words):
    refused(lambda: Filters.load(rewrite(artifact, **changes)), *words)
    refused(lambda: replace(filters, **changes).save(artifact), "cannot be saved", *words)


def test_random_damage_never_ends_in_a_traceback(filters, artifact):
    data, random_ = artifact.read_bytes(), random.Random(0)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(random_.choice([1, 1, 4])):
            damaged[random_.randrange(len(data))] = random_.randrange(256)
        artifact.write_bytes(damaged[: random_.choice([None, random_.randrange(len(data))])])
        try:
            read = Filters.load(artifact)
        except FilterError as error:
            assert "\n" not in str(error)
        else:
            np.testing.assert_array_equal(read.q_filters, filters.q_filters)


# Models that are refused.


def test_its_own_model_is_accepted_without_a_word(filters, model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters.check(model)
        filters.check(model, "tiny")
        filters.check(tiny.make(), "tiny")


def test_another_name_is_noted(filters, model):
    with pytest.warns(QFiltersWarning, match="made for tiny; copy has the same fingerprint"):
        filters.check(model, "copy")


def test_a_model_of_the_same_shape(filters):
    other = tiny.make()
    norms = {
        k: mx.random.normal(v.shape) for k, v in tree_flatten(other.parameters()) if "norm" in k
    }
    other.load_weights(list(norms.items()), strict=False)
    mine = filters.metadata["fingerprint"][:12]
    refused(lambda: filters.check(other, "tiny"), "tiny", mine, "same shape", "qfilters calibrate")
    refused(lambda: make_prompt_cache(other, filters=filters, budget=16), mine)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_hidden_layers": 4}, ["3 layers that evict, 0 to 2", "4 layers that evict, 0 to 3"]),
        ({"num_key_value_heads": 4}, ["2 KV heads", "4 KV heads"]),
        ({"head_dim": 32}, ["head_dim 16", "head_dim 32"]),
        ({"kind": "gpt_oss"}, ["3 layers", "2 layers that evict, 1 to 3"]),
    ],
)
def test_a_model_of_another_shape(filters, changes, words):
    refused(lambda: filters.check(tiny.make(**changes)), "made for tiny", "calibrate", *words)


def test_a_model_with_one_layer_of_another_shape(filters):
    model = tiny.make()
    model.layers[1].self_attn = tiny.make(num_key_value_heads=4).layers[1].self_attn
    refused(lambda: filters.check(model), "the model has", "2 KV heads, head_dim 16 or 4 KV heads")
