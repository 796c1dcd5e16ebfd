"""What a method is: a frozen set of hyper-parameters and a score. Higher score = keep, always."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

import mlx.core as mx

from ..errors import UsageError
from ..kernels import project


@dataclass(frozen=True)
class Layer:
    """What a method may know of the layer it scores. Shared by copies of a cache, never copied.

    Attributes:
        index: place in the model's cache list.
        n_kv_heads, head_dim: sizes of the cached keys `[B, H_kv, S, D]`.
        n_heads: query heads, None where attention cannot be observed.
        q_filters: float32 `[H_kv, D]` or None.
        query_mean: float32 `[H, D]` or None.
        rope: the layer's RoPE module or None.
        future: float32 `[H_kv, N]`, attention each position of the text at hand receives from later
            ones, or None.
        max_position: trained context in tokens, or None.
        project: projects keys on directions, as `kernels.project`, or fused.
    """

    index: int
    n_kv_heads: int
    head_dim: int
    n_heads: int | None = None
    q_filters: mx.array | None = None
    query_mean: mx.array | None = None
    rope: object | None = None
    future: mx.array | None = None
    max_position: int | None = None
    project: Callable[[mx.array, mx.array], mx.array] = project

    def __deepcopy__(self, memo):
        return self

    @property
    def filter_bytes(self) -> int:
        """Bytes of the filters the layer holds."""
        return sum(x.nbytes for x in (self.q_filters, self.query_mean) if x is not None)


@dataclass(frozen=True)
class Method:
    """Base of all methods. Subclasses are frozen dataclasses whose fields are the options.

    Class attributes: `family`, `paper`, `cost` per step; `needs_filters`, the array of `Filters`
    that the score reads; `needs_queries`, `needs_future`, `needs_rope`: true queries, the attention
    later tokens pay, the layer's RoPE module; `max_sinks`, the most sinks that make sense;
    `window`, the last rows that are always kept; `learn_after`, keys to see before `learn` is
    called, `learns_always`, at every call.
    """

    name: ClassVar[str]
    family: ClassVar[str]
    paper: ClassVar[str]
    cost: ClassVar[str]
    path_independent: ClassVar[bool] = True
    needs_filters: ClassVar[str | None] = None
    evicts: ClassVar[bool] = True
    max_sinks: ClassVar[int | None] = None
    learn_after: ClassVar[int | None] = None
    learns_always: ClassVar[bool] = False
    needs_queries: ClassVar[bool] = False
    needs_future: ClassVar[bool] = False
    needs_rope: ClassVar[bool] = False
    window: ClassVar[int] = 0

    def score(self, keys: mx.array, positions: mx.array, layer: Layer, learned) -> mx.array:
        """Score new rows once, at insertion.

        Args:
            keys: `[B, H_kv, T, D]`, as they are cached.
            positions: int32 `[T]`, their true positions.
            layer: what is known of the layer.
            learned: what `learn` returned; None for methods that do not learn.

        Returns:
            float32 `[B, H_kv, T]`, higher = keep.
        """
        raise NotImplementedError

    def directions(self, layer: Layer, learned) -> mx.array | None:
        """Where the score is `layer.project(keys, directions)` and no more: the directions.

        A fused kernel then scores a decoded row and finds the next victim in one go.
        """
        return None

    def learn(self, keys: mx.array, learned: mx.array | None) -> mx.array:
        """Learn from keys, before they are scored.

        With `learn_after`: called once, with all keys seen so far. With `learns_always`: called
        with the new keys of every call and what was learned so far.
        """
        raise NotImplementedError

    def sinks_of(self, asked: int) -> int:
        """Sinks in force: those asked for, at most `max_sinks`."""
        return asked if self.max_sinks is None else min(asked, self.max_sinks)

    def __str__(self) -> str:
        """The name, with the options that are not at their defaults."""
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        options = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in changed)
        return f"{self.name}({options})" if options else self.name


def require(condition: bool, name: str, value, wanted: str) -> None:
    """Refuse an option value with one line."""
    if not condition:
        raise UsageError(f"option {name}={value!r} is not valid: {wanted}")
