"""Perplexity while the cache is held under a budget, as in deployment (mode `stream`)."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .arms_cache import arm_of
from .batches import make_arms_cache, sort_arms
from .errors import QFiltersError, UsageError
from .filters import Filters
from .fork import Arm
from .future import future_attention
from .prompt_cache import account, as_method, make_prompt_cache


@dataclass
class PplResult:
    """Negative log-likelihoods of one arm.

    Attributes:
        nll: total nats per sequence, in the order of the rows.
        n_tokens: predicted tokens per sequence.
        accounts: `prompt_cache.account` at the end of each sequence.
        seconds: wall time; of arms that shared their passes, an equal share of it.
    """

    nll: list[float] = field(default_factory=list)
    n_tokens: list[int] = field(default_factory=list)
    accounts: list[dict] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def perplexity(self) -> float:
        """exp(total nats / total predicted tokens)."""
        return _perplexity(self.nll, self.n_tokens)


def _perplexity(nll, n_tokens) -> float:
    return float(np.exp(sum(nll) / sum(n_tokens)))


def evaluate_ppl(
    model,
    rows: list[list[int]],
    *,
    step_size: int = 32,
    progress: Callable[[int, int, float], None] | None = None,
    **cache_options,
) -> PplResult:
    """Perplexity of token rows under an eviction method.

    Each row starts with an empty cache and is fed in steps; a query sees the rows kept before its
    step and the tokens of its step up to itself, so `step_size` 1 is exact streaming. A row of N
    ids predicts N - 1 tokens, as `mlx_lm.perplexity` does.

    Args:
        model: an mlx-lm model.
        rows: token ids, each row at least 2 long.
        step_size: tokens per forward pass, the same for every method.
        progress: called with (tokens done, tokens in all, perplexity so far).
        cache_options: as `make_prompt_cache`: method, budget, sinks, recent, filters.

    Raises:
        UsageError: a row too short, or a bad step size.
        QFiltersError: the model's logits are not finite.
    """

    def caches_of(row):
        method = as_method(cache_options.get("method", "qfilters"))
        known = {"future": future_attention(model, row)} if method.needs_future else {}
        return make_prompt_cache(model, **cache_options, **known)

    def told(done, total, found):
        if progress:
            progress(done, total, found[0])

    return _run(model, rows, step_size, 1, caches_of, lambda caches: [account(caches)], told)[0]


def evaluate_arms(
    model,
    rows: list[list[int]],
    arms: list[Arm],
    *,
    step_size: int = 32,
    filters: Filters | None = None,
    progress: Callable[[int, int, list[float]], None] | None = None,
) -> list[PplResult]:
    """As `evaluate_ppl` for several arms that share every forward pass, a batch row for each.

    What arms keep and predict does not depend on the others, up to the rounding of products that
    are computed for all rows at once.

    Args:
        model: an mlx-lm model.
        rows: token ids, each row at least 2 long.
        arms: of one batch, as `batches.arm_batches` puts them together.
        step_size: tokens per forward pass.
        filters: for the projection methods.
        progress: called with (tokens done, tokens in all, perplexities so far).

    Returns:
        One result per arm; its `seconds` are those of the batch, divided by the arms.

    Raises:
        UsageError: arms that do not fit together, or as `evaluate_ppl`.
        QFiltersError: the model's logits are not finite.
    """
    ordered = sort_arms(arms)

    def caches_of(row):
        known = None
        if any(arm.method.needs_future for arm in arms):
            known = future_attention(model, row)
        return make_arms_cache(model, ordered, filters, known)

    def accounts(caches):
        own = [[arm_of(cache, b) for cache in caches] for b in range(len(ordered))]
        return [account(those) for those in own]

    def told(done, total, found):
        if progress:
            progress(done, total, [found[ordered.index(arm)] for arm in arms])

    found = _run(model, rows, step_size, len(arms), caches_of, accounts, told)
    return [found[ordered.index(arm)] for arm in arms]


def predict(model, caches: list, tokens: mx.array, step_size: int) -> Iterator[np.ndarray]:
    """Feed token ids `[B, N]`, `step_size` of each row at a time.

    The cross entropy is mlx-lm's: on a CPU its float32 sum over the vocabulary loses 1e-4 nat.

    Yields:
        Of every step the NLL (nat) of the tokens predicted in it, `[B, n]` float64; all tokens of a
        row but the first are predicted once.
    """
    for first in range(0, tokens.shape[1] - 1, step_size):
        last = min(first + step_size, tokens.shape[1] - 1)
        logits = model(tokens[:, first:last], cache=caches).astype(mx.float32)
        targets = tokens[:, first + 1 : last + 1]
        losses = nn.losses.cross_entropy(logits, targets, reduction="none")
        mx.eval(losses, [cache.state for cache in caches])
        yield np.array(losses, dtype=np.float64)


def _run(model, rows, step_size, count, caches_of, accounts, told) -> list[PplResult]:
    """Feed all rows to batches of `count` equal rows; a result per batch row."""
    if step_size < 1:
        raise UsageError(f"step_size must be at least 1, not {step_size}")
    if not rows or min(map(len, rows)) < 2:
        raise UsageError("perplexity needs rows of at least 2 tokens")
    start = time.perf_counter()
    nll, n_tokens, ends = np.zeros((len(rows), count)), [0] * len(rows), []
    total, done = sum(len(row) - 1 for row in rows), 0
    for i, row in enumerate(rows):
        caches = caches_of(row)
        tokens = mx.broadcast_to(mx.array(row), (count, len(row)))
        for losses in predict(model, caches, tokens, step_size):
            nll[i] += losses.sum(axis=1)
            n_tokens[i] += losses.shape[1]
            done += losses.shape[1]
            told(done, total, [_perplexity(x, n_tokens) for x in nll.T])
        if not np.isfinite(nll[i]).all():
            raise QFiltersError(f"sequence {i + 1}: the model's logits are not finite")
        ends.append(accounts(caches))
    seconds = (time.perf_counter() - start) / count
    return [
        PplResult(nll[:, b].tolist(), n_tokens, [end[b] for end in ends], seconds)
        for b in range(count)
    ]
