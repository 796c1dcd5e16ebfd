"""Score keys, choose rows and copy them: plain MLX everywhere, fused kernels on a GPU.

Selection itself goes through the order of `select`, whoever computes it.
"""

from functools import cache

from ..errors import UsageError
from ..platform import backend
from .fused import Fused
from .reference import project, put_row, take_rows

__all__ = ["Fused", "choose_kernels", "kernel_name", "project", "put_row", "take_rows"]


def choose_kernels(use_kernel: bool | None = None) -> Fused | None:
    """The fused kernels of the back end in use, or None for the reference.

    Args:
        use_kernel: None takes kernels where there is a GPU, True insists on them, False declines.

    Raises:
        UsageError: True, and MLX computes on the CPU here.
    """
    if use_kernel is not None and not isinstance(use_kernel, bool):
        raise UsageError(f"use_kernel must be None, True or False, not {use_kernel!r}")
    place = backend()
    if use_kernel is False or (use_kernel is None and place not in ("metal", "cuda")):
        return None
    if place not in ("metal", "cuda"):
        raise UsageError(
            f"fused kernels need MLX's Metal or CUDA back end, and it computes on {place} here: "
            "use_kernel=None (--kernel auto) takes the reference"
        )
    return _built(place, bool(use_kernel))


@cache
def _built(place: str, strict: bool) -> Fused:
    import mlx.core as mx

    from . import texts

    if place == "metal":
        return Fused(place, mx.fast.metal_kernel, texts.metal, strict)
    return Fused(place, mx.fast.cuda_kernel, texts.cuda, strict)


def kernel_name(kernels: Fused | None) -> str:
    """What results call the path taken: `metal`, `cuda` or `reference`."""
    return "reference" if kernels is None else kernels.name
