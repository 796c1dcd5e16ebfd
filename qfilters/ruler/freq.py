"""Two counting tasks: the most common words of a list (cwe), and of a coded text (fwe)."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from random import Random

from .base import Grow, Options, Parts, Plan, Spec, Task
from .words import ADJECTIVES, NOUNS, POOL

ZETA_2 = math.pi**2 / 6
DOTS = "..."


def _build_cwe(spec: Spec, options: Options) -> Iterator[Plan]:
    rng = spec.rng()
    long = spec.length >= 4096
    often, seldom = (30, 3) if long else (6, 1)
    gold = rng.sample(POOL, 10)
    rest = [word for word in POOL if word not in set(gold)]
    shown = rng.sample(rest, 40 if long else 20)
    repeats = (10, 3) if long else (3, 1)
    listed = _numbered(_mix(rng, [(shown[:10], repeats[0]), (shown[10:], repeats[1])]))
    example = f"{_CWE}\n{listed}\n{_CWE_ASK} {_CWE_PREFIX} {_numbered(shown[:10])}\n\n"
    others = Grow(_more_words(spec.rng("filler"), rest))

    def render(k: int) -> Parts:
        words = _mix(spec.rng("order"), [(gold, often), (others.take(k), seldom)])
        context = f"{example}{_CWE}\n{_numbered(words)}\n"
        return Parts(context, _CWE_ASK, _CWE_PREFIX, tuple(gold))

    yield Plan(render, low=1, haystack="list")


def _mix(rng: Random, groups: list[tuple[list[str], int]]) -> list[str]:
    words = [word for group, times in groups for word in group for _ in range(times)]
    rng.shuffle(words)
    return words


def _numbered(words: list[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))


def _more_words(rng: Random, rest: list[str]) -> Iterator[str]:
    """The rest of the pool in random order, then compounds of it, none twice."""
    yield from rng.sample(rest, len(rest))
    left = set(rest)
    first, second = ([w for w in words if w in left] for words in (ADJECTIVES, NOUNS))
    # Every pair once: a walk through all of them with a stride that shares no factor.
    total = len(first) * len(second)
    stride = next(s for s in iter(lambda: rng.randrange(1, total), 0) if math.gcd(s, total) == 1)
    for i in range(total):
        a, b = divmod(i * stride % total, len(second))
        yield f"{first[a]}-{second[b]}"


def _build_fwe(spec: Spec, options: Options) -> Iterator[Plan]:
    rng = spec.rng()
    size = (spec.length - 50) // 50
    words: dict[str, None] = {}
    while len(words) < size - 1:
        words["".join(rng.choices(string.ascii_lowercase, k=6))] = None
    ranked = [DOTS, *words]

    def render(k: int) -> Parts:
        counts = [math.floor(k / ZETA_2 / rank**2) for rank in range(1, size + 1)]
        text = [w for word, times in zip(ranked, counts, strict=True) for w in [word] * times]
        spec.rng("order").shuffle(text)
        return Parts(f"{_FWE}\n{' '.join(text)}\n", _FWE_ASK, _FWE_PREFIX, tuple(ranked[1:4]))

    # From 60 units on the ranks 2 to 5 differ in their counts.
    yield Plan(render, low=60, haystack="list")


_CWE = "This numbered list repeats some words more often than others. Remember which.\n"
_CWE_ASK = "\nWhich 10 words occur most often in the list above?"
_CWE_PREFIX = "The 10 words that occur most often in the list are:"

_FWE = f"This is a coded text. Count how often each coded word occurs; {DOTS} is not a word.\n"
_FWE_ASK = (
    f"\nWhich three coded words occur most often in the text above? Ignore {DOTS} and give only "
    "the three words, without an explanation."
)
_FWE_PREFIX = "The three coded words that occur most often are:"

CWE = Task("cwe", "aggregation", 120, "all", 900, _build_cwe)
FWE = Task("fwe", "aggregation", 50, "all", 600, _build_fwe)
