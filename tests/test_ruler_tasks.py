"""The content of each task, read back from the prompt by solvers that know only the prompt."""

import itertools
import random
import re
from collections import Counter

import pytest
from ruler_samples import count_plain, samples
from scipy.stats import chisquare

from qfilters.ruler import Options, generate
from qfilters.ruler.base import Spec
from qfilters.ruler.people import two_hops

LENGTHS = pytest.mark.parametrize("length", [1024, 4096])
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
WORDS, NUMBER = r"[a-z]{4,11}-[a-z]{4,11}", r"[1-9]\d{6}"
NEEDLE = re.compile(r"(?:The|One of the) catalogue (?:number|id)s? of (\S+) is (\S+)\.")
# Key, value, keys in the text (None: many), keys asked for, values of each.
NIAH = {
    "niah_single_1": (WORDS, NUMBER, 1, 1, 1),
    "niah_single_2": (WORDS, NUMBER, 1, 1, 1),
    "niah_single_3": (WORDS, UUID, 1, 1, 1),
    "niah_multikey_1": (WORDS, NUMBER, 4, 1, 1),
    "niah_multikey_2": (WORDS, NUMBER, None, 1, 1),
    "niah_multikey_3": (UUID, UUID, None, 1, 1),
    "niah_multivalue": (WORDS, NUMBER, 1, 1, 4),
    "niah_multiquery": (WORDS, NUMBER, 4, 4, 1),
}


@LENGTHS
@pytest.mark.parametrize("task", NIAH)
def test_needles(task, length):
    key, value, keys, asked, values = NIAH[task]
    for s in samples(task, length):
        found = NEEDLE.findall(s.context)
        by_key = {}
        for k, v in found:
            assert re.fullmatch(key, k) and re.fullmatch(value, v)
            by_key.setdefault(k, []).append(v)
        assert all(s.context.count(v) == 1 for _, v in found)
        assert keys is None or len(by_key) == keys
        assert {len(v) for v in by_key.values()} == {values}
        wanted = re.findall(key, s.question)
        assert len(set(wanted)) == len(wanted) == asked
        assert re.findall(key, s.answer_prefix) == wanted
        assert sorted(s.answers) == sorted(v for k in wanted for v in by_key[k])
        if keys is None:
            lines = s.context.strip().split("\n")[2:]
            assert len(lines) == len(found) > 5 and all(map(NEEDLE.fullmatch, lines))
        many = len(s.answers) > 1
        assert s.answer_prefix.endswith(" are" if many else " is")
        assert ("numbers of" in s.question) == many


def follow(context: str, value: str) -> list[str]:
    """Names that hold the value, in the order in which they get it."""
    names = []
    for name, source in re.findall(r"^VAR ([A-Z]+) = (?:VAR )?(\w+)$", context, re.M):
        if source == value or source in names:
            names.append(name)
    return names


