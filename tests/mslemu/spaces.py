"""A second compiler: clang with MSL's address spaces as real ones, which g++ does not have."""

import subprocess
import tempfile
from pathlib import Path
from shutil import which

from . import source
from .build import INCLUDE

_FLAGS = [
    *("-x", "c++", "-std=c++20", "-fsyntax-only", "-Wno-unknown-attributes"),
    *("-Wno-ignored-attributes", "-Wno-undefined-internal", "-Wno-undefined-inline"),
    *("-Werror=double-promotion", "-Werror=vla-extension"),
]


def clang() -> list[str] | None:
    """The command of a clang with the types this needs, or None."""
    for name in ("clang++", "clang++-19", "clang++-18", "clang++-17"):
        if which(name):
            return [name]
    return None


def complaints(command: list[str], declaration: dict, call: dict) -> list[str]:
    """What clang says about the text that MLX generates; empty when all is well."""
    text = source.generate(declaration, call)
    unit = '#include "msl_spaces.h"\n' + source.compilable(text)
    unit += source.instance(text, call["template"] or [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{declaration['name']}.metal"
        path.write_text(unit)
        result = subprocess.run(
            [*command, *_FLAGS, "-I", INCLUDE, path], capture_output=True, text=True
        )
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return lines if result.returncode or "warning" in result.stderr else []
