"""Undoing rotary position embeddings, and averaging them over positions still to come.

Works through the layer's own RoPE module, whatever its frequencies, for modules whose angle is
linear in the position: then the inverse rotation is the rotation at the negative position.
"""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import rope_utils

INVERTIBLE = (
    nn.RoPE,
    rope_utils.SuScaledRoPE,
    rope_utils.Llama3RoPE,
    rope_utils.YarnRoPE,
    rope_utils.ProportionalRoPE,
)


def rope_of(module) -> tuple[nn.Module | None, str]:
    """The RoPE module of one decoder layer.

    Returns:
        The module and "", or None and why there is none that can be inverted.
    """
    found = [m for m in module.modules() if "rope" in type(m).__name__.lower()]
    if len(found) != 1:
        return None, f"{len(found)} RoPE modules in the layer, one is needed"
    if type(found[0]) not in INVERTIBLE:
        return None, f"{type(found[0]).__name__} is not a rotation that can be undone here"
    return found[0], ""


def unrotate(rope: nn.Module, x: mx.array, start: int) -> mx.array:
    """Rows as they were before `rope(x, offset=start)`.

    Args:
        rope: one of `INVERTIBLE`.
        x: float32 `[B, H, T, D]`, row i rotated at position `start + i`.

    Returns:
        float32 `[B, H, T, D]`.
    """
    # Reversed in time, row i of T meets position -(start + T - 1) + i: minus its own.
    turned = rope(x[:, :, ::-1], offset=-(start + x.shape[2] - 1))[:, :, ::-1]
    return turned / mx.square(_gain(rope, x.shape[3]))


def mean_rotation(rope: nn.Module, first: int, count: int, size: int) -> mx.array:
    """Mean over positions `first .. first + count - 1` of the rotation, float32 `[D, D]`.

    For a row vector q before rotation, `q @ mean_rotation(...)` is the mean of the rotated vectors.
    """
    gain = _gain(rope, size)

    def turn(position):
        basis = mx.eye(size).reshape(size, 1, 1, size)
        return rope(basis, offset=position).reshape(size, size) / gain

    def total(n):
        """Sum of the first n rotations: the second half is the first, turned by n / 2."""
        if n == 1:
            return mx.eye(size)
        half = total(n // 2)
        both = half + half @ turn(n // 2)
        return both + turn(n - 1) if n % 2 else both

    return total(count) @ turn(first) * (gain / count)


def _gain(rope, size):
    """`[D]`: some modules scale what they rotate; at position 0 that is all they do."""
    return rope(mx.ones((1, 1, 1, size)), offset=0).reshape(size)
