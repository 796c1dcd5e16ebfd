"""Needles in a haystack, eight variants: catalogue numbers of things, hidden in other text."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal
from uuid import UUID

from .base import Grow, Options, Parts, Plan, Spec, Task
from .prose import NOISE, Essay, insert, merge, prose, sentences
from .words import ADJECTIVES, NOUNS

NOUN = {"number": "catalogue number", "uuid": "catalogue id"}


@dataclass(frozen=True)
class Variant:
    """What a needle task hides, and how much of it it asks for."""

    name: str
    haystack: Literal["noise", "needles", "essay"]
    key: Literal["words", "uuid"] = "words"
    value: Literal["number", "uuid"] = "number"
    keys: int = 1
    asked: int = 1
    values: int = 1


VARIANTS = (
    Variant("niah_single_1", "noise"),
    Variant("niah_single_2", "essay"),
    Variant("niah_single_3", "essay", value="uuid"),
    Variant("niah_multikey_1", "essay", keys=4),
    Variant("niah_multikey_2", "needles"),
    Variant("niah_multikey_3", "needles", key="uuid", value="uuid"),
    Variant("niah_multivalue", "essay", values=4),
    Variant("niah_multiquery", "essay", keys=4, asked=4),
)


def _build(variant: Variant, spec: Spec, options: Options) -> Iterator[Plan]:
    rng = spec.rng()
    text = options.haystack if variant.haystack == "essay" else None
    draw = _Draw(variant, taken=text or "")
    keys = [draw.key(rng) for _ in range(variant.keys)]
    pairs = [(key, draw.value(rng)) for key in keys for _ in range(variant.values)]
    depths = [rng.random() for _ in pairs]
    asked = pairs[: variant.asked * variant.values]
    if options.depths:
        depths[0] = options.depths[spec.index % len(options.depths)] / 100
    needles = [_needle(*pair, variant) for pair in pairs]
    placed = merge(([u], [needle]) for u, needle in zip(depths, needles, strict=True))
    opening = _opening(variant)
    question, prefix = _ask(keys[: variant.asked], variant)
    fill = _filler(variant, spec, text, draw)

    def render(k: int) -> Parts:
        context = f"{opening}{fill(k, placed)}\n"
        gold = tuple(context.index(needle) for needle in needles[: len(asked)])
        meta = {"keys": keys[: variant.asked]}
        return Parts(context, question, prefix, tuple(value for _, value in asked), gold, meta)

    haystack = options.haystack_name if variant.haystack == "essay" else variant.haystack
    yield Plan(render, 0, haystack, haystack_sha=None if text is None else _sha256(text))


class _Draw:
    """Keys and values, none of them twice and none of them in the haystack's own text."""

    def __init__(self, variant: Variant, taken: str):
        self.variant, self.taken = variant, taken
        self.seen: set[str] = set()

    def key(self, rng: Random) -> str:
        """A new key."""
        if self.variant.key == "uuid":
            return self._new(lambda: _uuid(rng))
        return self._new(lambda: f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}")

    def value(self, rng: Random) -> str:
        """A new value."""
        if self.variant.value == "uuid":
            return self._new(lambda: _uuid(rng))
        return self._new(lambda: str(rng.randrange(1_000_000, 10_000_000)))

    def needles(self, rng: Random) -> Iterator[str]:
        """Endless distractors."""
        while True:
            yield _needle(self.key(rng), self.value(rng), self.variant)

    def _new(self, make: Callable[[], str]) -> str:
        while (made := make()) in self.seen or made in self.taken:
            pass
        self.seen.add(made)
        return made


def _uuid(rng: Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


def _filler(
    variant: Variant, spec: Spec, text: str | None, draw: _Draw
) -> Callable[[int, list[tuple[float, str]]], str]:
    """How k units of filler and the placed needles become one text."""
    if variant.haystack == "noise":
        return lambda k, placed: "\n".join(insert([NOISE] * k, placed))
    if variant.haystack == "needles":
        others = Grow(draw.needles(spec.rng("filler")))
        return lambda k, placed: "\n".join(insert(others.take(k), placed))
    if text is None:
        return Essay(prose(spec.rng("filler"))).with_needles
    return Essay(itertools.cycle(sentences(text))).with_needles


@functools.lru_cache(maxsize=2)
def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _needle(key: str, value: str, variant: Variant) -> str:
    noun = NOUN[variant.value]
    if variant.values > 1:
        return f"One of the {noun}s of {key} is {value}."
    return f"The {noun} of {key} is {value}."


def _opening(variant: Variant) -> str:
    noun = NOUN[variant.value]
    if variant.keys * variant.values == 1 and variant.haystack != "needles":
        return (
            f"A {noun} is hidden in the text below. Remember it: a question about it follows the "
            "text.\n\n"
        )
    return (
        f"Some {noun}s are hidden in the text below. Remember them: a question about them follows "
        "the text.\n\n"
    )


def _ask(keys: list[str], variant: Variant) -> tuple[str, str]:
    """Question and answer prefix, in the singular when one value is asked for."""
    noun, many = NOUN[variant.value], variant.asked * variant.values > 1
    names = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    what = f"{noun}s of {names}" if many else f"{noun} of {names}"
    question = f"\nWhat {'are all the' if many else 'is the'} {what} mentioned in the text above?"
    return question, f"The {what} mentioned in the text above {'are' if many else 'is'}"


TASKS = tuple(
    # Two needles of ids take 150 tokens; with one there is nothing to tell apart.
    Task(
        v.name,
        "retrieval",
        128,
        "all",
        512 if v.key == "uuid" else 400,
        functools.partial(_build, v),
    )
    for v in VARIANTS
)
