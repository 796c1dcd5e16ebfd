"""Variable tracking: a chain of assignments among lines of noise, and who holds the value."""

from __future__ import annotations

import string
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from .base import Options, Parts, Plan, Spec, Task
from .prose import NOISE, insert, merge

HOPS = 4


class _Chain(NamedTuple):
    """Names in order of assignment, and the value that the first one gets."""

    names: list[str]
    value: int

    def lines(self) -> list[str]:
        sources = [str(self.value), *(f"VAR {name}" for name in self.names[:-1])]
        return [f"VAR {name} = {source}" for name, source in zip(self.names, sources, strict=True)]


def _build(spec: Spec, options: Options) -> Iterator[Plan]:
    rng = spec.rng()
    used: set[str] = set()
    chains = [_chain(rng, 5, used) for _ in range(options.chains)]
    example = _example(rng, spec.length, used)
    placed = merge((_depths(rng), chain.lines()) for chain in chains)
    asked, *others = chains
    question, prefix = _ask(asked)

    def render(k: int) -> Parts:
        lines = insert([NOISE] * k, placed)
        head = example + _OPENING
        context = head + "\n".join(lines) + "\n"
        gold = tuple(context.index(line + "\n", len(head)) for line in asked.lines())
        meta = {"value": asked.value, "others": [n for chain in others for n in chain.names]}
        return Parts(context, question, prefix, tuple(asked.names), gold, meta)

    yield Plan(render, low=0, haystack="noise")


def _chain(rng: Random, letters: int, used: set[str]) -> _Chain:
    """A chain whose names and value are part of nothing in `used`, to which they are added."""
    names: list[str] = []
    while len(names) < HOPS + 1:
        name = "".join(rng.choices(string.ascii_uppercase, k=letters))
        if not any(name in other for other in used):
            names.append(name)
            used.add(name)
    while str(value := rng.randrange(10_000, 100_000)) in used:
        pass
    used.add(str(value))
    return _Chain(names, value)


def _example(rng: Random, length: int, used: set[str]) -> str:
    """A solved task in the same words, of at most 500 tokens or a quarter of the length."""
    chain = _chain(rng, 3, used)
    lines = [NOISE] * ((min(500, length // 4) - 105) // 25)
    text = "\n".join(insert(lines, merge([(_depths(rng), chain.lines())])))
    question, prefix = _ask(chain)
    return f"{_OPENING}{text}\n{question} {prefix} {' '.join(chain.names)}\n\n"


def _depths(rng: Random) -> list[float]:
    return sorted(rng.random() for _ in range(HOPS + 1))


def _ask(chain: _Chain) -> tuple[str, str]:
    question = f"\nWhich variables hold the value {chain.value}, directly or through another one?"
    return question, f"In the text above, {HOPS + 1} variables hold the value {chain.value}:"


_OPENING = "Follow the assignments of variables that are hidden in this text.\n\n"

TASK = Task("vt", "tracing", 30, "all", 900, _build)
