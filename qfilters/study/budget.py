"""Do all arms keep equally much, and does none of them drift? What a comparison rests on.

A cache that reported rows kept instead of tokens seen would rotate later tokens to wrong positions,
and one that kept more rows would win for that. Survivors keep the rotation they were stored with.
"""

import copy
from collections.abc import Sequence
from typing import ClassVar

import mlx.core as mx
import numpy as np
from pydantic import BaseModel

from ..arms import check_budget
from ..errors import UsageError
from ..feeding import feed
from ..fields import Methods, Positive, Rows
from ..future import future_attention
from ..methods import METHODS
from ..plan import evicting_layers, make_model_cache
from ..platform import default_prefill_step_size
from ..prompt_cache import make_prompt_cache
from ..session import Session, check_methods
from .base import EvictingStudyConfig


class Case(BaseModel, frozen=True, extra="forbid"):
    """Tokens of the prompt, tokens fed one by one after it, rows kept."""

    prefill: Positive
    decode: Rows
    budget: Positive


class BudgetConfig(EvictingStudyConfig):
    """One text is fed to every method in every case."""

    command = "evidence/budget"

    num_samples: ClassVar[int] = 1
    sequence_length: Positive = 1280
    method: Methods = ",".join(METHODS)
    cases: tuple[Case, ...] = (
        Case(prefill=1272, decode=0, budget=512),
        Case(prefill=200, decode=120, budget=64),
    )

    def check(self) -> None:
        """Every case needs text and room."""
        for case in self.cases:
            if case.prefill + case.decode > self.sequence_length:
                raise UsageError(f"{case} needs more than {self.sequence_length} tokens")
            check_budget(case.budget, self.sinks, self.recent)


def measure_budget(session: Session, rows: Sequence[Sequence[int]]) -> list[dict]:
    """One row per case and method.

    `offset`: tokens the caches say they saw; `kept_least`, `kept_most`, `kept_mean`: rows per KV
    head, over layers. `offset_error`: largest difference, over layers and calls, between the offset
    a cache reports, to which the model rotates the next token, and the tokens it was fed before.
    What rotation the stored keys really have is checked by the other two: `keys_changed` of
    `keys_checked`, rows whose bits are not those of the key that came in at their position, and
    `dense_difference`, largest difference of a key of the first layer to that of a dense run, over
    the largest key.
    """
    made = []
    for case in session.settings.cases:
        tokens = rows[0][: case.prefill + case.decode]
        dense = make_model_cache(session.model)
        feed(session.model, dense, tokens, default_prefill_step_size())
        first = evicting_layers(session.model)[0].index
        for method in check_methods(session.settings.method):
            found = _run(session, method, case, tokens, dense[first].keys)
            made.append({"method": str(method), **case.model_dump(), **found})
            session.watch(f"{method} at {case.budget}", 1)(1, 1)
    return made


def _run(session, method, case, tokens, dense) -> dict:
    s, model = session.settings, session.model
    caches = make_prompt_cache(
        model,
        method,
        case.budget,
        s.sinks,
        s.recent,
        session.filters if method.needs_filters else None,
        future_attention(model, tokens) if method.needs_future else None,
    )
    ours = [caches[plan.index] for plan in evicting_layers(model)]
    given = [_listen(cache) for cache in ours]
    feed(model, caches, tokens[: case.prefill], default_prefill_step_size())
    feed(model, caches, tokens[case.prefill :], 1)
    kept = [cache.positions.shape[2] for cache in ours]
    offsets = {cache.offset for cache in ours}
    first, at = ours[0], ours[0].positions[..., None]
    apart = mx.abs(_live(first) - mx.take_along_axis(dense, at, axis=2)).max()
    pairs = list(zip(ours, given, strict=True))
    return {
        "tokens": len(tokens),
        "offset": offsets.pop() if len(offsets) == 1 else -1,
        "kept_least": min(kept),
        "kept_most": max(kept),
        "kept_mean": sum(kept) / len(kept),
        "offset_error": max(_offset_error(calls) for _, calls in pairs),
        "keys_changed": sum(_changed(cache, calls) for cache, calls in pairs),
        "keys_checked": sum(cache.positions.size for cache in ours),
        "dense_difference": float(apart / mx.abs(dense).max()),
        "n_layers": len(ours),
    }


def _offset_error(calls) -> int:
    """Largest distance of a call's offset from the tokens that came before it."""
    seen = np.cumsum([0] + [keys.shape[2] for _, keys in calls])[:-1]
    return int(np.abs(seen - [offset for offset, _ in calls]).max())


def _changed(cache, calls) -> int:
    """Live rows whose bits are not those of the key that came in at their position."""
    came = mx.concatenate([keys for _, keys in calls], axis=2)
    came = mx.take_along_axis(came, cache.positions[..., None], axis=2)
    return int((_live(cache).view(mx.uint8) != came.view(mx.uint8)).any(axis=-1).sum())


def _listen(cache) -> list[tuple[int, mx.array]]:
    """(offset before the call, keys) of every call from now on."""
    calls, inner = [], cache.update_and_fetch

    def update_and_fetch(keys, values):
        calls.append((cache.offset, keys))
        return inner(keys, values)

    cache.update_and_fetch = update_and_fetch
    return calls


def _live(cache) -> mx.array:
    """Keys of the live rows in temporal order: what a chunk of two would attend to, but for it."""
    twin = copy.copy(cache)
    del twin.update_and_fetch
    twin = copy.deepcopy(twin)
    keys, values = (mx.zeros((1, x.shape[1], 2, x.shape[3]), x.dtype) for x in cache.state[0][:2])
    return twin.update_and_fetch(keys, values)[0][:, :, :-2]
