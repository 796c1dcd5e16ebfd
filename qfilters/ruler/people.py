"""Invented people, a document each, and questions whose answer is in one or in two of them.

What is asked for occurs in its gold document and in no other, nor in the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from .words import split


class Document(NamedTuple):
    """A title (or none) and sentences; how many of them are shown is decided later."""

    title: str
    sentences: tuple[str, ...]


class Drawn(NamedTuple):
    """A question, its documents, those that must stand beside them, and endless others."""

    question: str
    answers: tuple[str, ...]
    gold: list[Document]
    near: list[Document]
    fillers: Iterator[Document]


def one_hop(rng: Random, filler: Random) -> Drawn:
    """What one person's document says; nine others share the person's town or profession."""
    people = _People()
    kind = rng.choice(KINDS)
    gold = people.new(rng)
    people.reserve(gold, kind, rng)
    near = []
    for i in range(9):
        other = people.new(rng)
        share = "job" if kind in ("town", "year") or i % 2 else "town"
        other.facts[share] = gold.facts[share]
        near.append(other.document(kind))
    return Drawn(
        _question(kind, gold.name),
        (gold.facts[kind],),
        [gold.document(kind)],
        near,
        people.fillers(filler),
    )


def two_hops(rng: Random, filler: Random) -> Drawn:
    """Four in five: of a person that another document names; else of the older of two."""
    people = _People()
    kind = rng.choice(HOBBIES)
    if rng.random() < 0.8:
        sentence, role = rng.choice(RELATIONS)
        pairs = [(people.new(rng), people.new(rng)) for _ in range(5)]
        people.reserve(pairs[0][1], kind, rng)
        documents = [
            document
            for a, b in pairs
            for document in (a.document(None, sentence.format(a.last, b.name)), b.document(kind))
        ]
        asked, target = role.format(pairs[0][0].name), pairs[0][1]
    else:
        group = [people.new(rng) for _ in range(10)]
        while group[0].facts["year"] == group[1].facts["year"]:
            group[1] = people.new(rng)
        target = min(group[:2], key=lambda person: person.facts["year"])
        people.reserve(target, kind, rng)
        documents = [person.document(kind) for person in group]
        asked = f"the older of {group[0].name} and {group[1].name}"
    return Drawn(
        _question(kind, asked),
        (target.facts[kind],),
        documents[:2],
        documents[2:],
        people.fillers(filler),
    )


@dataclass
class _Person:
    first: str
    last: str
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.first} {self.last}"

    def sentence(self, kind: str) -> str:
        return SENTENCES[kind].format(last=self.last, **self.facts)

    def document(self, kind: str | None, *more: str) -> Document:
        """Birth, work, and what is asked for (it may be one of these); then `more`."""
        hobby = [self.sentence(kind)] if kind in HOBBIES else []
        return Document("", (self.birth, self.sentence("employer"), *hobby, *more))

    @property
    def birth(self) -> str:
        return f"{self.name} was born in {self.facts['town']} in {self.facts['year']}."


class _People:
    """People with distinct names; once a fact is reserved, nobody else has it."""

    def __init__(self):
        self.people: dict[tuple[str, str], _Person] = {}
        self.reserved = ("", "")

    def new(self, rng: Random) -> _Person:
        name = self._name(rng)
        facts = {kind: self._value(kind, rng) for kind in VALUES}
        self.people[name] = _Person(*name, facts)
        return self.people[name]

    def reserve(self, owner: _Person, kind: str, rng: Random) -> None:
        self.reserved = kind, owner.facts[kind]
        for person in self.people.values():
            if person is not owner:
                person.facts[kind] = self._value(kind, rng)

    def fillers(self, rng: Random) -> Iterator[Document]:
        while True:
            person = self.new(rng)
            kinds = rng.sample(["employer", *HOBBIES], rng.randint(2, 5))
            yield Document("", (person.birth, *map(person.sentence, kinds)))

    def _value(self, kind: str, rng: Random) -> str:
        while (kind, value := rng.choice(VALUES[kind])) == self.reserved:
            pass
        return value

    def _name(self, rng: Random) -> tuple[str, str]:
        while True:
            first, last = rng.choice(FIRST), rng.choice(LAST)
            if 2 * len(self.people) > len(FIRST) * len(LAST):
                # Plain names run out: a middle initial makes new ones.
                first = f"{first} {rng.choice('BCDFGHJKLMNPRSTVW')}."
            if (first, last) not in self.people:
                return first, last


def _question(kind: str, subject: str) -> str:
    return QUESTIONS[kind].format(subject)


def _cross(heads: str, tails: str) -> tuple[str, ...]:
    return tuple(head + tail for head in heads.split() for tail in tails.split())


FIRST = split("""
    Mara Tomas Elin Jonas Petra Viggo Signe Anton Livia Oskar Renata Emil Carla Matteo Freya
    Luca Ingrid Rafael Nadia Hugo Vera Stefan Alma Bruno Clara Dario Edith Felix Greta Henrik
    Irena Julian Katja Leon Miriam Nils Olga Pavel Rosa Simon Thea Ulrich Wanda Xenia Yusuf
    Zora Amir Beatrix Cosmo Daphne Enzo Flora Gustav Helena Ivo Judith Kamil Leonora Milan
    Noor
