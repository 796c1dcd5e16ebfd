"""The direction in which queries drift, from second moments that can be streamed and added up.

Knows arrays of queries; knows nothing of models, text or caches.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np


def chunk_moments(queries: mx.array) -> tuple[mx.array, mx.array]:
    """Second and first moments of one chunk, float32 on the device.

    Args:
        queries: `[B, H, T, D]`, as they meet the cached keys in attention.

    Returns:
        `sum q q^T` `[H, D, D]` and `sum q` `[H, D]`.
    """
    heads, size = queries.shape[1], queries.shape[3]
    rows = queries.astype(mx.float32).transpose(1, 0, 2, 3).reshape(heads, -1, size)
    return rows.swapaxes(1, 2) @ rows, rows.sum(axis=1)


class QueryMoments:
    """Running `G = sum q q^T` and `s = sum q` of one layer, added up in float64 on the host.

    Memory does not depend on the number of tokens; moments of parts of a corpus add up to those of
    the whole.

    Attributes:
        gram: float64 `[H, D, D]`; total: float64 `[H, D]`; count: queries per head.
    """

    def __init__(self, heads: int, size: int):
        self.gram = np.zeros((heads, size, size))
        self.total = np.zeros((heads, size))
        self.count = 0

    def add(self, gram: np.ndarray, total: np.ndarray, count: int) -> None:
        """Add a chunk's moments."""
        self.gram += gram
        self.total += total
        self.count += count


@dataclass(frozen=True)
class Drift:
    """What the moments of one layer say.

    Attributes:
        q_filters: float64 `[H_kv, D]`, unit length, oriented so that queries project positively.
        query_mean: `[H, D]`.
        explained_energy: `[H]`, share of `sum |q|^2` along the top direction.
        mean_projection: `[H]`, mean of `q . v1`, >= 0 by the sign rule.
        other_projection: `[H]`, mean over the other directions of `|mean of q . v|`.
        degenerate: KV heads to distrust: a query head saw only zeros, or the group cancels.
    """

    q_filters: np.ndarray
    query_mean: np.ndarray
    explained_energy: np.ndarray
    mean_projection: np.ndarray
    other_projection: np.ndarray
    degenerate: tuple[int, ...]


def drift(moments: QueryMoments, n_kv_heads: int) -> Drift:
    """The Q-Filters of one layer (arXiv 2503.02812, eq. 1 and section 3.2).

    v1 = top eigenvector of G = top right-singular vector of the stacked queries, oriented by
    `sgn(v1 . s) = sgn(1^T u1)`, `sgn(0) = +1`. Queries are not centred: the drift from the origin
    is the signal. Under GQA the vectors of a group are averaged (without heads that saw only zeros)
    and the mean has unit length; where they cancel, the first head's vector stands in.

    Args:
        moments: of the H query heads; head h belongs to KV head `h // (H / H_kv)`.
        n_kv_heads: H_kv.
    """
    heads, size = moments.total.shape
    values, vectors = np.linalg.eigh(moments.gram)
    mean = moments.total / max(moments.count, 1)
    along = np.einsum("hd,hdk->hk", mean, vectors)
    sign = np.where(along[:, -1] < 0, -1.0, 1.0)
    top = vectors[:, :, -1] * sign[:, None]
    energy = np.trace(moments.gram, axis1=1, axis2=2)

    live = energy > 0
    groups = (top * live[:, None]).reshape(n_kv_heads, -1, size)
    filters = groups.mean(axis=1)
    length = np.linalg.norm(filters, axis=-1)
    dead = ~live.reshape(n_kv_heads, -1).all(axis=1)
    degenerate = tuple(int(h) for h in np.flatnonzero((length < 1e-3) | dead))
    first = top.reshape(n_kv_heads, -1, size)[:, 0]
    filters = np.where(length[:, None] < 1e-3, first, filters)
    filters /= np.linalg.norm(filters, axis=-1, keepdims=True)

    others = np.abs(along[:, :-1]).mean(axis=1) if size > 1 else np.zeros(heads)
    return Drift(
        q_filters=filters,
        query_mean=mean,
        explained_energy=values[:, -1] / np.where(live, energy, 1),
        mean_projection=along[:, -1] * sign,
        other_projection=others,
        degenerate=degenerate,
    )
