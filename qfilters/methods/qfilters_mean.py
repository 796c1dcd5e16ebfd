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
        shape, group = keys.shape[:3], layer.query_mean.shape[0] // layer.n_kv_heads
        logits = layer.project(mx.repeat(keys, group, axis=1), layer.query_mean)
        logits = logits.reshape(*shape[:2], group, shape[2]) / layer.head_dim**0.5
        return mx.logsumexp(logits, axis=2)
