"""Does it matter how a prompt is cut? The same context in one chunk and in smaller ones.

For given keys and values a fixed score keeps the same rows however they arrive; on a model deeper
layers differ, because later chunks attend to what earlier ones left. The key-SVD fallback learns
its direction from the chunk that completes its sample, so there even the first is not promised.
"""

import time
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..arms import check_budget
from ..errors import UsageError
from ..feeding import feed
from ..fields import Lengths, Methods, Positive, Samples
from ..methods import Method
from ..plan import evicting_layers, make_model_cache
from ..ppl import predict
from ..prompt_cache import make_prompt_cache
from ..session import Session, check_methods
from ..similarity import cosines
from ..stats import bootstrap_perplexity
from .base import EvictingStudyConfig


class ChunksConfig(EvictingStudyConfig):
    """Each text is a context and, as its end, `later` tokens whose perplexity is taken."""

    command = "evidence/chunks"

    num_samples: Samples = 2
    sequence_length: Positive = 1280
    later: Positive = 256
    method: Methods = "qfilters,qfilters_keysvd"
    budget: Positive = 128
    chunk: Lengths = (512, 256, 64)
    step_size: Positive = 32

    def check(self) -> None:
        """Methods that watch attention have no kept set of a stream."""
        if self.later < 2:
            raise UsageError(f"later is {self.later}: of 2 tokens the first predicts the second")
        if self.sequence_length <= self.later:
            raise UsageError(f"{self.later} later tokens of {self.sequence_length}: no context")
        for method in check_methods(self.method):
            if method.needs_queries or method.needs_future or not method.evicts:
                raise UsageError(f"method {method} is not a function of the stream of keys")
            check_budget(self.budget, self.sinks, self.recent)


def measure_chunks(session: Session, rows: Sequence[Sequence[int]]) -> list[dict]:
    """One row per method and chunk, the whole context first.

    `seconds`, `seconds_least`, `seconds_most`: prefill, median and ends over texts, after one that
    does not count; every text begins with the next chunk, so that none is always first.
    `identical_layers` of `n_layers`: kept sets equal to
    those of one chunk in every text, each layer fed the keys and values of the dense run.
    `overlap_first`, `overlap_mean`, `overlap_least`, `overlap_by_layer`: share of rows kept in
    common with one chunk on the model, mean over heads and texts; `direction_cosine`: of what the
    method learned to what it learned from one chunk, same keys, mean over heads, and of its size,
    `direction_abs_cosine`, null where it learns nothing. `perplexity` of the later tokens, under
    the same budget, with its interval.
    """
    s = session.settings
    streams = [_record(session.model, row[: -s.later]) for row in rows]
    made, sizes = [], (s.sequence_length - s.later, *s.chunk)
    for method in check_methods(s.method):
        done: dict[int, list] = {chunk: [] for chunk in sizes}
        feed(session.model, _caches(session, method)[0], rows[0][: -s.later], min(sizes))
        for turn, pair in enumerate(zip(rows, streams, strict=True)):
            first = turn % len(sizes)
            for chunk in sizes[first:] + sizes[:first]:
                done[chunk].append(_run(session, method, *pair, chunk))
        for chunk, runs in done.items():
            made.append(_row(session, method, chunk, runs, done[sizes[0]]))
            session.watch(f"{method} in chunks of {chunk}", 1)(1, 1, made[-1]["perplexity"])
    return made


def _record(model, context) -> list:
    """Keys and values of every layer that can evict, from one dense chunk."""
    caches = make_model_cache(model)
    feed(model, caches, context, len(context))
    held = [caches[plan.index] for plan in evicting_layers(model)]
    # The buffers of a plain cache are longer than what it holds.
    return [[x[:, :, : cache.offset] for x in (cache.keys, cache.values)] for cache in held]


def _caches(session: Session, method: Method) -> tuple[list, list]:
    """All caches of the model, and those of them that evict."""
    s, model = session.settings, session.model
    filters = session.filters if method.needs_filters else None
    sizes = (s.budget, s.sinks, s.recent)
    caches = make_prompt_cache(model, method, *sizes, filters)
    return caches, [caches[plan.index] for plan in evicting_layers(model)]


def _run(session, method, row, stream, chunk) -> dict:
    s, model = session.settings, session.model
    caches, ours = _caches(session, method)
    start = time.perf_counter()
    feed(model, caches, row[: -s.later], chunk)
    found = {"seconds": time.perf_counter() - start, "kept": [np.array(c.positions) for c in ours]}
    rest = predict(model, caches, mx.array(row[-s.later :])[None], s.step_size)
    found["nll"] = float(sum(losses.sum() for losses in rest))
    _, fed = _caches(session, method)
    for cache, (keys, values) in zip(fed, stream, strict=True):
        for start in range(0, keys.shape[2], chunk):
            cache.update_and_fetch(*(x[:, :, start : start + chunk] for x in (keys, values)))
            mx.eval(cache.state)
    found["stream"] = [np.array(cache.positions) for cache in fed]
    learned = [cache.state[2] for cache in fed]
    found["learned"] = None if learned[0] is None else np.stack([np.array(x)[0] for x in learned])
    return found


def _row(session, method, chunk, done, whole) -> dict:
    s, pairs = session.settings, list(zip(done, whole, strict=True))
    overlaps = np.mean([list(map(_common, a["kept"], b["kept"])) for a, b in pairs], axis=0)
    same = np.all([list(map(np.array_equal, a["stream"], b["stream"])) for a, b in pairs], axis=0)
    learned = [(a["learned"], b["learned"]) for a, b in pairs if a["learned"] is not None]
    angles = [cosines(*both) for both in learned]
    nll, n = [run["nll"] for run in done], [s.later - 1] * len(done)
    seconds = [run["seconds"] for run in done]
    low, high = bootstrap_perplexity(nll, n)
    return {
        "method": str(method),
        "budget": s.budget,
        "chunk": chunk,
        "one_shot": chunk == s.sequence_length - s.later,
        "seconds": float(np.median(seconds)),
        "seconds_least": min(seconds),
        "seconds_most": max(seconds),
        "identical_layers": int(same.sum()),
        "n_layers": len(overlaps),
        "overlap_first": float(overlaps[0]),
        "overlap_mean": float(overlaps.mean()),
        "overlap_least": float(overlaps.min()),
        "direction_cosine": _mean(angles, "mean_cosine"),
        "direction_abs_cosine": _mean(angles, "mean_abs_cosine"),
        "perplexity": float(np.exp(sum(nll) / sum(n))),
        "low": low,
        "high": high,
        "n_tokens": sum(n),
        "n_sequences": len(done),
        "nll_sums": nll,
        "overlap_by_layer": overlaps.tolist(),
    }


def _common(a: np.ndarray, b: np.ndarray) -> float:
    """Share of the rows of `a` `[1, H, K]` that are in `b`, mean over heads."""
    return float(np.mean([np.isin(x, y).mean() for x, y in zip(a[0], b[0], strict=True)]))


def _mean(angles: list[dict], name: str) -> float | None:
    return float(np.mean([found[name] for found in angles])) if angles else None
