"""Launch an emulated kernel: MLX arrays in and out, with the strides they have."""

import ctypes
from dataclasses import dataclass, field
from functools import cache

import mlx.core as mx
import numpy as np

from . import cuda, source
from .build import EmulatorError, build, runtime, with_lines

THREADGROUP_LIMIT = 32768  # bytes, of Apple GPUs
_GUARD = 4096  # bytes around every buffer that belong to nobody
_METAL = '#include "msl.h"\n#include "mlx/backend/metal/kernels/utils.h"'
_CUDA = '#include "cuda.h"'


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("ptr", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )


class _Stats(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("loads", "stores", "read", "written"),
            *("unique_read", "unique_written", "unwritten"),
        )
    )


class _Options(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("check", ctypes.c_int),
        ("reverse_groups", ctypes.c_int),
    )


@dataclass
class Launch:
    """One launch: bytes by buffer (checked runs only) and bytes of threadgroup memory."""

    kernel: str
    threadgroup_bytes: int
    stats: dict[str, dict[str, int]]

    @property
    def unique_bytes(self) -> int:
        """Bytes touched, each once, without the shapes and strides that MLX adds."""
        return sum(
            s["unique_read"] + s["unique_written"]
            for name, s in self.stats.items()
            if not name.endswith(("_shape", "_strides"))
        )


@dataclass
class Emulator:
    """How kernels are run, and what was launched.

    Args:
        check: report every fault as EmulatorError (2 to 4 times slower).
        order: in which order lanes run: forward, reverse or random.
        seed: of the random order and of what uninitialised memory holds.
        reverse_groups: run the last threadgroup first.
        rounded_grid: whole threadgroups only, as MLX does on CUDA.
    """

    check: bool = True
    order: str = "forward"
    seed: int = 1
    reverse_groups: bool = False
    rounded_grid: bool = False
    launches: list[Launch] = field(default_factory=list)

    def metal_kernel(self, **declaration) -> "EmulatedKernel":
        """What `mx.fast.metal_kernel` would build."""
        return EmulatedKernel(self, declaration)

    def cuda_kernel(self, **declaration) -> "EmulatedKernel":
        """What `mx.fast.cuda_kernel` would build."""
        return EmulatedCudaKernel(self, declaration)


