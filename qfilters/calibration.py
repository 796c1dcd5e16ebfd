"""Calibration: run token rows through a model, watch the queries, write down their drift."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import get_total_parameters

from .errors import ModelError, QFiltersError, QFiltersWarning, UsageError
from .estimator import QueryMoments, chunk_moments, drift
from .filters import SCHEMA_VERSION, Filters
from .plan import evicting_layers, fingerprint, make_model_cache
from .platform import default_prefill_step_size, version
from .tap import tapped


class QueryStats(KVCache):
    """A plain cache that adds up the moments of the queries of its layer."""

    def __init__(self, moments: QueryMoments):
        super().__init__()
        self.moments = moments
        self.pending: tuple[mx.array, mx.array] | None = None
        self._pending_count = 0

    def observe(self, queries, keys, values, *, scale, mask, sinks):
        """Start the moments of this chunk; `flush` adds them up."""
        self.pending = chunk_moments(queries)
        self._pending_count = queries.shape[0] * queries.shape[2]

    def flush(self) -> None:
        """Move the chunk's moments to the host.

        Raises:
            ModelError: the attention call of this chunk was not seen.
        """
        if self.pending is None:
            raise ModelError("a layer's attention call was not seen: its queries are not known")
        gram, total = (np.array(x, dtype=np.float64) for x in self.pending)
        self.moments.add(gram, total, self._pending_count)
        self.pending = None


def calibrate(
    model,
    tokenizer,
    rows: list,
    *,
    model_id: str = "unnamed",
    corpus: dict | None = None,
    step_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Filters:
    """Find one Q-Filter per KV head of every layer that can evict.

    Args:
        model: an mlx-lm model.
        tokenizer: tokenises rows that are given as text; may be None when none is.
        rows: token-id lists (or texts), each run from position 0 as a sequence of its own.
        model_id: written into the artifact.
        corpus: `name`, `sha256`, `seed` of the source; by default the hash of the rows.
        step_size: tokens per forward pass; None means the platform's prefill step.
        progress: called with (rows done, rows in all).

    Returns:
        The filters, ready to `save` or to use.

    Raises:
        UsageError: no rows, an empty one, or text without a tokenizer.
        ModelError: no layer has queries that can be observed, or their sizes differ by layer.
        QFiltersError: the model computed queries that are not finite.
    """
    rows = [_ids(tokenizer, row) for row in rows]
    if not rows or not all(rows):
        raise UsageError("calibration needs at least one row of at least one token")
    plans = evicting_layers(model, need_queries=True, what="calibration")
    sizes = {(p.n_heads, p.n_kv_heads, p.head_dim) for p in plans}
    if len(sizes) > 1:
        raise ModelError(f"layers with different heads cannot share an artifact: {sorted(sizes)}")
    step = step_size or default_prefill_step_size()
    moments = {p.index: QueryMoments(p.n_heads, p.head_dim) for p in plans}
    with tapped(model):
        for done, row in enumerate(rows, start=1):
            for _ in add_queries(model, row, moments, step):
                pass
            if progress:
                progress(done, len(rows))
    metadata = {
        "schema_version": SCHEMA_VERSION,
        "model": model_id,
        "model_parameters": get_total_parameters(model),
        "fingerprint": fingerprint(model),
        "corpus": corpus or {"name": "rows", "sha256": _hash(rows)},
        "tokens": sum(map(len, rows)),
        "sequence_length": max(map(len, rows)),
        "dtype": str(_dtype(model)).removeprefix("mlx.core."),
        "sign_rule": "sgn(v1 . sum of queries), sgn(0) = +1; score = k . filter",
        "versions": {name: version(name) for name in ("qfilters-mlx", "mlx", "mlx-lm")},
    }
    return _assemble(plans, moments, metadata)


def add_queries(
    model,
    row: Sequence[int],
    moments: Mapping[int, QueryMoments],
    step_size: int,
    stops: Iterable[int] = (),
) -> Iterator[int]:
    """Feed a row from position 0 and add its queries to `moments`, under `tapped`.

    Args:
        model: an mlx-lm model.
        row: token ids.
        moments: layer -> what its queries are added to.
        step_size: tokens per forward pass.
        stops: token counts at which a pass ends too.

    Yields:
        The tokens whose queries are in, after every pass.

    Raises:
        ModelError: an attention call was not seen.
        QFiltersError: the model computed queries that are not finite.
    """
    caches = make_model_cache(model)
    watched = [QueryStats(seen) for seen in moments.values()]
    for index, cache in zip(moments, watched, strict=True):
        caches[index] = cache
    tokens, start = mx.array(row)[None], 0
    for stop in sorted({*range(step_size, len(row), step_size), *stops, len(row)}):
        # The logits are never evaluated, so the output head costs nothing.
        model(tokens[:, start:stop], cache=caches)
        mx.eval([c.pending for c in watched], [c.state for c in caches])
        for cache in watched:
            cache.flush()
        for index, seen in moments.items():
            check_finite(index, seen)
        start = stop
        yield stop


def check_finite(layer: int, moments: QueryMoments) -> None:
    """QFiltersError unless all queries of the layer are finite."""
    if not np.isfinite(moments.gram).all():
        raise QFiltersError(f"layer {layer} computed queries that are not finite: try --dtype")


def _ids(tokenizer, row) -> list[int]:
    if isinstance(row, str):
        if tokenizer is None:
            raise UsageError("a calibration row is text: give a tokenizer, or rows of token ids")
        row = tokenizer.encode(row, add_special_tokens=False)
    return [int(token) for token in row]


def _assemble(plans, moments, metadata) -> Filters:
    found = [drift(moments[p.index], p.n_kv_heads) for p in plans]
    degenerate = [[p.index, h] for p, d in zip(plans, found, strict=True) for h in d.degenerate]
    if degenerate:
        metadata["degenerate_heads"] = degenerate
        text = f"no drift found in (layer, KV head) {degenerate}: their filters rank at random"
        warnings.warn(text, QFiltersWarning, stacklevel=3)

    def stack(name):
        return np.stack([getattr(d, name) for d in found]).astype(np.float32)

    return Filters(
        q_filters=stack("q_filters"),
        layer_index=np.array([p.index for p in plans], dtype=np.int32),
        query_mean=stack("query_mean"),
        explained_energy=stack("explained_energy"),
        mean_projection=stack("mean_projection"),
        other_projection=stack("other_projection"),
        metadata=metadata,
    )


def _hash(rows) -> str:
    return hashlib.sha256(str(rows).encode()).hexdigest()


def _dtype(model):
    from mlx.utils import tree_flatten

    kinds = [x.dtype for _, x in tree_flatten(model.parameters())]
    return next(k for k in kinds if mx.issubdtype(k, mx.floating))