""")
LAST = _cross(
    "Bran Tol Hal Ver Mor Kes Dun Fal Gar Lind Nor Pel Ros Sel Tarn Wes Yar Zan",
    "wick wald berg mark strom ley ford vik sen man gard holt",
)
VALUES = {
    "town": _cross("Old Ash Stone Green River Mill King North Crow Salt", "haven bury dale mouth"),
    "year": tuple(str(year) for year in range(1901, 1990)),
    "job": tuple(
        f"a{'n' * (name[0] in 'aeiou')} {name}"
        for name in split("""
            baker glazier surveyor locksmith translator gardener optician welder
            editor chemist tailor bookbinder plumber auditor librarian roofer weaver
            nurse
        """)
    ),
    "employer": _cross("Quor Jask Ulm Bex Vint Obri Thes Drax", "ora ico anda elio usko"),
    "prize": _cross("Plov Wend Cax Strel Hjor Munt Gwyn Ebb", "aris entia olm utz"),
    "instrument": split("""
        accordion banjo bassoon cello clarinet flute guitar harmonica mandolin oboe organ
        piano saxophone trombone tuba ukulele viola xylophone zither
    """),
    "collection": split("""
        stamps maps buttons lanterns teapots postcards clocks thimbles bottles kites
        posters umbrellas typewriters spoons keys marbles mirrors hats baskets
        candlesticks cameras telescopes compasses puppets ribbons fans doorbells
        matchboxes penknives
    """),
    "dog": split("""
        Biscuit Pepper Waffles Snowball Nugget Pickles Noodle Cinnamon Thunder Bandit
        Domino Fudge Ginger Jigsaw Lucky Mango Olive Rocket Whisper Pudding Bramble
        Captain
    """),
}
SENTENCES = {
    "employer": "{last} works as {job} at {employer} Limited.",
    "prize": "{last} once received the {prize} Prize.",
    "instrument": "{last} plays the {instrument} in the evenings.",
    "collection": "{last} collects old {collection}.",
    "dog": "{last} has a dog called {dog}.",
}
HOBBIES = ("prize", "instrument", "collection", "dog")
KINDS = ("town", "year", "employer", *HOBBIES)
QUESTIONS = {
    "town": "In which town was {} born?",
    "year": "In which year was {} born?",
    "employer": "Which company does {} work for?",
    "prize": "Which prize did {} receive?",
    "instrument": "Which instrument does {} play?",
    "collection": "What does {} collect?",
    "dog": "What is the name of the dog of {}?",
}
RELATIONS = (
    ("{} was taught by {}.", "the teacher of {}"),
    ("{} is married to {}.", "the spouse of {}"),
    ("{} rents a room from {}.", "the landlord of {}"),
)
