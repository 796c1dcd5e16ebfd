"""The geometry of queries on held-out text. Knows moments of queries and filters; ranks no keys."""

from collections.abc import Sequence

import numpy as np

from .errors import UsageError
from .estimator import QueryMoments
from .filters import Filters
from .stats import paired_difference


def observations(texts: Sequence[Sequence[QueryMoments]], filters: Filters) -> dict:
    """Observations 3.1 and 3.2 of arXiv 2503.02812 on text the filters were not made from.

    3.1: the mean query of a text projects positively on the filter of its KV head.
    3.2: along the top singular vector the mean query is long, along the others it nearly vanishes.
    The artifact holds one direction per KV head, so the D directions of a query head are the
    eigenvectors of `sum q q^T` over all texts but one, oriented by the sign rule, and the mean is
    that of the one left out: on the same text the others vanish by a second-order identity
    (G = N (C + m m^T) turns its first eigenvector towards the mean m), which says little.

    Args:
        texts: per text, the moments of every layer of the filters, in their order.
        filters: the artifact.

    Returns:
        `positive_query_heads`, `positive_kv_heads`: shares whose mean projection on the filter over
        all texts is positive (KV head: mean of its group); `filter_projection`: its mean;
        `mean_projection`: along the first of the D directions, `other_projection`: mean absolute
        one along the others, `ratio` of the two, all null below 2 texts; `top_energy`,
        `filter_energy`: share of `sum |q|^2` along the top eigenvector of all texts, and along the
        filter; `projection_by_layer`: on the filter, per layer and query head; `low`, `high` of
        `filter_projection`: 95 %, bootstrap over texts. Means run over texts and query heads.

    Raises:
        UsageError: no text, or moments of other layers than the filters'.
    """
    if not texts or {len(text) for text in texts} != {len(filters.layer_index)}:
        sizes = sorted({len(text) for text in texts})
        raise UsageError(f"moments of {sizes} layers for {len(filters.layer_index)} of the filters")
    n_kv_heads = filters.q_filters.shape[1]
    along, first, others, energy = [], [], [], []
    for layer, moments in enumerate(zip(*texts, strict=True)):
        gram = np.stack([m.gram for m in moments])
        total = np.stack([m.total for m in moments])
        mean = total / np.array([m.count for m in moments])[:, None, None]
        group = mean.shape[1] // n_kv_heads
        filter_ = filters.q_filters[layer].astype(np.float64).repeat(group, axis=0)
        along.append(np.einsum("thd,hd->th", mean, filter_))
        energy.append(_energies(gram.sum(axis=0), filter_))
        if len(texts) > 1:
            projections = _left_out(gram, total, mean)
            first.append(projections[..., -1])
            others.append(np.abs(projections[..., :-1]).mean(axis=-1))
    along = np.stack(along, axis=1)  # [texts, layers, query heads]
    heads = along.mean(axis=0)
    projection, low, high = paired_difference(along.mean(axis=(1, 2)), np.zeros(len(texts)))
    top, on_filter = np.stack(energy).mean(axis=(0, 2))
    found = {
        "positive_query_heads": float((heads > 0).mean()),
        "positive_kv_heads": float((heads.reshape(-1, group).mean(axis=1) > 0).mean()),
        "filter_projection": projection,
        "low": low,
        "high": high,
        "mean_projection": float(np.mean(first)) if first else None,
        "other_projection": float(np.mean(others)) if others else None,
        "ratio": float(np.mean(first) / np.mean(others)) if first and np.any(others) else None,
        "top_energy": float(top),
        "filter_energy": float(on_filter),
        "n_texts": len(texts),
        "n_query_heads": heads.size,
        "n_kv_heads": heads.size // group,
        "n_queries": sum(text[0].count for text in texts),
        "projection_by_layer": heads.tolist(),
    }
    return found


def _left_out(gram, total, mean) -> np.ndarray:
    """`[texts, H, D]`: each text's mean query along the eigenvectors of the others', top last."""
    _, vectors = np.linalg.eigh(gram.sum(axis=0) - gram)
    rest = total.sum(axis=0) - total
    sign = np.where(np.einsum("thd,thd->th", rest, vectors[..., -1]) < 0, -1.0, 1.0)
    found = np.einsum("thd,thdk->thk", mean, vectors)
    found[..., -1] *= sign
    return found


def _energies(gram, filter_) -> np.ndarray:
    """`[2, H]`: share of the energy along the top eigenvector and along the filter."""
    energy = np.trace(gram, axis1=1, axis2=2)
    top = np.linalg.eigvalsh(gram)[:, -1]
    along = np.einsum("hd,hde,he->h", filter_, gram, filter_)
    return np.stack([top, along]) / np.where(energy > 0, energy, 1)
