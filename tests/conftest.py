"""What every test gets: fixed seeds, and a tiny model folder where one is asked for."""

import os
import sys

# Tiny matrices gain nothing from threads, which spin while they wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# First, because a fast BLAS must be in place before mlx.core is imported.
import qfilters  # noqa: F401

# isort: split
import mlx.core as mx
import numpy as np
import pytest
import tiny

from qfilters.tap import ATTENTION


@pytest.fixture(autouse=True)
def seeds():
    mx.random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def taps_go_away():
    """`make_prompt_cache` taps a model's file for good; the next test finds it as it was."""
    yield
    for module in [m for name, m in sys.modules.items() if name.startswith("mlx_lm.models.")]:
        tap = getattr(vars(module).get(ATTENTION), "qfilters_tap", None)
        if tap:
            setattr(module, ATTENTION, tap.original)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A llama with a byte tokenizer as an mlx-lm model folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.write_folder(folder)
    return folder
