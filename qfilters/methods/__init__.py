"""The methods, one file and one line in `METHODS` each."""

import dataclasses

from ..errors import UsageError
from .base import Layer, Method
from .chunkkv import ChunkKV
from .expected_attention import ExpectedAttention
from .h2o import H2O
from .keydiff import KeyDiff
from .knorm import KNorm
from .none import KeepAll
from .oracle import Oracle
from .pyramidkv import PyramidKV
from .qfilters import QFilters
from .qfilters_keysvd import QFiltersKeySVD
from .qfilters_mean import QFiltersMean
from .random import Random
from .sliding_window import SlidingWindow
from .snapkv import SnapKV
from .streaming_llm import StreamingLLM
from .tova import TOVA

__all__ = ["METHODS", "Layer", "Method", "make_method"]

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        KeepAll,
        QFilters,
        QFiltersMean,
        QFiltersKeySVD,
        Random,
        KNorm,
        KeyDiff,
        StreamingLLM,
        SlidingWindow,
        H2O,
        TOVA,
        SnapKV,
        PyramidKV,
        ChunkKV,
        ExpectedAttention,
        Oracle,
    )
}


def make_method(name: str, options: dict | None = None) -> Method:
    """Build a method by name, e.g. `make_method("qfilters_keysvd", {"sign": -1})`.

    Raises:
        UsageError: unknown name, unknown option or bad value.
    """
    if name not in METHODS:
        raise UsageError(f"unknown method {name!r}. Known: {', '.join(METHODS)}")
    known = [field.name for field in dataclasses.fields(METHODS[name])]
    for option in options or {}:
        if option not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has no options"
            raise UsageError(f"method {name} has no option {option!r}: {allowed}")
    return METHODS[name](**(options or {}))
