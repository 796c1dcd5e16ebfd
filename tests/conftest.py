"""What every test gets: fixed seeds, and a tiny model folder where one is asked for."""

# First, because a fast BLAS must be in place before mlx.core is imported.
import qfilters  # noqa: F401

# isort: split
import mlx.core as mx
import numpy as np
import pytest
import tiny


@pytest.fixture(autouse=True)
def seeds():
    mx.random.seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A llama with a byte tokenizer as an mlx-lm model folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.write_folder(folder)
    return folder
