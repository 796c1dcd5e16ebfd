"""Scores against the obvious formula, and what readers without understanding get."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruler_samples import NAMES, samples

from qfilters.ruler import TASKS
from qfilters.ruler.baselines import COPIED, copy, window
from qfilters.ruler.score import (
    extra_names,
    hits,
    match_all,
    match_part,
    postprocess,
    score,
    strict,
)

words = st.text("abAB 1-", min_size=1, max_size=6)
corpora = st.lists(
    st.tuples(st.text("abAB 1-", max_size=30), st.lists(words, min_size=1)), min_size=1
)


@pytest.mark.parametrize("task", NAMES)
def test_the_gold_answers_score_full_marks_and_silence_none(task):
    metric = TASKS[task].metric
    for s in samples(task):
        said = " ".join(s.answers)
        for text in (said, said.upper(), said.lower(), f"\t {said}.\n"):
            assert score(metric, s.answers, text) == strict(metric, s.answers, text) == 1
        assert score(metric, s.answers, "") == strict(metric, s.answers, "") == 0
        assert hits(s.answers, s.answers[0])[0] == 1


def test_all_and_part():
    assert match_all(["a b"], [["a", "c"]]) == 50
    assert match_part(["a b"], [["a", "c"]]) == 100
    assert match_all(["a", "b"], [["a", "x", "y"], ["b"]]) == 66.67
    assert match_all(["a", "", ""], [["a"], ["a"], ["a"]]) == 33.33
    assert match_part(["a", "", ""], [["a"], ["a"], ["a"]]) == 33.33


def test_control_characters_part_what_they_stand_between():
    assert postprocess(" \n12\t34\x00567 \r") == "12\n34\n567"
    assert hits(["1234567", "34"], "12\t34\n567") == [0, 1]


@pytest.mark.parametrize(
    "predictions, references",
    [
        ("a", [["a"]]),
        (["a"], "a"),
        (["a"], ["a"]),
        (["a"], [[]]),
        (["a"], [["a", ""]]),
        ([], []),
        (["a", "b"], [["a"]]),
        ([None], [["a"]]),
    ],
)
@pytest.mark.parametrize("match", [match_all, match_part])
def test_what_is_not_a_corpus_is_refused(match, predictions, references):
    with pytest.raises(ValueError):
        match(predictions, references)


def test_strict_wants_whole_words():
    assert score("part", ["no"], "Not found") == 1
    assert strict("part", ["no"], "Not found") == 0
    assert strict("all", ["no", "a.b"], "No, a.b") == 1
    assert strict("all", ["no", "a.b"], "no axb") == 0.5
    with pytest.raises(ValueError, match="metric"):
        strict("any", ["no"], "no")


@given(corpora)
def test_the_corpus_scores_are_the_plain_formulas(pairs):
    predictions, references = map(list, zip(*pairs, strict=True))
    # What kvpress computes; it differs only in control characters.
    shares = [sum(r.lower() in p.strip().lower() for r in rs) / len(rs) for p, rs in pairs]
    anys = [max(r.lower() in p.strip().lower() for r in rs) for p, rs in pairs]
    assert match_all(predictions, references) == pytest.approx(100 * np.mean(shares), abs=0.0051)
    assert match_part(predictions, references) == pytest.approx(100 * np.mean(anys), abs=0.0051)


def test_extra_names():
    assert extra_names(["ABCDE", "FGHIJ"], "ABCDE, XXXXX and XXXXX, YYYYY; abcde TOOLONG") == 2


@pytest.mark.parametrize("task", NAMES)
def test_a_window_over_everything_sees_all_and_an_empty_one_nothing(task):
    for s in samples(task):
        assert window(s, s.context) == 1
        assert window(s, "") == 0
        assert window(s, "\n") == 0


@pytest.mark.parametrize("task", ["niah_single_2", "niah_multivalue", "niah_multikey_2"])
def test_a_window_finds_what_lies_in_it(task):
    for s in samples(task):
        half = len(s.context) // 2
        deep = [depth > 0.5 for depth in s.depths]
        # A needle across the cut may lose its key but not its value.
        assert abs(window(s, s.context[half:]) - np.mean(deep)) <= 1 / len(deep)


@pytest.mark.parametrize("task, asked", [("cwe", 10), ("fwe", 3)])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_window_counts_and_guesses_between_ties(task, asked, share):
    for s in samples(task):
        tail = s.context[-int(share * len(s.context)) :]
        seen = re.findall(r"[a-z]{4,}", tail.split(None, 1)[1])
        counts, rng = Counter(seen), np.random.default_rng(0)
        total = 0
        for _ in range(400):
            guess = sorted(counts, key=lambda w: (-counts[w], rng.random()))[:asked]
            total += len(set(guess) & set(s.answers)) / asked
        assert window(s, tail) == pytest.approx(total / 400, abs=0.05)


def test_copying_part_of_the_list():
    for s in samples("cwe", 4096):
        listed = re.findall(r"\d+\. (\S+)", s.context.rsplit("\n1. ", 1)[1])
        listed = [re.search(r"\S+", s.context.rsplit("\n1. ", 1)[1])[0], *listed]
        starts = range(len(listed) - COPIED + 1)
        expected = np.mean(
            [score("all", s.answers, " ".join(listed[i : i + COPIED])) for i in starts]
        )
        assert copy(s) == pytest.approx(expected) and 0.6 < copy(s) < 0.95
    assert all(copy(samples(task)[0]) is None for task in NAMES if task != "cwe")
