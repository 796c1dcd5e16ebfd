"""The facts of this installation, measured where a claim would not do, and why things fall back.

It answers on every machine, also where mlx cannot start. It changes nothing and loads no model.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

from .errors import UsageError
from .models import EMBEDDED, embedded_folder
from .platform import (
    backend,
    blas_status,
    cache_dir,
    default_dtype,
    default_prefill_step_size,
    provenance,
    require_mlx,
    version,
)
from .smollm2 import is_complete

_SIZE = 1024  # of the measured matrix product


class Fact(NamedTuple):
    """One row of the report. `note` says what falls back, why, and what would change it."""

    name: str
    value: str
    note: str = ""


def diagnose() -> list[Fact]:
    """Everything `qfilters doctor` prints, in its order. Takes about a second, no network."""
    known = provenance()
    names = ("qfilters", "python", "platform", "mlx", "mlx_lm", "numpy")
    facts = [Fact(name, known[name]) for name in names]
    facts.append(Fact("transformers", version("transformers")))
    facts.extend(_compute(known) if backend() else [_no_backend()])
    facts.extend(_storage())
    return facts


def _no_backend() -> Fact:
    try:
        require_mlx()
    except UsageError as error:
        return Fact("back end", "none", str(error))
    raise AssertionError("mlx started now but not before")


def _compute(known: dict[str, str]) -> list[Fact]:
    import mlx.core as mx

    dtype = default_dtype()
    why = "narrower types are far slower on this back end" if dtype == mx.float32 else ""
    return [
        Fact("device", known["device"]),
        Fact("back end", known["backend"], _why_not_gpu(known["backend"])),
        _blas(),
        _kernels(),
        _compile(known["backend"]),
        Fact("dtype auto", str(dtype).split(".")[-1] if dtype else "as stored", why),
        Fact("prefill step", f"{default_prefill_step_size()} tokens"),
    ]


def _why_not_gpu(place: str) -> str:
    if place != "cpu":
        return ""
    if sys.platform == "darwin":
        return "mlx's default device was set to the CPU, or Metal is not available"
    return "no GPU back end is installed or usable; 'qfilters-mlx[cuda]' serves NVIDIA GPUs"


def _kernels() -> Fact:
    from .kernels import choose_kernels, kernel_name

    chosen = choose_kernels()
    if chosen is None:
        return Fact("kernels", kernel_name(chosen), "plain MLX operations, as there is no GPU")
    return Fact("kernels", chosen.name, "fused; 'qfilters bench kernels' checks and times them")


def _blas() -> Fact:
    status = blas_status()
    speed = f"{status.name}, {_gigaflops():.0f} GFLOP/s"
    return Fact("matrix products", speed, status.note or status.path or "")


def _gigaflops() -> float:
    """Best of a few float32 products of two 1024 x 1024 matrices, in 1e9 operations a second."""
    import mlx.core as mx

    a, b = mx.random.normal((2, _SIZE, _SIZE))
    mx.eval(a @ b)
    best, start = float("inf"), time.perf_counter()
    for _ in range(5):
        before = time.perf_counter()
        mx.eval(a @ b)
        now = time.perf_counter()
        best = min(best, now - before)
        if now - start > 1:
            break
    return 2 * _SIZE**3 / best / 1e9


def _compile(place: str) -> Fact:
    """Whether functions that mlx-lm compiles run; on CPU mlx writes C++ and calls g++ for that."""
    if "MLX_DISABLE_COMPILE" in os.environ:
        return Fact("mx.compile", "off", "MLX_DISABLE_COMPILE is set; results stay the same")
    if place == "cpu" and shutil.which("g++") is None:
        return Fact("mx.compile", "off", "no g++ on PATH: mlx runs the same functions uncompiled")
    import mlx.core as mx

    try:
        mx.eval(mx.compile(lambda x: mx.sigmoid(x) * x)(mx.ones(8)))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        return Fact("mx.compile", "fails", f"{reason}; set MLX_DISABLE_COMPILE=1 to do without")
    return Fact("mx.compile", "on")


def _storage() -> list[Fact]:
    folder = cache_dir()
    there = is_complete(embedded_folder())
    return [
        Fact("cache folder", f"{_size(folder) / 1e6:.0f} MB", str(folder)),
        Fact(
            f"model {EMBEDDED}",
            "present" if there else "not fetched yet",
            "" if there else "the first use fetches 93 MB from the package index",
        ),
    ]


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
