"""qfilters_mean: the ablation of the SVD, a key against the mean query."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import Layer, Method


@dataclass(frozen=True)
class QFiltersMean(Method):
    """Score `logsumexp_g(mu_g . k / sqrt(D))` over the query heads g of the group, mu = mean query.

    The ablation of the SVD: the expected logit under the mean query instead of the projection on
    the top singular vector. Cost per step: G dot products per new row. Path-independent.
    """

    name: ClassVar[str] = "qfilters_mean"
    family: ClassVar[str] = "projection"
    paper: ClassVar[str] = "ours (ablation)"
    cost: ClassVar[str] = "G dot products per new row"
    needs_filters: ClassVar[str | None] = "query_mean"

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """`[B, H_kv, T]`: log of the summed expected exponentials of the group."""
        means = layer.query_mean.reshape(layer.n_kv_heads, -1, layer.head_dim)
        group = range(means.shape[1])
        logits = mx.stack([layer.project(keys, means[:, g]) for g in group], axis=-1)
        return mx.logsumexp(logits / layer.head_dim**0.5, axis=-1)
