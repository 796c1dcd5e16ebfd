"""expected_attention: the attention a row can expect from queries yet to come, times its value."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import mlx.core as mx

from ..probabilities import spans
from ..rotation import mean_rotation, unrotate
from .base import Layer, require
from .observing import Attention, Observing

# Float32 bytes of the rows, one for every query head, that are worked on at once.
BLOCK_BYTES = 2 * 2**20


class Carry(NamedTuple):
    """What the method keeps of a layer; C and its like are None without `covariance`.

    Of queries before rotation: `count`, `mean` `[B, H, D]`, `square` `[B, H, D, D]`, the sum of
    outer products about the mean. What the last scores of all rows came from: `ahead`
    `[B, H_kv, G, D]` and `spread` `[B, H_kv, G, D, D]`, mean and covariance of the queries to come,
    and `norm` `[B, H_kv, G]`, log of the denominator. `due`: tokens seen when they are made again.
    """

    count: int
    mean: mx.array
    square: mx.array | None
    ahead: mx.array | None = None
    spread: mx.array | None = None
    norm: mx.array | None = None
    due: int = 0


@dataclass(frozen=True)
class ExpectedAttention(Observing):
    """Expected softmax mass under a Gaussian of the future queries, times the norm of the value.

    arXiv 2510.00636 as kvpress defines it. Queries before rotation have mean mu and covariance C
    (over positions >= `skip`); R is the mean rotation of the next `n_future` positions:
    `z_{h,j} = R mu . k_j scale + k_j^T R C R^T k_j scale^2 / 2`, softmax over the rows held at
    positions >= `skip`, mean over the group, `(. + epsilon) |v_j|`. Rows before `skip` are always
    kept (their score is +inf). `after_prefill`: the definition of the paper. In `stream` mu and C
    run over all queries seen, and R over the positions that follow; all rows are scored again after
    every chunk of several tokens, and in decode only when the tokens seen have doubled since: a
    decoded row is scored alone, with the last forecast and its denominator. Needs a model whose
    layers rotate through a module that can be inverted. Cost per step: twice G D^2 per new row,
    for its score and for C. Path-dependent.

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
    cost: ClassVar[str] = "2 G D^2 per new row"
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

    def watch(self, statistic: mx.array, seen: Attention, carry: Carry | None, layer: Layer):
        """Score all rows after a chunk, the new row alone in decode; the statistic is the score."""
        carry = self._learn(carry or self._nothing(seen.queries), seen, layer)
        if seen.slot is not None and seen.end < carry.due:
            slot = seen.slot[..., None]
            key = mx.take_along_axis(seen.keys, slot, axis=2)
            value = mx.take_along_axis(seen.values, slot, axis=2)
            score = self._expect(self._logits(key, carry, seen.scale), carry.norm, value)
            return mx.put_along_axis(statistic, seen.slot, score, axis=2), carry
        carry = self._forecast(carry, seen, layer)
        z = self._logits(seen.keys, carry, seen.scale)
        counted = (seen.positions >= self.skip)[:, :, None]
        carry = carry._replace(norm=mx.logsumexp(mx.where(counted, z, -mx.inf), axis=-1))
        scores = self._expect(z, carry.norm, seen.values)
        return mx.where(seen.positions < self.skip, mx.inf, scores), carry

    def _nothing(self, queries):
        batch, heads, _, size = queries.shape
        square = mx.zeros((batch, heads, size, size)) if self.covariance else None
        return Carry(0, mx.zeros((batch, heads, size)), square)

    def _learn(self, carry, seen, layer):
        """Moments with the call's queries: sums about the mean, merged block by block."""
        batch, heads, total, size = seen.queries.shape
        start = seen.end - total
        (count, mean, square), rest = carry[:3], carry[3:]
        for block in spans(total, BLOCK_BYTES // (4 * batch * heads * size)):
            first = max(block.start, self.skip - start)
            new = block.stop - first
            if new <= 0:
                continue
            queries = mx.depends(seen.queries[:, :, first : block.stop], [mean])
            queries = unrotate(layer.rope, queries.astype(mx.float32), start + first)
            centre = queries.mean(axis=2)
            apart, count = centre - mean, count + new
            if self.covariance:
                off = queries - centre[:, :, None]
                between = apart[..., None] * apart[..., None, :] * ((count - new) * new / count)
                square = square + off.swapaxes(2, 3) @ off + between
            mean = mean + apart * (new / count)
        return Carry(count, mean, square, *rest)

    def _forecast(self, carry, seen, layer):
        """The moments turned to the positions to come, by KV head and group."""
        shape = (*seen.keys.shape[:2], -1, seen.keys.shape[3])
        turn = mean_rotation(layer.rope, seen.end, self.n_future, shape[-1])
        spread = None
        if self.covariance:
            spread = turn.T @ (carry.square / max(carry.count, 1)) @ turn
            spread = spread.reshape(*shape, shape[-1])
        # At least the doubling of the tokens that count, so that the work per token stays bounded.
        due = seen.end + max(1, seen.end - self.skip)
        return carry._replace(ahead=(carry.mean @ turn).reshape(shape), spread=spread, due=due)

    def _logits(self, keys, carry, scale):
        """`z` for every query head, `[B, H_kv, G, S]`."""
        batch, kv_heads, total, size = keys.shape
        per_row = 4 * batch * kv_heads * carry.ahead.shape[2] * size
        logits = []
        for block in spans(total, BLOCK_BYTES // per_row):
            rows = mx.depends(keys[:, :, block], logits[-1:]) if logits else keys[:, :, block]
            rows = rows.astype(mx.float32)[:, :, None]
            along = carry.ahead[..., None, :] * scale
            if self.covariance:
                along = along + rows @ carry.spread * (scale**2 / 2)
            logits.append((rows * along).sum(axis=-1))
        return mx.concatenate(logits, axis=-1)

    def _expect(self, z, norm, values):
        score = mx.exp(z - norm[..., None]).mean(axis=2) + self.epsilon
        if self.value_norm:
            score = score * _lengths(values)
        return score


def _lengths(values):
    """Norm of every row, `[B, H_kv, S]`."""
    batch, heads, total, size = values.shape
    lengths = []
    for block in spans(total, BLOCK_BYTES // (4 * batch * heads * size)):
        rows = mx.depends(values[:, :, block], lengths[-1:]) if lengths else values[:, :, block]
        lengths.append(mx.linalg.norm(rows.astype(mx.float32), axis=-1))
    return mx.concatenate(lengths, axis=-1)