@LENGTHS
@pytest.mark.parametrize("chains", [1, 3])
def test_variables(chains, length):
    for s in generate("vt", count_plain, length, 5, options=Options(chains=chains)):
        example, real = (part for part in s.context.split("Follow the ")[1:])
        (value,) = re.findall(r"\d+", s.question)
        assert follow(real, value) == list(s.answers) and len(set(s.answers)) == 5
        names = re.findall(r"^VAR ([A-Z]{5}) = ", real, re.M)
        assert len(names) == len(set(names)) == 5 * chains
        assert set(names) - set(s.answers) == set(s.meta["others"])
        assert value in s.question and value in s.answer_prefix and value not in example
        asked, solved = re.search(r"hold the value (\d+):((?: [A-Z]{3}){5})\n", example).groups()
        assert follow(example, asked) == solved.split()
        assert not any(short in name for short in solved.split() for name in names)
        lines = {line for line in real.split("\n")[2:] if line and not line.startswith("VAR")}
        assert len(lines) == 1
        assert count_plain(example, "", "") - 30 <= min(500, length // 4) + 20


@LENGTHS
def test_common_words(length):
    often, seldom = (30, 3) if length >= 4096 else (6, 1)
    for s in samples("cwe", length):
        example, listed = re.findall(r"^1\. .*$", s.context, re.M)
        entries = re.findall(r"(\d+)\. (\S+)", listed)
        assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
        counts = Counter(word for _, word in entries)
        assert set(counts.values()) == {often, seldom}
        assert {w for w, c in counts.items() if c == often} == set(s.answers) and len(
            s.answers
        ) == 10
        shown = Counter(word for _, word in re.findall(r"(\d+)\. (\S+)", example))
        solved = re.search(r"are: (1\. .*)\n", s.context)[1]
        top = [word for _, word in re.findall(r"(\d+)\. (\S+)", solved)]
        assert sorted(top) == sorted(word for word, _ in shown.most_common(10))
        assert not set(shown) & set(s.answers)


def test_common_words_go_beyond_the_pool():
    (s,) = generate("cwe", count_plain, 32_768, 1)
    entries = re.findall(r"\d+\. (\S+)", s.context.rsplit("\n1. ", 1)[1])
    compounds = [word for word in set(entries) if "-" in word]
    assert len(compounds) > 100
    assert not any(answer in word for answer in s.answers for word in compounds)


@LENGTHS
def test_frequent_words(length):
    for s in samples("fwe", length):
        counts = Counter(s.context.strip().rsplit("\n", 1)[1].split())
        ranked = counts.most_common(5)
        assert ranked[0][0] == "..." and [w for w, _ in ranked[1:4]] == list(s.answers)
        assert all(re.fullmatch("[a-z]{6}", word) for word in counts if word != "...")
        n, zeta = s.meta["units"], sum(k**-2 for k in range(1, 200_000))
        assert [c for _, c in ranked] == [int(n / zeta / k**2) for k in range(1, 6)]
        assert len({c for _, c in ranked}) == 5


@pytest.mark.parametrize("task", ["cwe", "fwe"])
def test_every_sample_has_an_order_of_its_own(task):
    made = samples(task, 1024, 12)
    places = [
        [i for i, word in enumerate(s.context.split()[-120:]) if word == s.answers[0]] for s in made
    ]
    assert len(set(map(tuple, places))) == 12
    # A window at the end holds now more, now fewer of the first answer.
    assert len({len(p) for p in places}) > 2


def documents(context: str) -> list[str]:
    parts = re.split(r"^Document (\d+):\n", context, flags=re.M)[1:]
    assert [int(n) for n in parts[::2]] == list(range(1, len(parts) // 2 + 1))
    return [text.strip() for text in parts[1::2]]


FACTS = {
    "Which instrument does (.*) play": r"plays the (\w+)",
    "Which prize did (.*) receive": r"received the (\w+) Prize",
    "What does (.*) collect": r"collects old (\w+)",
    "What is the name of the dog of (.*)": r"dog called (\w+)",
    "In which town was (.*) born": r"born in (\w+) in",
    "In which year was (.*) born": r"born in \w+ in (\d+)",
    "Which company does (.*) work for": r"at (\w+) Limited",
}
LINKS = {"teacher": "taught by", "spouse": "married to", "landlord": "rents a room from"}


def solve(shown: list[str], question: str) -> str | None:
    """The answer that these documents give, or None."""
    about = {re.match(r"(\w+ \w+) was born", text)[1]: text for text in shown}
    for asks in FACTS:
        if found := re.search(f"Question: {asks}\\?", question):
            who, fact = found[1], FACTS[asks]
            break
    if pair := re.fullmatch(r"the older of (\w+ \w+) and (\w+ \w+)", who):
        if not set(pair.groups()) <= set(about):
            return None
        who = min(pair.groups(), key=lambda name: re.search(r"\d{4}", about[name])[0])
    elif role := re.fullmatch(r"the (\w+) of (\w+ \w+)", who):
        link = re.search(rf"{LINKS[role[1]]} (\w+ \w+)", about.get(role[2], ""))
        who = link and link[1]
    answer = re.search(fact, about.get(who, ""))
    return answer and answer[1]


@LENGTHS
@pytest.mark.parametrize("task, gold", [("qa_1", 1), ("qa_2", 2)])
def test_documents(task, gold, length):
    for s in samples(task, length, 12):
        shown = documents(s.context)
        assert len(shown) >= 10 and len(set(shown)) == len(shown)
        (answer,) = s.answers
        assert [answer.lower() in text.lower() for text in shown].count(True) == 1
        assert solve(shown, s.question) == answer
        needed = [
            text for text in shown if solve([t for t in shown if t != text], s.question) is None
        ]
        assert len(needed) == gold
        starts = [round(depth * len(s.context)) for depth in s.depths]
        assert {s.context[p:].split("\n")[0] for p in starts} == set(needed)


def test_one_question_in_five_compares():
    drawn = (Spec("qa_2", 1024, 42, i).rng() for i in range(400))
    questions = [two_hops(rng, random.Random(0)).question for rng in drawn]
    assert 0.14 < sum("the older of" in q for q in questions) / 400 < 0.26


def uniform(ranks: list[tuple[int, int]]) -> float:
    """p-value of the ranks (i of n) being uniform, in 10 bins; a rank is spread over its share."""
    spread = random.Random(0)
    bins = Counter(int(10 * (i + spread.random()) / n) for i, n in ranks)
    return chisquare([bins[b] for b in range(10)]).pvalue


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "qa_1", "qa_2"])
def test_gold_stands_anywhere_with_the_same_chance(task):
    ranks = []
    for s in samples(task, 1024, 200):
        pieces = documents(s.context) if task.startswith("qa") else s.context.split("\n")[2:-1]
        place = round(s.depths[0] * len(s.context))
        (i,) = [i for i, text in enumerate(pieces) if s.context[place:].startswith(text + "\n")]
        ranks.append((i, len(pieces)))
    assert uniform(ranks) > 1e-3


def test_prose_needles_stand_anywhere_with_the_same_chance():
    depths = [s.depths[0] for s in samples("niah_single_2", 1024, 200)]
    assert uniform([(int(1000 * depth), 1000) for depth in depths]) > 1e-3


def test_the_values_of_one_key_come_in_any_order():
    orders = Counter()
    for s in samples("niah_multivalue", 1024, 200):
        orders[tuple(sorted(range(4), key=s.depths.__getitem__))] += 1
    assert chisquare([orders[o] for o in itertools.permutations(range(4))]).pvalue > 1e-3