class EmulatedKernel:
    """Callable like the kernels that MLX makes."""

    vocabulary = _METAL

    def __init__(self, emulator: Emulator, declaration: dict):
        self.emulator, self.declaration = emulator, declaration
        self._texts = {}

    def __call__(self, *, inputs, output_shapes, output_dtypes, grid, threadgroup, template=()):
        """Run it; returns MLX arrays."""
        declaration, emulator = self.declaration, self.emulator
        if threadgroup[0] * threadgroup[1] * threadgroup[2] > 1024:
            raise EmulatorError(f"{threadgroup} are more than 1024 threads in a threadgroup")
        if emulator.rounded_grid or self.vocabulary == _CUDA:
            grid = tuple(-(-g // t) * t for g, t in zip(grid, threadgroup, strict=True))
        if declaration.get("ensure_row_contiguous", True):
            inputs = [mx.contiguous(x) for x in inputs]
        call = {
            "inputs": inputs,
            "output_shapes": output_shapes,
            "output_dtypes": output_dtypes,
            "grid": grid,
            "threadgroup": threadgroup,
            "template": list(template) or None,
        }
        entry, library = self._built(call)
        buffers = _Buffers()
        for name, x in zip(declaration["input_names"], inputs, strict=True):
            buffers.add_input(name, x, declaration["source"])
        outputs = [
            buffers.add_output(name, shape, dtype, emulator.seed)
            for name, shape, dtype in zip(
                declaration["output_names"], output_shapes, output_dtypes, strict=True
            )
        ]
        self._run(entry, library, buffers, grid, threadgroup)
        return [view() for view in outputs]

    def _built(self, call):
        # All that the generated text depends on, besides the declaration.
        template = call["template"] or []
        key = (
            *((x.dtype, x.ndim, x.size < 8) for x in call["inputs"]),
            *call["output_dtypes"],
            *template,
        )
        if key not in self._texts:
            self._texts[key] = self._generate(call)
        text, entry = self._texts[key]
        return build(self.declaration["name"], text, entry, self.vocabulary, self.emulator.check)

    def _generate(self, call):
        text = source.generate(self.declaration, call)
        return source.compilable(text), source.entry(text, call["template"] or [])

    def _run(self, entry, library, buffers, grid, threadgroup):
        emulator, name = self.emulator, self.declaration["name"]
        held = (_Buffer * len(buffers.held))(*buffers.held)
        stats = (_Stats * len(held))()
        order = ("forward", "reverse", "random").index(emulator.order)
        options = _Options(order, emulator.seed, emulator.check, emulator.reverse_groups)
        triple = ctypes.c_uint * 3
        faults = runtime().emu_run(
            entry,
            held,
            len(held),
            triple(*grid),
            triple(*threadgroup),
            ctypes.byref(options),
            stats,
        )
        used = runtime().emu_threadgroup_bytes()
        lines = with_lines(runtime().emu_report().decode(), library) if faults else ""
        if used > THREADGROUP_LIMIT:
            lines += f"threadgroup memory: {used} bytes, over {THREADGROUP_LIMIT}\n"
        named = {
            b.name.decode(): {f: getattr(s, f) for f, _ in _Stats._fields_}
            for b, s in zip(held, stats, strict=True)
        }
        if not lines:
            for buffer, s in named.items():
                if s["unwritten"]:
                    lines += f"OUTPUT NOT FULLY WRITTEN: {s['unwritten']} bytes of {buffer}\n"
        if lines:
            raise EmulatorError(f"{name}:\n{lines}")
        emulator.launches.append(Launch(name, used, named if emulator.check else {}))


class EmulatedCudaKernel(EmulatedKernel):
    """The same on the text and the grid that MLX makes for CUDA."""

    vocabulary = _CUDA

    def _generate(self, call):
        text = cuda.FIRST_LINES + self.declaration["header"]
        text += cuda.function(self.declaration, call)
        placed = source.place_variables(text, "__shared__")
        return placed, cuda.entry(self.declaration, call)


@cache
def _cpu_start() -> int:
    """Where MLX's buffers begin on a CPU, modulo 16; on a GPU they begin at multiples of 256."""
    x = mx.zeros(64)
    mx.eval(x)
    return np.asarray(memoryview(x)).ctypes.data % 16


class _Buffers:
    """What a kernel gets, in MLX's order, each in memory of its own with guards around it."""

    def __init__(self):
        self.held, self._alive = [], []

    def add_input(self, name, x, text):
        array = np.asarray(memoryview(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x))
        start, span = array.ctypes.data, 0
        if array.size:
            steps = zip(array.shape, array.strides, strict=True)
            span = sum((n - 1) * step for n, step in steps) + array.itemsize
        copy = self._place(name, span, 0, start - _cpu_start())
        ctypes.memmove(copy.ctypes.data, start, span)
        facts = {
            "_shape": np.array(array.shape, np.int32),
            "_strides": np.array(array.strides, np.int64) // array.itemsize,
        }
        for suffix, values in facts.items():
            if array.ndim and name + suffix in text:
                copy = self._place(name + suffix, values.nbytes, 0)
                copy[:] = values.view(np.uint8)

    def add_output(self, name, shape, dtype, seed):
        """A function that returns the output as an MLX array."""
        size = int(np.prod(shape)) * dtype.size
        memory = self._place(name, size, 1)
        memory[:] = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        plain = mx.uint16 if dtype.size == 2 else mx.uint32
        kind = np.uint16 if dtype.size == 2 else np.uint32
        return lambda: mx.array(memory.view(kind), dtype=plain).reshape(shape).view(dtype)

    def _place(self, name, size, kind, alignment=0):
        """`size` bytes that start at `alignment` modulo 256."""
        block = np.zeros(size + 2 * _GUARD + 256, np.uint8)
        skip = _GUARD + (alignment - block.ctypes.data - _GUARD) % 256
        memory = block[skip : skip + size]
        self._alive.append(block)
        self.held.append((memory.ctypes.data, size, kind, name.encode()))
        return memory
