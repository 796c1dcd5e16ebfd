"""Compile kernels and the runtime with g++, once per text, into a folder of the temporary files."""

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which

INCLUDE = Path(__file__).parent / "include"
COMPILER = "g++"
KEPT_S = 14 * 24 * 3600

_COMMON = ["-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-march=native"]
_KERNEL = ["-gdwarf-4", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-attributes"]
_UNDEFINED = (
    "alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow,"
    "float-cast-overflow,bool,null"
)
# Without scalar replacement a vector is read in one access, as the kernel says.
_CHECKED = ["-O1", "-fno-tree-sra", "-fsanitize=thread", f"-fsanitize={_UNDEFINED}"]


class EmulatorError(Exception):
    """A kernel that does not compile, or what a checked run found in it."""


def why_missing() -> str | None:
    """Why kernels cannot be emulated here; None where they can."""
    if sys.platform != "linux":
        return "the emulator runs on Linux"
    if which(COMPILER) is None:
        return "the emulator needs g++"
    return None


@cache
def folder() -> Path:
    """Where compiled kernels are kept: `$MSLEMU_CACHE`, else the temporary files of this user."""
    default = Path(tempfile.gettempdir()) / f"qfilters-mslemu-{os.getuid()}"
    path = Path(os.environ.get("MSLEMU_CACHE") or default)
    path.mkdir(parents=True, exist_ok=True)
    for old in path.iterdir():
        if old.stat().st_mtime < time.time() - KEPT_S:
            old.unlink(missing_ok=True)
    return path


def _compile(command: list) -> None:
    result = subprocess.run([COMPILER, *map(str, command)], capture_output=True, text=True)
    if result.returncode:
        raise EmulatorError(f"compile failed:\n{result.stderr[:6000]}")


def _key(*parts: str) -> str:
    headers = [p.read_text() for p in sorted(INCLUDE.rglob("*")) if p.is_file()]
    return hashlib.sha256("\0".join([*parts, *headers]).encode()).hexdigest()[:20]


def _mlx_headers() -> Path:
    return Path(find_spec("mlx").submodule_search_locations[0]) / "include"


@cache
def runtime() -> ctypes.CDLL:
    """The scheduler and the checker, shared by all kernels. One kernel runs at a time."""
    target = folder() / f"runtime-{_key()}.so"
    if not target.exists():
        new = target.with_suffix(f".{os.getpid()}")
        sources = [INCLUDE / "runtime.cpp", INCLUDE / "checker.cpp"]
        _compile([*_COMMON, "-O2", "-shared", *sources, "-o", new, "-ldl"])
        os.replace(new, target)
    library = ctypes.PyDLL(str(target), mode=ctypes.RTLD_GLOBAL)
    library.emu_report.restype = ctypes.c_char_p
    library.emu_threadgroup_bytes.restype = ctypes.c_uint64
    return library


@cache
def build(
    name: str, text: str, call: str, vocabulary: str, check: bool
) -> tuple[ctypes.c_void_p, Path]:
    """Compile a kernel; its entry point and its library.

    Args:
        name: for messages.
        text: C++ after `source.compilable`.
        call: the statement that calls the kernel.
        vocabulary: the includes that `text` needs.
        check: instrument every access.
    """
    flags = [*_COMMON, *_KERNEL, *(_CHECKED if check else ["-O2"])]
    key = _key(text, call, vocabulary, " ".join(flags))
    target = folder() / f"{key}.so"
    if not target.exists():
        body, unit = folder() / f"{name}-{key}.metal", folder() / f"{key}.cpp"
        body.write_text(text)
        unit.write_text(
            f'{vocabulary}\n#include "{body}"\nextern "C" void emu_kernel() {{ {call} }}\n'
        )
        folders = [INCLUDE, INCLUDE / "shim", INCLUDE / "cuda", _mlx_headers()]
        paths = [word for path in folders for word in ("-I", path)]
        new = target.with_suffix(f".{os.getpid()}")
        _compile([*flags, *paths, "-c", unit, "-o", f"{new}.o"])
        # Linked without the sanitizers: their calls go to checker.cpp.
        _compile(["-shared", f"{new}.o", "-o", new])
        os.unlink(f"{new}.o")
        os.replace(new, target)
    runtime()
    library = ctypes.PyDLL(str(target))
    return ctypes.cast(library.emu_kernel, ctypes.c_void_p), target


def with_lines(report: str, library: Path) -> str:
    """Replace code addresses by lines of the kernel."""

    def line(found):
        command = ["addr2line", "-e", str(library), "-i", found[1]]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        names = [re.sub(r"-[0-9a-f]{20}", "", Path(x.split(" ")[0]).name) for x in lines]
        return "at " + (" <- ".join(n for n in names if ".metal" in n) or "?")

    return re.sub(r"@(0x[0-9a-f]+)", line, report) if which("addr2line") else report
