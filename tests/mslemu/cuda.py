"""The text that MLX makes of a CUDA kernel, as its source says; no build on Linux CPU makes it.

It serves two checks: nvcc compiles it, and the emulator runs it on the vocabulary of cuda.h.
"""

import re

import mlx.core as mx

CUDA_TYPES = {
    mx.float32: "float",
    mx.float16: "__half",
    mx.bfloat16: "__nv_bfloat16",
    mx.int32: "int32_t",
    mx.uint32: "uint32_t",
}
FIRST_LINES = """
#include "mlx/backend/cuda/device/utils.cuh"

#include <cooperative_groups.h>

#define inf cuda::std::numeric_limits<float>::infinity()

"""
_SUFFIXES = {"_shape": "Shape", "_strides": "Strides", "_ndim": "int"}


def function(declaration: dict, call: dict) -> str:
    """One kernel inside MLX's namespace, without the lines and the header before it."""
    template = call["template"] or []
    parameters = [*_inputs(declaration, call)]
    parameters += [
        f"    {CUDA_TYPES[dtype]}* {name}"
        for name, dtype in zip(declaration["output_names"], call["output_dtypes"], strict=True)
    ]
    values = [
        f"  constexpr int {name} = {int(value)};\n"
        if isinstance(value, int)
        else f"  using {name} = {CUDA_TYPES[value]};\n"
        for name, value in template
    ]
    return (
        "namespace mlx::core::cu {\n\nnamespace cg = cooperative_groups;\n\n"
        f"__global__ void {function_name(declaration, template)}(\n"
        + ",\n".join(parameters)
        + ") {\n"
        + "".join(values)
        + declaration["source"]
        + "\n}\n\n} // namespace mlx::core::cu\n"
    )


def function_name(declaration: dict, template: list) -> str:
    """Known by its template only: two dtypes of an input that no template names would clash."""
    values = [str(int(v)) if isinstance(v, int) else CUDA_TYPES[v].strip("_") for _, v in template]
    return "_".join(["custom_kernel", declaration["name"], *values])


def _inputs(declaration, call):
    for name, x in zip(declaration["input_names"], call["inputs"], strict=True):
        yield f"    const {CUDA_TYPES[x.dtype]}* {name}"
        for suffix, kind in _SUFFIXES.items():
            if x.ndim and name + suffix in declaration["source"]:
                yield f"    const __grid_constant__ {kind} {name}{suffix}"


def entry(declaration: dict, call: dict) -> str:
    """The C++ statement that calls the kernel for the lane that runs."""
    template = call["template"] or []
    arguments = []
    for parameter in function(declaration, call).split("(\n", 1)[1].split(") {\n")[0].split(",\n"):
        buffer = f"emu::cx.buffer[{len(arguments)}]"
        pointer = re.match(r"\s*(.*\*) \w+$", parameter)
        if pointer:
            arguments.append(f"({pointer[1]}){buffer}")
        else:
            kind, name = re.match(r"\s*const __grid_constant__ (\w+) (\w+)$", parameter).groups()
            ndim = call["inputs"][declaration["input_names"].index(name.rsplit("_", 1)[0])].ndim
            arguments.append(f"emu::copied<mlx::core::cu::{kind}>({buffer}, {ndim})")
    return f"mlx::core::cu::{function_name(declaration, template)}({', '.join(arguments)});"
