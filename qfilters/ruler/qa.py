"""Questions over numbered documents: one document answers (qa_1), or two together (qa_2).

The documents are invented people (people.py), or those of a `QASource`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from random import Random

from ..errors import UsageError
from .base import VERSION, Grow, Options, Parts, Plan, QAQuestion, QASource, Spec, Task
from .people import Document, Drawn, one_hop, two_hops
from .prose import split_sentences

# Sample i of a real source takes question i of a random order; where that does not fit, question
# i + STRIDE, and so on. So no two of the first STRIDE samples share one.
STRIDE = 1000


def _build(
    invent: Callable[[Random, Random], Drawn], spec: Spec, options: Options
) -> Iterator[Plan]:
    source = next((s for s in options.qa if s.task == spec.task), None)
    if source is None:
        yield _plan(spec, invent(spec.rng(), spec.rng("filler")), "synthetic", {})
        return
    order = _order(len(source.questions), f"{VERSION}/{spec.task}/{spec.length}/{spec.seed}")
    for position in range(spec.index % len(order), len(order), STRIDE):
        question = source.questions[order[position]]
        meta = {"question": order[position], "article": question.article}
        yield _plan(spec, _real(spec, source, question), source.name, meta)


def _plan(spec: Spec, drawn: Drawn, name: str, meta: dict) -> Plan:
    """Every document has a random place of its own, so one more leaves the others in order."""
    places = spec.rng("places")
    core = [(places.random(), document) for document in (*drawn.gold, *drawn.near)]
    fillers = Grow((places.random(), document) for document in drawn.fillers)
    question = (
        f"\nAnswer the question from the documents above. {_SHORT}\n\nQuestion: {drawn.question}"
    )

    def render(k: int) -> Parts:
        context = f"Answer the question at the end from the following documents. {_SHORT}\n"
        gold = {}
        shown = sorted(core + _cut(fillers, k), key=lambda placed: placed[0])
        for number, (_, document) in enumerate(shown, start=1):
            context += f"\nDocument {number}:\n"
            gold[document] = len(context)
            context += f"{document.title}{' '.join(document.sentences)}\n"
        starts = tuple(gold[document] for document in drawn.gold)
        return Parts(context, question, "Answer:", drawn.answers, starts, meta)

    return Plan(render, low=0, qa=name)


def _cut(fillers: Grow, k: int) -> list[tuple[float, Document]]:
    """Documents of k sentences together; the last one may be shown in part."""
    made: list[tuple[float, Document]] = []
    while k > 0:
        place, document = fillers.take(len(made) + 1)[-1]
        made.append((place, document._replace(sentences=document.sentences[:k])))
        k -= len(document.sentences)
    return made


@functools.lru_cache(maxsize=4)
def _order(n: int, seed: str) -> tuple[int, ...]:
    return tuple(Random(f"{seed}/questions").sample(range(n), n))


def _real(spec: Spec, source: QASource, question: QAQuestion) -> Drawn:
    """HotpotQA's ten documents all belong to the question; SQuAD's article only comes first."""
    rng = spec.rng("filler")
    near = rng.sample(question.near, len(question.near))
    core, first = (near, []) if spec.task == "qa_2" else ([], near)
    gold, beside = ([Document("", (text,)) for text in texts] for texts in (question.gold, core))
    fillers = _others(rng, source, first, {*question.gold, *question.near})
    return Drawn(question.question, question.answers, gold, beside, fillers)


def _others(rng: Random, source: QASource, first: list[str], known: set[str]) -> Iterator[Document]:
    yield from map(_document, first)
    for i in rng.sample(range(len(source.documents)), len(source.documents)):
        if source.documents[i] not in known:
            yield _document(source.documents[i])
    raise UsageError(
        f"{source.name} has only {len(source.documents)} documents, too few for this length: "
        "use a shorter one"
    )


def _document(text: str) -> Document:
    title, line, body = text.rpartition("\n")
    return Document(title + line, tuple(split_sentences(body)))


_SHORT = "Give only the answer and nothing else."

TASKS = (
    Task("qa_1", "qa", 32, "part", 1024, functools.partial(_build, one_hop)),
    Task("qa_2", "qa", 32, "part", 1024, functools.partial(_build, two_hops)),
)
