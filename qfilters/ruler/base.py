"""What a RULER task is, and how a sample gets its length. Knows no task.

A task draws what is asked once, from the sample's own generator; then only the amount of filler is
searched for. So neither the tokenizer nor the other samples can change what a sample asks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..errors import UsageError

VERSION = 1
"""Part of every sample's seed: goes up when the same seed no longer gives the same samples."""

FULL = "full"
"""Size of an arm that keeps everything."""

Count = Callable[[str, str, str], int]
"""(context, question, answer prefix) -> tokens of the whole prompt, template and BOS included."""


class LengthError(UsageError):
    """A sample that does not fit its length, however little filler it has."""


@dataclass(frozen=True)
class QASource:
    """Real questions and documents for one of the QA tasks.

    Attributes:
        name: `squad` or `hotpotqa`.
        task: `qa_1` or `qa_2`.
        questions: each with the documents that answer it and those that must stand beside them.
        documents: all documents, to fill up with.
    """

    name: str
    task: str
    questions: tuple[QAQuestion, ...]
    documents: tuple[str, ...]


class QAQuestion(NamedTuple):
    """A question, its accepted answers, its gold documents, and documents hard to tell from them.

    article: what it comes from; questions of one article are not independent.
    """

    question: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...]
    article: str


@dataclass(frozen=True)
class Options:
    """Choices that change the samples of some tasks.

    Attributes:
        haystack: text for the tasks that hide needles in prose; None means the built-in prose.
        haystack_name: `synthetic`, `file` or `essays`; recorded with every sample.
        depths: of the first needle asked for, in percent; sample i takes number i modulo their
            number. None draws them. Needle tasks only.
        chains: of variables in vt; the first is asked for.
        max_tokens: of an answer, instead of the task's own limit.
        answer_prefix: begin the reply for the model.
        qa: real documents for qa_1 and qa_2 instead of invented ones.
    """

    haystack: str | None = None
    haystack_name: Literal["synthetic", "file", "essays"] = "synthetic"
    depths: tuple[float, ...] | None = None
    chains: int = 1
    max_tokens: int | None = None
    answer_prefix: bool = True
    qa: tuple[QASource, ...] = ()

    def __post_init__(self):
        if (self.haystack is None) != (self.haystack_name == "synthetic"):
            raise UsageError(
                f"haystack {self.haystack_name!r} with {'no' if self.haystack is None else 'a'} "
                "text: a file or essays need one, the synthetic haystack has its own"
            )
        if self.depths is not None and not self.depths:
            raise UsageError("no depth given: name some between 0 and 100")
        if wrong := [d for d in self.depths or () if not 0 <= d <= 100]:
            raise UsageError(f"depth {wrong[0]:g} is not between 0 and 100 percent")
        for name, value in (("chains", self.chains), ("max_tokens", self.max_tokens)):
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: give 1 or more")


@dataclass(frozen=True)
class Sample:
    """One prompt with its answers. The prompt is context + question, then the answer prefix.

    Attributes:
        id: `task/length/seed/index`.
        length: tokens that prompt and answer may take together.
        answers: strings to be found in the reply: all of them, in QA any.
        n_tokens: of the prompt, as the counter counts.
        depths: where each gold piece begins, 0 to 1 in characters of the context, in the order of
            the answers; none where the evidence is spread everywhere.
        source: what `haystack` and `qa` were made from.
        haystack_sha: SHA-256 of the user's haystack.
    """

    id: str
    task: str
    length: int
    seed: int
    index: int
    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    max_new_tokens: int
    n_tokens: int
    depths: tuple[float, ...]
    source: dict[str, str | None]
    haystack_sha: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def slack(self) -> int:
        """Tokens left of the length."""
        return self.length - self.n_tokens - self.max_new_tokens


@dataclass(frozen=True)
class Spec:
    """Which sample: all that its random numbers depend on."""

    task: str
    length: int
    seed: int
    index: int

    @property
    def id(self) -> str:
        """Name of the sample."""
        return f"{self.task}/{self.length}/{self.seed}/{self.index}"

    def rng(self, stream: str = "") -> Random:
        """A generator of the sample's own; a string seed is hashed alike on every machine."""
        return Random(f"{VERSION}/{self.id}{stream and '/'}{stream}")


class Parts(NamedTuple):
    """A sample's texts at one size; `gold` holds character offsets in the context."""

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    gold: tuple[int, ...] = ()
    meta: Mapping[str, Any] = MappingProxyType({})


class Plan(NamedTuple):
    """A drawn sample without its size: `render(k)` gives it with k >= `low` units of filler."""

    render: Callable[[int], Parts]
    low: int
    haystack: str | None = None
    qa: str | None = None
    haystack_sha: str | None = None


@dataclass(frozen=True)
class Task:
    """A task of the benchmark.

    Attributes:
        metric: `all`: share of the answers found; `part`: 1 if any is.
        minimum: smallest length that is accepted, in tokens.
        build: draws a sample; where it does not fit, the next plan is tried.
    """

    name: str
    family: Literal["retrieval", "tracing", "aggregation", "qa"]
    max_new_tokens: int
    metric: Literal["all", "part"]
    minimum: int
    build: Callable[[Spec, Options], Iterable[Plan]]


class Grow:
    """An endless stream of filler that is made when first needed: k + 1 units are k and one."""

    def __init__(self, stream: Iterable[Any]):
        self._stream: Iterator[Any] = iter(stream)
        self._made: list[Any] = []

    def take(self, k: int) -> list[Any]:
        """The first k units."""
        while len(self._made) < k:
            self._made.append(next(self._stream))
        return self._made[:k]


class Fit(NamedTuple):
    """How many units fit, and about how many tokens one takes."""

    units: int
    per_unit: float


def fit(tokens: Callable[[int], int], room: int, low: int, start: Fit | None = None) -> Fit:
    """The largest k >= low with tokens(k) <= room, if tokens(k) ascend strictly.

    Counts of merged tokens may dip; then it is some k that fits while k + 1 does not, or fills the
    room. It ends: while one side of the bracket is open, k moves away from the other by steps that
    grow, up to a limit; once both are known, the bracket gets smaller with every step.

    tokens: of the prompt with k units.
    start: the result for a similar sample.
    Raises LengthError when tokens(low) > room, and UsageError when the tokens do not grow.
    """
    fits: int | None = None
    over: int | None = None
    last: tuple[int, int] | None = None
    most = 8 * room + low + 1000
    if start is None:
        start = Fit(low, max((tokens(low + 16) - tokens(low)) / 16, 0.1))
    k, slope = max(start.units, low), start.per_unit
    for step in itertools.count():
        used = tokens(k)
        if used <= room:
            fits = k
        else:
            over = k
        if over == low:
            raise LengthError(f"{used} tokens without any filler, but there is room for {room}")
        if fits is not None and (used == room or over == fits + 1):
            return Fit(fits, slope)
        if last is not None and abs(k - last[0]) >= 16 and used != last[1]:
            slope = max((used - last[1]) / (k - last[0]), 0.1)
        last = k, used
        # Along the slope, by one unit at least: that closes the bracket from either side.
        stride = math.floor((room - used) / slope)
        k += max(1, stride) if used <= room else min(-1, stride)
        if over is None:
            if last[0] >= most:
                raise UsageError(
                    f"the tokenizer finds only {used} tokens in {last[0]} units of text"
                )
            k = min(k + step, most)
        elif fits is None:
            k = max(low, k - step)
        elif not fits < k < over or step > 12:
            k = (fits + over) // 2
    raise AssertionError("unreachable")
