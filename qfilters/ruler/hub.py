"""What the network has to offer: ready-made RULER prompts, real questions, essays.

`datasets` is imported when something is loaded. What to do with the data is not known here.
"""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from ..errors import QFiltersWarning, UsageError
from . import TASKS, Count, QAQuestion, QASource, Sample

PROMPTS = "simonjegou/ruler"
LENGTHS = (4096, 8192, 16384)
_HAYSTACKS = {"niah_single_1": "noise", "niah_multikey_2": "needles", "niah_multikey_3": "needles"}
_HAYSTACKS |= {"vt": "noise", "cwe": "list", "fwe": "list", "qa_1": None, "qa_2": None}


def rows(task: str, length: int, n: int, seed: int, count: Count) -> list[Sample]:
    """`n` random rows of a task from the data set that kvpress uses.

    The texts are taken as they are, so they can exceed `length` with a chat template.
    Raises UsageError for a length that there is not, and without a network.
    """
    if length not in LENGTHS:
        raise UsageError(
            f"{PROMPTS} has no length {length}: choose {', '.join(map(str, LENGTHS))}, or make "
            "samples of any length without --source hub"
        )
    table = _load(PROMPTS, data_dir=str(length), split="test")
    return pick(table["task"], table.__getitem__, task, length, n, seed, count)


def pick(
    names: Sequence[str],
    row: Callable[[int], Mapping[str, Any]],
    task: str,
    length: int,
    n: int,
    seed: int,
    count: Count,
) -> list[Sample]:
    """`n` random rows of one task as samples; `names` is the task of each row. See `rows`."""
    mine = [i for i, name in enumerate(names) if name == task]
    if len(mine) < n:
        raise UsageError(f"{PROMPTS} has {len(mine)} rows of {task}, not {n}: ask for fewer")
    if task.startswith("qa"):
        warnings.warn(
            f"{task} of {PROMPTS}: the document with the answer stands at the same few places in "
            "all rows, mostly near the end, which favours methods that keep the end",
            QFiltersWarning,
            stacklevel=2,
        )
    order = list(range(len(mine)))
    Random(f"{task}/{length}/{seed}").shuffle(order)
    # More samples are these and others.
    return [to_sample(row(mine[i]), length, seed, i, count) for i in order[:n]]


def to_sample(row: Mapping[str, Any], length: int, seed: int, index: int, count: Count) -> Sample:
    """One row of kvpress' format; texts unchanged, `answer` in any of the forms it comes in."""
    task, context = row["task"], row["context"]
    if task not in TASKS:
        raise UsageError(f"{PROMPTS}: unknown task {task!r} in row {index}")
    answers = answer_list(row["answer"])
    places = [context.find(answer) for answer in answers]
    located = TASKS[task].family in ("retrieval", "tracing") and min(places) >= 0
    return Sample(
        id=f"{task}/{length}/hub/{index}",
        task=task,
        length=length,
        seed=seed,
        index=index,
        context=context,
        question=row["question"],
        answer_prefix=row["answer_prefix"],
        answers=answers,
        max_new_tokens=int(row["max_new_tokens"]),
        n_tokens=count(context, row["question"], row["answer_prefix"]),
        depths=tuple(place / len(context) for place in places) if located else (),
        source={
            "haystack": _HAYSTACKS.get(task, "essays"),
            "qa": {"qa_1": "squad", "qa_2": "hotpotqa"}.get(task),
        },
        meta={"source": "hub", "data": PROMPTS},
    )


def answer_list(value: Any) -> tuple[str, ...]:
    """Answers from a list, a tuple, an array, the printed form of one of these, or a string."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        # One by one: an array prints no commas, and adjacent literals would become one.
        quoted = re.findall(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", value)
        value = [ast.literal_eval(text) for text in quoted]
    elif isinstance(value, str):
        value = [value]
    answers = tuple(str(answer) for answer in value)
    if not answers or not all(answers):
        raise UsageError(f"a row without answers, or with an empty one: {value!r}")
    return answers


def squad() -> QASource:
    """Questions of SQuAD v2 that have an answer, with the paragraphs of their article."""
    return squad_source(_load("rajpurkar/squad_v2", split="validation"))


def hotpot() -> QASource:
    """Questions of HotpotQA, each with its ten documents."""
    return hotpot_source(_load("hotpotqa/hotpot_qa", "distractor", split="validation"))


def essays() -> str:
    """Essays of Paul Graham as one text."""
    return "\n".join(row["text"] for row in _load("baber/paul_graham_essays", split="train"))


def squad_source(table: Iterable[Mapping[str, Any]]) -> QASource:
    """See `squad`."""
    table = list(table)
    articles: dict[str, dict[str, None]] = {}
    for row in table:
        articles.setdefault(row["title"], {})[row["context"]] = None
    questions = tuple(
        QAQuestion(
            row["question"],
            tuple(row["answers"]["text"]),
            (row["context"],),
            tuple(text for text in articles[row["title"]] if text != row["context"]),
            row["title"],
        )
        for row in table
        if row["answers"]["text"]
    )
    documents = tuple(text for texts in articles.values() for text in texts)
    return QASource("squad", "qa_1", questions, documents)


def hotpot_source(table: Iterable[Mapping[str, Any]]) -> QASource:
    """See `hotpot`."""
    questions, documents = [], {}
    for row in table:
        titles, bodies = row["context"]["title"], row["context"]["sentences"]
        texts = {t: f"{t}\n{''.join(body)}" for t, body in zip(titles, bodies, strict=True)}
        documents |= dict.fromkeys(texts.values())
        needed = set(row["supporting_facts"]["title"])
        gold = tuple(text for title, text in texts.items() if title in needed)
        near = tuple(text for title, text in texts.items() if title not in needed)
        questions.append(QAQuestion(row["question"], (row["answer"],), gold, near, titles[0]))
    return QASource("hotpotqa", "qa_2", tuple(questions), tuple(documents))


def _load(*args: str, **options: str) -> Any:
    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    hub_log.setLevel(logging.ERROR)  # it reports every retry; the error below says it once
    try:
        import datasets

        return datasets.load_dataset(*args, **options)
    except Exception as error:
        # The hub, the network and the disk share no class of errors.
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise UsageError(
            f"cannot load {args[0]!r}: {reason} (it takes a network; without one use the built-in "
            "samples, or --haystack FILE for a text of your own)"
        ) from error
    finally:
        hub_log.setLevel(level)
