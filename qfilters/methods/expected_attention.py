"""expected_attention: the attention a row can expect from queries yet to come, times its value."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from ..rotation import mean_rotation, unrotate
from .base import Layer, require
from .observing import Attention, Observing


@dataclass(frozen=True)
class ExpectedAttention(Observing):
    """Expected softmax mass under a Gaussian of the future queries, times the norm of the value.

    arXiv 2510.00636 as kvpress defines it. Queries before rotation have mean mu and covariance C
    (over positions >= `skip`); R is the mean rotation of the next `n_future` positions:
    `z_{h,j} = R mu . k_j scale + k_j^T R C R^T k_j scale^2 / 2`, softmax over the rows held at
    positions >= `skip`, mean over the group, `(. + epsilon) |v_j|`. Rows before `skip` are always
    kept (their score is +inf). In `stream` mu and C run over all queries seen, all rows are
    rescored after every chunk of several tokens, and a decoded row is scored alone against the
    last chunk's normaliser. `after_prefill`: the definition of the paper. Needs a model whose
    layers rotate through a module that can be inverted. Cost per step: G D^2 per new row.
    Path-dependent.

    Options:
        n_future: positions to average over, >= 1.
        epsilon: added to the probability; the peers' leaderboard uses 0.01.
        covariance: use C.
        value_norm: multiply by the norm of the value.
        skip: first positions that are left out of the statistics.
    """

    name: ClassVar[str] = "expected_attention"
    family: ClassVar[str] = "attention"
    paper: ClassVar[str] = "2510.00636"
    path_independent: ClassVar[bool] = False
    needs_rope: ClassVar[bool] = True

    n_future: int = 512
    epsilon: float = 0.0
    covariance: bool = True
    value_norm: bool = True
    skip: int = 4

    def __post_init__(self):
        for name, least in (("n_future", 1), ("skip", 0)):
            value = getattr(self, name)
            require(type(value) is int and value >= least, name, value, f">= {least}")
        number = type(self.epsilon) in (int, float) and self.epsilon >= 0
        require(number, "epsilon", self.epsilon, "a number >= 0")
        for name in ("covariance", "value_norm"):
            value = getattr(self, name)
            require(type(value) is bool, name, value, "true or false")

    def watch(self, statistic: mx.array, seen: Attention, carry, layer: Layer):
        """Rescore all rows after a chunk, the new row alone in decode; the statistic is the score.

        carry: number of queries, `sum q` `[B, H, D]` and `sum q q^T` `[B, H, D, D]` before
        rotation, and what scored the last chunk: mean, covariance, normaliser `[B, H_kv, G]`.
        """
        if seen.queries.shape[2] == 1 and carry is not None:
            slot = seen.slot[..., None]
            key = mx.take_along_axis(seen.keys, slot, axis=2)
            value = mx.take_along_axis(seen.values, slot, axis=2)
            *_, mean, spread, norm = carry
            score = self._expect(self._logits(key, mean, spread, seen.scale), norm, value)
            return mx.put_along_axis(statistic, seen.slot, score, axis=2), carry
        count, total, square = self._moments(seen, carry, layer)
        mean = total / max(count, 1)
        spread = square / max(count, 1) - mean[..., None] * mean[..., None, :]
        turn = mean_rotation(layer.rope, seen.end, self.n_future, mean.shape[-1])
        mean, spread = (mean[:, :, None] @ turn)[:, :, 0], turn.T @ spread @ turn
        z = self._logits(seen.keys, mean, spread, seen.scale)
        counted = (seen.positions >= self.skip)[:, :, None]
        norm = mx.logsumexp(mx.where(counted, z, -mx.inf), axis=-1)
        scores = self._expect(z, norm, seen.values)
        scores = mx.where(seen.positions < self.skip, mx.inf, scores)
        return scores, (count, total, square, mean, spread, norm)

    def _moments(self, seen, carry, layer):
        start = seen.end - seen.queries.shape[2]
        queries = unrotate(layer.rope, seen.queries.astype(mx.float32), start)
        queries = queries[:, :, max(self.skip - start, 0) :]
        count, total = queries.shape[2], queries.sum(axis=2)
        square = queries.swapaxes(2, 3) @ queries
        if carry is None:
            return count, total, square
        return count + carry[0], total + carry[1], square + carry[2]

    def _logits(self, keys, mean, spread, scale):
        """`z` for every query head: `[B, H_kv, G, S]`; one head of each group at a time."""
        batch, kv_heads, _, size = keys.shape
        mean = mean.reshape(batch, kv_heads, -1, size)
        spread = spread.reshape(batch, kv_heads, -1, size, size)
        rows, logits = keys.astype(mx.float32), []
        for g in range(mean.shape[2]):
            rows = mx.depends(rows, logits) if logits else rows
            z = (rows * mean[:, :, g, None]).sum(axis=-1) * scale
            if self.covariance:
                z = z + ((rows @ spread[:, :, g]) * rows).sum(axis=-1) * (scale**2 / 2)
            logits.append(z)
        return mx.stack(logits, axis=2)

    def _expect(self, z, norm, values):
        score = mx.exp(z - norm[..., None]).mean(axis=2) + self.epsilon
        if self.value_norm:
            score = score * mx.sqrt(mx.square(values.astype(mx.float32)).sum(axis=-1))
        return score
