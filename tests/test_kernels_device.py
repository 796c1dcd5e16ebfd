"""The same equality checks on a real GPU: `pytest -m metal` on a Mac, or with MLX's CUDA."""

import pytest

from qfilters.kernels import checks, choose_kernels
from qfilters.platform import backend

pytestmark = [
    pytest.mark.metal,
    pytest.mark.skipif(
        backend() not in ("metal", "cuda"), reason="no Metal or CUDA back end: nothing to run on"
    ),
]
ALL = dict(checks.checks())


@pytest.mark.parametrize("name", ALL)
def test_kernels_on_the_device_agree_with_the_reference(name):
    ALL[name](choose_kernels(True))
