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

    tapped.qfilters_original = original
    return tapped


def _namespaces(model) -> list[dict]:
    """The globals of every class in the MRO of every submodule that name the attention function."""
    found = {}
    for module in model.modules():
        for cls in type(module).__mro__:
            scope = getattr(vars(cls).get("__call__"), "__globals__", {})
            if ATTENTION in scope:
                found[id(scope)] = scope
    return list(found.values())


def install(model) -> list[dict]:
    """Install the tap for good. Idempotent.

    Args:
        model: an mlx-lm model.

    Returns:
        The namespaces this call changed (empty when the tap was there already).
    """
    changed = []
    for scope in _namespaces(model):
        if not hasattr(scope[ATTENTION], "qfilters_original"):
            scope[ATTENTION] = _wrap(scope[ATTENTION])
            changed.append(scope)
    return changed


@contextmanager
def tapped(model) -> Iterator[None]:
    """The tap for the length of a `with` block; what was there before is put back."""
    changed = install(model)
    try:
        yield
    finally:
        for scope in changed:
            scope[ATTENTION] = scope[ATTENTION].qfilters_original
