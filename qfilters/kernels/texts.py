"""The texts of the fused kernels, for Metal as they are and for CUDA in a few other words.

Reads files of this package and changes strings. It runs nothing.
"""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Declaration(NamedTuple):
    """What `mx.fast.metal_kernel` and `mx.fast.cuda_kernel` want to know of a kernel."""

    inputs: list[str]
    outputs: list[str]


KERNELS = {
    "score": Declaration(["keys", "directions"], ["scores"]),
    "select": Declaration(["ranks", "positions", "how"], ["kept"]),
    "compact": Declaration(
        ["keys", "values", "ranks", "positions", "kept"],
        ["keys_out", "values_out", "ranks_out", "positions_out"],
    ),
    "replace": Declaration(
        ["keys", "directions", "ranks", "positions", "slot", "now"], ["new_ranks", "next"]
    ),
    "next_victim": Declaration(["new_ranks", "ranks", "positions", "slot", "now"], ["next"]),
}

_INCLUDE = re.compile(r'^#include "(\S+)"\n', re.M)


@cache
def read(name: str) -> str:
    """A file of msl/, with what it includes in place."""
    text = (files(__package__) / "msl" / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: read(found[1]), text)


def metal(name: str) -> dict:
    """Header and source of a kernel for `mx.fast.metal_kernel`."""
    return {"header": read("common.metal"), "source": read(f"{name}.metal")}


def cuda(name: str) -> dict:
    """Header and source of a kernel for `mx.fast.cuda_kernel`.

    The words for address spaces have no counterpart there, except that of shared memory; the
    other words are defined by cuda.h.
    """
    common = _without_spaces(read("common.metal"))
    common = re.sub(r"^inline ", "QF_INLINE ", common, flags=re.M)
    return {"header": read("cuda.h") + common, "source": _without_spaces(read(f"{name}.metal"))}


def _without_spaces(text: str) -> str:
    text = re.sub(r"\b(?:device|constant|thread) ", "", text)
    return re.sub(r"^threadgroup ", "__shared__ ", text, flags=re.M)
