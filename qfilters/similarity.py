"""Cosines between the filters of two artifacts. Needs no model and no device."""

import numpy as np

from .errors import FilterError
from .filters import Filters


def compare(a: Filters, b: Filters) -> dict:
    """Cosine between two artifacts' filters of every KV head.

    Returns:
        `cosine`, `abs_cosine` `[layers][H_kv]`, lists; their means and least values as
        `mean_cosine`, `min_cosine`, `mean_abs_cosine`, `min_abs_cosine`; `opposed`: heads with a
        negative cosine; `n_heads`.

    Raises:
        FilterError: other layers or other shapes.
    """
    if a.q_filters.shape != b.q_filters.shape or not np.array_equal(a.layer_index, b.layer_index):
        raise FilterError(
            f"filters of {a.metadata.get('model')} {a.q_filters.shape} and of "
            f"{b.metadata.get('model')} {b.q_filters.shape} belong to different layers or heads"
        )
    return {"layers": a.layer_index.tolist(), **cosines(a.q_filters, b.q_filters)}


def cosines(a: np.ndarray, b: np.ndarray) -> dict:
    """What `compare` says of two arrays of directions `[n, H_kv, D]`, of any length but zero."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    length = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine = np.clip((a * b).sum(axis=-1) / length, -1.0, 1.0)
    size = np.abs(cosine)
    return {
        "n_heads": cosine.size,
        "mean_cosine": float(cosine.mean()),
        "min_cosine": float(cosine.min()),
        "mean_abs_cosine": float(size.mean()),
        "min_abs_cosine": float(size.min()),
        "opposed": int((cosine < 0).sum()),
        "cosine": cosine.tolist(),
        "abs_cosine": size.tolist(),
    }
