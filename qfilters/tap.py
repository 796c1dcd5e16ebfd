"""The attention tap: caches that define `observe` see each attention call of their layer.

mlx-lm's models call `scaled_dot_product_attention` as a global of the file that defines their
attention class. The tap replaces that global by a wrapper that calls the original and then, when
the cache of the call has `observe`, hands it the very arrays that met in attention. Caches without
`observe` notice nothing. The tap knows nothing about what the observations are used for.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps

import mlx.core as mx

ATTENTION = "scaled_dot_product_attention"


def _wrap(original):
    signature = inspect.signature(original)

    @wraps(original)
    def tapped(*args, **kwargs):
        out = original(*args, **kwargs)
        call = signature.bind(*args, **kwargs).arguments
        observe = getattr(call.get("cache"), "observe", None)
        if observe is None:
            return out
        statistics = observe(
            call["queries"],
            call["keys"],
            call["values"],
            scale=call["scale"],
            mask=call.get("mask"),
            sinks=call.get("sinks"),
        )
        # Tied to the output, the statistics are computed with the token and never later, when
        # they would keep the old K/V buffer alive and force a copy of it.
        return mx.depends(out, statistics) if statistics else out

    return tapped


class _Tap:
    """The wrapper in one namespace, and how many asked for it."""

    def __init__(self, scope: dict):
        self.scope, self.original, self.holders = scope, scope[ATTENTION], 0
        self.wrapper = scope[ATTENTION] = _wrap(self.original)
        self.wrapper.qfilters_tap = self

    def release(self) -> None:
        self.holders -= 1
        if not self.holders and self.scope[ATTENTION] is self.wrapper:
            self.scope[ATTENTION] = self.original


def _namespaces(model) -> list[dict]:
    """The globals of every class in the MRO of every submodule that name the attention function."""
    found = {}
    for module in model.modules():
        for cls in type(module).__mro__:
            scope = getattr(vars(cls).get("__call__"), "__globals__", {})
            if ATTENTION in scope:
                found[id(scope)] = scope
    return list(found.values())


def install(model) -> list[_Tap]:
    """Install the tap for good; where it is already, it stays single.

    Args:
        model: an mlx-lm model.

    Returns:
        One tap per namespace, each to be released once by a caller that does not want it for good.
    """
    scopes = _namespaces(model)
    taps = [getattr(scope[ATTENTION], "qfilters_tap", None) or _Tap(scope) for scope in scopes]
    for tap in taps:
        tap.holders += 1
    return taps


@contextmanager
def tapped(model) -> Iterator[None]:
    """The tap for the length of a `with` block; it stays after it if somebody else wants it."""
    taps = install(model)
    try:
        yield
    finally:
        for tap in taps:
            tap.release()
