"""Perplexity while the cache is held under a budget, as in deployment (mode `stream`)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .errors import QFiltersError, UsageError
from .future import future_attention
from .prompt_cache import account, as_method, make_prompt_cache


@dataclass
class PplResult:
    """Negative log-likelihoods of one arm.

    Attributes:
        nll: total nats per sequence, in the order of the rows.
        n_tokens: predicted tokens per sequence.
        accounts: `prompt_cache.account` at the end of each sequence.
        seconds: wall time.
    """

    nll: list[float] = field(default_factory=list)
    n_tokens: list[int] = field(default_factory=list)
    accounts: list[dict] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def perplexity(self) -> float:
        """exp(total nats / total predicted tokens)."""
        return float(np.exp(sum(self.nll) / sum(self.n_tokens)))


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
    if step_size < 1:
        raise UsageError(f"step_size must be at least 1, not {step_size}")
    if not rows or min(map(len, rows)) < 2:
        raise UsageError("perplexity needs rows of at least 2 tokens")
    result, start = PplResult(), time.perf_counter()
    total, done = sum(len(row) - 1 for row in rows), 0
    for row in rows:
        caches = _caches(model, row, cache_options)
        tokens = mx.array(row)
        result.nll.append(0.0)
        result.n_tokens.append(0)
        for first in range(0, len(row) - 1, step_size):
            last = min(first + step_size, len(row) - 1)
            logits = model(tokens[None, first:last], cache=caches).astype(mx.float32)
            targets = tokens[None, first + 1 : last + 1]
            nll = nn.losses.cross_entropy(logits, targets, reduction="none")
            mx.eval(nll, [c.state for c in caches])
            result.nll[-1] += float(np.array(nll, dtype=np.float64).sum())
            result.n_tokens[-1] += last - first
            done += last - first
            if progress:
                progress(done, total, result.perplexity)
        if not np.isfinite(result.nll[-1]):
            raise QFiltersError(f"sequence {len(result.nll)}: the model's logits are not finite")
        result.accounts.append(account(caches))
    result.seconds = time.perf_counter() - start
    return result


def _caches(model, row, options):
    method = as_method(options.get("method", "qfilters"))
    if not method.needs_future:
        return make_prompt_cache(model, **options)
    return make_prompt_cache(model, **options, future=future_attention(model, row))
