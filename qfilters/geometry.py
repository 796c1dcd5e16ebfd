"""The geometry of queries on held-out text. Knows moments of queries and filters; ranks no keys."""

from collections.abc import Sequence

import numpy as np

from .errors import UsageError
from .estimator import QueryMoments
from .filters import Filters
from .stats import mean_t


def observations(
    texts: Sequence[Sequence[QueryMoments]],
    keys: Sequence[Sequence[np.ndarray]],
    filters: Filters,
) -> dict:
    """Observations 3.1 and 3.2 of arXiv 2503.02812 on text the filters were not made from.

    3.1: the mean query of a text projects positively on the filter of its KV head, and the mean key
    does so up to a sign epsilon, which the paper finds negative in most heads of its models. Where
    it is, a short key lies less far against the filter: that is why `knorm` works, where it does.
    3.2: along the top singular vector the mean query is long, along the others it nearly vanishes.
    The artifact holds one direction per KV head, so the D directions of a query head are the
    eigenvectors of `sum q q^T` over all texts but one, oriented by the sign rule, and the mean is
    that of the one left out: on the same text the others vanish by a second-order identity
    (G = N (C + m m^T) turns its first eigenvector towards the mean m), which says little.

    Args:
        texts: per text, the moments of every layer of the filters, in their order.
        keys: per text and layer `[2, H_kv, D]`: mean and first principal axis of every KV head's.
        filters: the artifact.

    Returns:
        `positive_query_heads`, `positive_kv_heads`, `negative_keys`: numbers of heads whose mean
        projection on the filter over all texts is positive (KV head: mean of its group), and of KV
        heads whose mean key's is negative; `filter_projection`: mean of the queries';
        `mean_projection`: along the first of the D directions, `other_projection`: mean absolute
        one along the others, `ratio` of the two text by text, all null below 2 texts; `key_axis`:
        mean size of the cosine of the keys' first principal axis to the filter; `top_energy`,
        `filter_energy`: share of a text's `sum |q|^2` along the top eigenvector of all texts, and
        along the filter; `projection_by_layer`, `keys_by_layer`: on the filter, per layer and query
        or KV head. Means run over texts and heads. `intervals`: low and high of some of these, 95
        %, t over texts, null below 2.

    Raises:
        UsageError: no text, or moments of other layers than the filters'.
    """
    if not texts or {len(text) for text in texts} != {len(filters.layer_index)}:
        sizes = sorted({len(text) for text in texts})
        raise UsageError(f"moments of {sizes} layers for {len(filters.layer_index)} of the filters")
    n_kv_heads = filters.q_filters.shape[1]
    along, first, others, top, on_filter, whole = [], [], [], [], [], []
    for layer, moments in enumerate(zip(*texts, strict=True)):
        gram = np.stack([m.gram for m in moments])
        total = np.stack([m.total for m in moments])
        mean = total / np.array([m.count for m in moments])[:, None, None]
        group = mean.shape[1] // n_kv_heads
        filter_ = filters.q_filters[layer].astype(np.float64).repeat(group, axis=0)
        along.append(np.einsum("thd,hd->th", mean, filter_))
        top.append(_energy(gram, np.linalg.eigh(gram.sum(axis=0)).eigenvectors[..., -1]))
        on_filter.append(_energy(gram, filter_))
        whole.append(np.trace(gram, axis1=2, axis2=3))
        if len(texts) > 1:
            projections = _left_out(gram, total, mean)
            first.append(projections[..., -1])
            others.append(np.abs(projections[..., :-1]).mean(axis=-1))
    along = np.stack(along, axis=1)  # [texts, layers, query heads]
    heads = along.mean(axis=0)
    mean_keys, axes = np.einsum("tlkhd,lhd->ktlh", keys, filters.q_filters.astype(np.float64))
    mean_keys = mean_keys.mean(axis=0)
    found = {
        "filter_projection": mean_t(along.mean(axis=(1, 2))),
        "key_axis": mean_t(np.abs(axes).mean(axis=(1, 2))),
    }
    for name, part in (("top_energy", top), ("filter_energy", on_filter)):
        share = np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.array(whole) > 0)
        found[name] = mean_t(share.mean(axis=(0, 2)))
    found["ratio"] = None, None, None
    first, others = (np.mean(x, axis=(0, 2)) if x else np.zeros(0) for x in (first, others))
    if others.all() and others.size:
        found["ratio"] = mean_t(first / others)
    return {
        "positive_query_heads": int((heads > 0).sum()),
        "positive_kv_heads": int((heads.reshape(-1, group).mean(axis=1) > 0).sum()),
        "negative_keys": int((mean_keys < 0).sum()),
        "mean_projection": float(np.mean(first)) if len(first) else None,
        "other_projection": float(np.mean(others)) if len(others) else None,
        **{name: mean for name, (mean, *_) in found.items()},
        "intervals": {name: ends for name, (_, *ends) in found.items()},
        "n_texts": len(texts),
        "n_query_heads": heads.size,
        "n_kv_heads": heads.size // group,
        "n_queries": sum(text[0].count for text in texts),
        "projection_by_layer": heads.tolist(),
        "keys_by_layer": mean_keys.tolist(),
    }


def _left_out(gram, total, mean) -> np.ndarray:
    """`[texts, H, D]`: each text's mean query along the eigenvectors of the others', top last."""
    _, vectors = np.linalg.eigh(gram.sum(axis=0) - gram)
    rest = total.sum(axis=0) - total
    sign = np.where(np.einsum("thd,thd->th", rest, vectors[..., -1]) < 0, -1.0, 1.0)
    found = np.einsum("thd,thdk->thk", mean, vectors)
    found[..., -1] *= sign
    return found


def _energy(gram, direction) -> np.ndarray:
    """`[T, H]`: the part of every text's `sum |q|^2` that lies along a head's direction."""
    return np.einsum("hd,thde,he->th", direction, gram, direction)
