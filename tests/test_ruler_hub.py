"""Ready-made prompts and real questions, from tables in their format; no network."""

import dataclasses
import warnings

import numpy as np
import pytest
from ruler_samples import NAMES, count_plain

from qfilters.errors import QFiltersWarning, UsageError
from qfilters.ruler import TASKS, LengthError, Options, generate, hub
from qfilters.ruler.baselines import copy, window

ANSWERS = {
    "vt": ["ABCDE", "FGHIJ"],
    "cwe": [f"word{i}" for i in range(10)],
    "fwe": ("aaaaaa", "bbbbbb", "cccccc"),
    "niah_single_1": np.array(["1234567"]),
    "niah_multivalue": str(["1234567", "7654321"]),
    "niah_multiquery": str(np.array(["1234567", "7654321"])),
    "qa_1": """['it\\'s', "isn't"]""",
    "qa_2": "yes",
}
EXPECTED = {
    "niah_multivalue": ("1234567", "7654321"),
    "niah_multiquery": ("1234567", "7654321"),
    "qa_1": ("it's", "isn't"),
    "qa_2": ("yes",),
}


def row(task: str) -> dict:
    answer = ANSWERS.get(task, ["1234567"])
    gold = EXPECTED.get(task, tuple(answer))
    return {
        "context": f"Intro.\n\n1. {' 1. '.join(gold)}",
        "question": "What is it? ",
        "answer_prefix": " It is" if task == "vt" else "It is",
        "answer": answer,
        "task": task,
        "max_new_tokens": TASKS[task].max_new_tokens,
    }


@pytest.mark.parametrize("task", NAMES)
def test_a_row_becomes_a_sample(task):
    given = row(task)
    s = hub.to_sample(given, 4096, 42, 3, count_plain)
    for name in ("context", "question", "answer_prefix", "max_new_tokens", "task"):
        assert getattr(s, name) == given[name]
    assert s.answers == EXPECTED.get(task, tuple(given["answer"]))
    assert all(type(answer) is str for answer in s.answers)
    assert s.n_tokens == count_plain(s.context, s.question, s.answer_prefix)
    assert s.id == f"{task}/4096/hub/3" and s.meta["source"] == "hub"
    places = [round(depth * len(s.context)) for depth in s.depths]
    assert all(s.context[p:].startswith(a) for p, a in zip(places, s.answers, strict=False))
    assert bool(places) == (task not in ("cwe", "fwe", "qa_1", "qa_2"))
    assert window(s, s.context) > 0 and (copy(s) is None) == (task != "cwe")


def test_rows_are_drawn_by_seed():
    table = [{**row(task), "question": f"{i}"} for i in range(20) for task in ("vt", "qa_1")]

    def pick(n, seed, task="vt"):
        names = [r["task"] for r in table]
        made = hub.pick(names, table.__getitem__, task, 4096, n, seed, count_plain)
        return [s.index for s in made if s.question == str(s.index) and s.task == task]

    assert sorted(pick(20, 1)) == list(range(20)) and pick(20, 1)[:5] == pick(5, 1)
    assert pick(5, 1) == pick(5, 1) != pick(5, 2) and len(pick(5, 1)) == 5
    with pytest.raises(UsageError, match="20 rows of vt, not 21"):
        pick(21, 1)
    with pytest.warns(QFiltersWarning, match="same few places"):
        pick(5, 1, "qa_1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pick(5, 1)


@pytest.mark.parametrize("wrong", [[], [""], "[]", "", ["a", ""]])
def test_a_row_without_an_answer_is_refused(wrong):
    with pytest.raises(UsageError, match="without answers"):
        hub.to_sample({**row("vt"), "answer": wrong}, 4096, 42, 0, count_plain)


def test_lengths_that_there_are_and_a_network_that_is_not(monkeypatch):
    with pytest.raises(UsageError, match="no length 1024: choose 4096, 8192, 16384"):
        hub.rows("vt", 1024, 1, 42, count_plain)

    def broken(*args, **options):
        raise ConnectionError("no route\nto the host")

    monkeypatch.setattr("datasets.load_dataset", broken)
    for load in (
        hub.squad,
        hub.hotpot,
        hub.essays,
        lambda: hub.rows("vt", 4096, 1, 1, count_plain),
    ):
        with pytest.raises(
            UsageError, match=r"no route .it takes a network; .*--haystack"
        ) as error:
            load()
        assert "\n" not in str(error.value)


def paragraph(i: int, n: int) -> str:
    return " ".join(f"Fact {i} {j} is told here in some words." for j in range(n)) + f" Gold{i}x."


@pytest.fixture(scope="module")
def squad():
    return hub.squad_source(
        {
            "title": f"article {i // 5}",
            "context": paragraph(i, 4 if i % 10 else 300),
            "question": f"What is fact {i}?",
            "answers": {"text": [f"Gold{i}x", f"gold{i}x"] if i % 7 else []},
        }
        for i in range(200)
    )


@pytest.fixture(scope="module")
def hotpot():
    def context(i):
        titles = [f"Page {i} {j}" for j in range(10)]
        return {"title": titles, "sentences": [[f"{t} is one.", " It has more."] for t in titles]}

    return hub.hotpot_source(
        {
            "question": f"Which page {i}?",
            "answer": f"Page {i} 3",
            "context": context(i),
            "supporting_facts": {"title": [f"Page {i} 3", f"Page {i} 7", f"Page {i} 3"]},
        }
        for i in range(100)
    )


def test_squad_keeps_what_can_be_answered(squad):
    assert (
        len(squad.questions) == sum(i % 7 > 0 for i in range(200)) and len(squad.documents) == 200
    )
    first = squad.questions[0]
    assert first.gold == (paragraph(1, 4),) and first.answers == ("Gold1x", "gold1x")
    assert len(first.near) == 4 and first.article == "article 0"


def test_real_questions(squad, hotpot, monkeypatch):
    monkeypatch.setattr("qfilters.ruler.qa.STRIDE", 20)
    options = Options(qa=(squad, hotpot))
    for s in generate("qa_1", count_plain, 1024, 12, options=options):
        question = next(q for q in squad.questions if q.question in s.question)
        assert question.gold[0] in s.context and s.answers == question.answers
        assert 0 <= s.slack < 30 and s.source["qa"] == "squad"
        assert s.meta["article"] == question.article
        place = round(s.depths[0] * len(s.context))
        assert s.context[place:].startswith(question.gold[0])
    for s in generate("qa_2", count_plain, 1024, 5, options=options):
        question = next(q for q in hotpot.questions if q.question in s.question)
        assert all(text in s.context for text in question.gold + question.near)
        assert len(question.gold) == len(s.depths) == 2 and 0 <= s.slack < 30
        assert s.source["qa"] == "hotpotqa"


def test_questions_that_do_not_fit_are_skipped(squad, monkeypatch):
    monkeypatch.setattr("qfilters.ruler.qa.STRIDE", 20)
    options = Options(qa=(squad,))
    made = list(generate("qa_1", count_plain, 1024, 20, options=options))
    assert len({s.question for s in made}) == 20
    assert sum(s.meta["skipped"] for s in made) > 0
    long = dataclasses.replace(squad, questions=squad.questions[8:9])
    with pytest.raises(LengthError, match="qa_1 at length 1024"):
        next(generate("qa_1", count_plain, 1024, 1, options=Options(qa=(long,))))


def test_a_source_without_enough_documents_is_refused(hotpot):
    with pytest.raises(UsageError, match="hotpotqa has only 1000 documents"):
        next(generate("qa_2", count_plain, 60_000, 1, options=Options(qa=(hotpot,))))
