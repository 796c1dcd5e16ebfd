"""Pools, prose and the placing of needles."""

import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruler_samples import NAMES, samples

from qfilters.errors import UsageError
from qfilters.ruler.people import VALUES
from qfilters.ruler.prose import FRAMES, NOISE, Essay, insert, merge, prose, sentences
from qfilters.ruler.words import ADJECTIVES, NOUNS, POOL

depths = st.lists(st.floats(0, 1), max_size=6)


def test_the_pool_has_no_word_inside_another():
    assert len(ADJECTIVES) > 300 and len(NOUNS) > 800 and len(POOL) == len(set(POOL)) > 1300
    assert all(re.fullmatch("[a-z]{4,11}", word) for word in POOL)
    text = " ".join(POOL)
    assert not [word for word in POOL if text.count(word) > 1]


def test_values_of_people_have_no_value_inside_another():
    values = [v for kind, values in VALUES.items() if kind != "job" for v in values]
    text = " ".join(values).lower()
    assert not [value for value in values if text.count(value.lower()) > 1]


def test_no_prompt_uses_a_word_of_the_pool():
    spoken = " ".join(
        s.context.split("\n")[0] + s.question + s.answer_prefix
        for name in NAMES
        if not name.startswith(("niah", "qa"))
        for s in samples(name, n=1)
    )
    assert not [word for word in POOL if word in spoken.lower()]


def test_prose_is_free_of_needles_and_digits():
    made = list(itertools.islice(prose(random.Random(1)), 3000))
    assert len(FRAMES) >= 40
    for sentence in made:
        assert re.fullmatch(r"[A-Z][a-z ,]+\.", sentence)
        assert not re.search(r"\b(catalogue|numbers?|ids?)\b", sentence)
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", sentence)
    assert len(set(made)) > 2500
    assert made == list(itertools.islice(prose(random.Random(1)), 3000))
    # All frames have their turn before one returns.
    assert len({re.sub(r"\W.*", "", s) for s in made[: len(FRAMES)]}) > 10


@given(depths, st.integers(0, 30))
def test_lines_stay_in_order_and_needles_stand_at_their_depth(us, k):
    placed = merge([(us, [f"needle {i}" for i in range(len(us))])])
    made = insert([f"line {i}" for i in range(k)], placed)
    assert [t for t in made if t.startswith("line")] == [f"line {i}" for i in range(k)]
    assert [t for t in made if t.startswith("needle")] == [text for _, text in placed]
    for depth, text in placed:
        before = sum(t.startswith("line") for t in made[: made.index(text)])
        assert before == min(int(depth * (k + 1)), k)


@given(depths, st.integers(0, 300), st.integers(0, 99))
def test_needles_stand_between_sentences(us, k, seed):
    placed = merge([(us, [f"N{i}." for i in range(len(us))])])
    text = Essay(prose(random.Random(seed))).with_needles(k, placed)
    assert all(re.search(rf"(^|[.] )N{i}\.( [A-Z]|$)", text) for i in range(len(us)))
    plain = Essay(prose(random.Random(seed))).with_needles(k, [])
    assert re.sub(r" ?N\d\.", "", text).strip() == plain and len(plain.split()) == k


def test_more_words_begin_with_the_fewer():
    essay = Essay(prose(random.Random(3)))
    long, short = essay.with_needles(400, []), essay.with_needles(100, [])
    assert long.startswith(short) and NOISE not in long


def test_sentences_of_a_text():
    assert sentences('It is "late." He left! (Why?) Nobody knows etc. and so on.') == (
        'It is "late."',
        "He left!",
        "(Why?)",
        "Nobody knows etc. and so on.",
    )
    rows = sentences("word " * 500)
    assert {len(row.split()) for row in rows} == {20} and len(rows) == 25
    for text, says in (("", "is empty"), (" \n", "is empty"), ("x" * 999, "hardly any blanks")):
        with pytest.raises(UsageError, match=says):
            sentences(text)
