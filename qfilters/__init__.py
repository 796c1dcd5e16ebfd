"""KV-cache eviction for MLX language models. Public names are imported on first use."""

from importlib import import_module

from .platform import setup_blas

# Before anything can import mlx.core: afterwards it is too late for a faster BLAS.
setup_blas()

_EXPORTS = {
    "load": "models",
    "calibrate": "calibration",
    "Filters": "filters",
    "make_prompt_cache": "prompt_cache",
    "layer_plan": "plan",
    "METHODS": "methods",
    "evaluate_ppl": "ppl",
    "evaluate_ruler": "ruler.run",
    "prefill": "fork",
    "Arm": "fork",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'qfilters' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
