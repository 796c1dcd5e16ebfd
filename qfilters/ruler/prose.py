"""Haystacks: a line of noise, endless plain prose, a user's text; and needles put in at depths.

The prose is grammatical and says little. It has no digits and no word of the needles.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from random import Random

from ..errors import UsageError
from .words import ANIMALS, PEOPLE, PLACES, THINGS, split

NOISE = "The snow is white. The coal is black. The lake is calm. On we walk. Up and down once more."

Placed = list[tuple[float, str]]
"""Depths from 0 to 1, ascending, with the text that goes there."""


def merge(groups: Iterable[tuple[Iterable[float], Iterable[str]]]) -> Placed:
    """All (depths, texts) in the order of depth; equal depths stay in the order given."""
    pairs = [pair for depths, texts in groups for pair in zip(depths, texts, strict=True)]
    return sorted(pairs, key=lambda pair: pair[0])


def insert(lines: list[str], placed: Placed) -> list[str]:
    """`lines` with every placed text in the gap that its depth says; gap k is after the last."""
    made, done = [], 0
    for depth, text in placed:
        gap = _slot(depth, len(lines) + 1)
        made += lines[done:gap]
        made.append(text)
        done = gap
    return made + lines[done:]


class Essay:
    """Running text as words that are read when first needed, with needles between sentences."""

    def __init__(self, sentences: Iterable[str]):
        self._sentences = iter(sentences)
        self._words: list[str] = []
        self._starts = [0]

    def with_needles(self, k: int, placed: Placed) -> str:
        """The first k words; the last sentence may be cut, and no needle stands behind the cut."""
        while len(self._words) < k:
            self._words += next(self._sentences).split()
            self._starts.append(len(self._words))
        starts = self._starts[: bisect_right(self._starts, k)]
        made, done = [], 0
        for depth, text in placed:
            start = starts[_slot(depth, len(starts))]
            made += self._words[done:start]
            made.append(text)
            done = start
        return " ".join(made + self._words[done:k])


@functools.lru_cache(maxsize=2)
def sentences(text: str) -> tuple[str, ...]:
    """A text's sentences, or rows of 20 words where it has (nearly) no ends of sentences.

    Raises UsageError for a text without words between blanks.
    """
    words = text.split()
    if not words or len(text) > 40 * len(words):
        what = "is empty" if not words else "has hardly any blanks, so no words to count"
        raise UsageError(f"the haystack {what}: give a text of some hundred words or more")
    found = split_sentences(" ".join(words))
    if len(words) > 200 * len(found):
        found = [" ".join(words[i : i + 20]) for i in range(0, len(words), 20)]
    return tuple(found)


def split_sentences(text: str) -> list[str]:
    """Cut at blanks between an end mark, quoted or not, and a capital."""
    return re.split(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s+(?=["'(\[]?[A-Z])""", text)


def prose(rng: Random) -> Iterator[str]:
    """Endless sentences, in paragraphs of four to seven that keep to one thing and one person."""
    deck: list[str] = []
    while True:
        topic, who = rng.choice(_TOPICS), rng.choice(PEOPLE)
        for _ in range(rng.randint(4, 7)):
            # A frame returns when all have had their turn.
            deck = deck or rng.sample(FRAMES, len(FRAMES))
            frame = deck.pop()
            sentence = frame.format(
                topic=topic,
                who=who,
                other=rng.choice(PEOPLE),
                where=rng.choice(PLACES),
                there=rng.choice(PLACES),
                thing=rng.choice(_TOPICS),
                animal=rng.choice(ANIMALS),
                look=rng.choice(_LOOKS),
                air=rng.choice(_AIRS),
                when=rng.choice(_TIMES),
            )
            yield re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence)


def _slot(depth: float, slots: int) -> int:
    return min(math.floor(depth * slots), slots - 1)


# Not to be had one by one, or not to be had at all.
_NO_TOPICS = split("""
    amethyst armour basalt brass bronze cement cobalt comet copper corduroy dice flannel
    girder granite gravel limestone linen meteor mortar nebula nickel parchment perfume pewter
    planet plaster pliers rocket sandstone satellite satin silver slate soap steel submarine
    tinder trousers twine velvet yacht
""")
_TOPICS = tuple(thing for thing in THINGS if thing not in _NO_TOPICS)
_LOOKS = split("heavy broken dusty small painted rusty wooden polished forgotten borrowed plain")
_AIRS = split("quiet cold bright damp windy warm grey empty crowded dark")
_TIMES = split("morning evening afternoon week month spring summer autumn winter")

FRAMES = """The {who} kept the {topic} in a room above the {where}.
Nobody at the {where} could say who had made the {topic}.
Every {when} the {who} walked from the {where} to the {there} and back again.
It was a {air} {when}, and the {where} smelled of rain.
The {other} asked about the {topic} twice, but the {who} only shrugged.
A {look} {thing} lay on the table, and beside it slept the {animal}.
There is no good reason to carry a {thing} through the {where}, yet the {who} did it.
People said that the {topic} had once belonged to a {other} from the {where}.
The {who} thought for a while and then went on working.
In the {when} the {where} was so {air} that even the {animal} stayed away.
Some of the children laughed when they saw the {look} {topic}.
What the {other} really wanted was to see the {there} before the {when} was over.
The {topic} was {look}, as such things often are, but it still served its purpose.
Behind the {where} a narrow path led down to the {there}.
The {who} had learned the trade from a {other}, slowly and with many mistakes.
They talked about the weather, about the {thing}, and about nothing at all.
If you leave a {thing} near the {where}, somebody will come and take it.
The {animal} watched the {who} from the roof and did not move.
Later that {when} the {other} came by with bread and a {look} {thing}.
Most visitors walked past the {topic} without a single glance.
The {who} wrote a long letter about the {topic} and never sent it.
On the way to the {where} they met the {other}, who was in no hurry.
Old habits are hard to break, said the {other}, and the {who} agreed.
The {there} had been closed since the {when}, and few people missed it.
Somebody had painted a {animal} on the wall of the {where}.
It takes patience to mend a {thing}, and the {who} had plenty of it.
The road to the {there} was {air} and longer than they remembered.
The {other} offered to trade the {thing} for the {topic}, which seemed fair.
Nothing much happened at the {where} until the {animal} ran across the yard.
When the wind turned, the sound of the {where} could be heard far away.
The {who} put the {topic} back on its shelf and closed the window.
A crowd had gathered at the {there} to hear what the {other} had to say.
Perhaps the {topic} was never meant to be used at all.
The {who} liked the {where} best when it was {air} and everyone had gone home.
For years the {other} had dreamed of a house beside the {there}.
The {animal} drank from the fountain while the {who} looked for the {thing}.
All that {when} they worked side by side and hardly spoke.
The price of a {look} {thing} had doubled since the {when}.
Anyone who has lived near a {where} knows how loud it can be.
The {who} laughed, because the {topic} looked different in the evening light.
Two doors further on, the {other} was busy with a {thing}.
By the end of the {when} the {topic} had found its way to the {there}.
The {other} told the story of the {animal} again, and this time it was longer.
Whoever built the {where} had no great love for the people who lived in it.
The {thing} was wrapped in cloth and tied with a piece of string.
At noon the {who} rested in the shade and listened to the {animal}.
It would have been wiser to leave the {topic} at the {where}.
The {there} lay in fog, and the {animal} was the only thing that moved.""".splitlines()
