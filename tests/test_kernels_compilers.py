"""Compilers that are not the emulator's: clang with real address spaces, and nvcc."""

import shutil
import subprocess

import mlx.core as mx
import pytest
from mslemu import cuda, spaces
from mslemu.build import INCLUDE

from qfilters.kernels import texts
from qfilters.kernels.fused import Fused

needs_clang = pytest.mark.skipif(spaces.clang() is None, reason="no clang++ on this machine")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")


def launches(text, rows=40) -> list[tuple[dict, dict]]:
    """Every kernel once per dtype, as the host side would launch it: declaration and call."""
    recorded = []

    def build(**declaration):
        def kernel(**call):
            recorded.append((declaration, {"template": None, **call}))
            outputs = zip(call["output_shapes"], call["output_dtypes"], strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in outputs]

        return kernel

    kernels = Fused("recorded", build, text)
    directions, index = mx.zeros((2, 64)), mx.zeros((1, 2, rows), dtype=mx.int32)
    slot = index[..., :1]
    for dtype in (mx.float16, mx.bfloat16, mx.float32):
        keys = mx.zeros((1, 2, rows, 64), dtype)
        kernels.project(keys, directions)
        kernels.compact(keys, keys, index, index, index)
        kernels.replace(keys[:, :, :1], directions, index, index, slot, rows, 0, rows)
    kernels.select(index, index, 0, rows, 2, 3)
    kernels.next_victim(slot, index, index, slot, rows, 0, rows)
    return recorded


def named(launch) -> str:
    declaration, call = launch
    dtypes = {str(value).rsplit(".", 1)[-1] for _, value in call["template"] or []}
    return "-".join([declaration["name"].removeprefix("qfilters_"), *dtypes])


@needs_clang
@pytest.mark.parametrize("rows", [40, 3])  # arrays below 8 elements are in another address space
@pytest.mark.parametrize("number", range(11))
def test_address_spaces(number, rows):
    assert spaces.complaints(spaces.clang(), *launches(texts.metal, rows)[number]) == []


@needs_clang
@pytest.mark.parametrize(
    ("kernel", "part", "right", "wrong", "why"),
    [
        ("score", "source", "auto rows", "const thread T* rows", "cannot initialize"),
        ("select", "source", "min(id, 255u)", "min(id, 255)", "ambiguous"),
        ("score", "header", "const thread float* weights", "const device float* weights", "match"),
    ],
)
def test_clang_refuses_what_apple_would(kernel, part, right, wrong, why):
    declaration, call = next(x for x in launches(texts.metal) if named(x).startswith(kernel))
    assert right in declaration[part]
    broken = {**declaration, part: declaration[part].replace(right, wrong, 1)}
    assert any(why in line for line in spaces.complaints(spaces.clang(), broken, call))


@needs_nvcc
def test_the_text_for_cuda_compiles(tmp_path):
    recorded = launches(texts.cuda)
    [header] = {declaration["header"] for declaration, _ in recorded}
    bodies = [cuda.function(*launch) for launch in recorded]
    source = tmp_path / "kernels.cu"
    source.write_text("".join([cuda.FIRST_LINES, header, *bodies]))
    command = ["nvcc", "-std=c++17", "-arch=sm_80", "-I", INCLUDE / "nvcc", "-cubin", source]
    command += ["--ptxas-options=-v", "-o", tmp_path / "kernels.cubin"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("0 bytes spill stores") == len(recorded), result.stderr
