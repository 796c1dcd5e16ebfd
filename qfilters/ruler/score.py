"""RULER's scores, its control (`strict`) and its errors: gold strings looked for in replies."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def postprocess(text: str) -> str:
    """Strip, replace every control character by a newline, strip again; as RULER does."""
    return _CONTROL.sub("\n", text.strip()).strip()


def hits(answers: Sequence[str], prediction: str) -> list[int]:
    """For every answer, 1 if it is in the reply as a substring, whatever the case, else 0."""
    said = postprocess(_checked(answers, prediction)).lower()
    return [int(answer.lower() in said) for answer in answers]


def score(metric: str, answers: Sequence[str], prediction: str) -> float:
    """RULER's score of one reply, 0 to 1. metric `all`: share of answers found; `part`: any."""
    return _combined(metric, hits(answers, prediction))


def strict(metric: str, answers: Sequence[str], prediction: str) -> float:
    """As `score`, but an answer inside a longer word is none: "no" is not in "nothing"."""
    said = postprocess(_checked(answers, prediction)).lower()
    found = [re.search(rf"(?<!\w){re.escape(answer.lower())}(?!\w)", said) for answer in answers]
    return _combined(metric, [int(match is not None) for match in found])


def match_all(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """RULER's `string_match_all` of a corpus: mean share of references found, 0 to 100."""
    return _corpus("all", predictions, references)


def match_part(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """RULER's `string_match_part` of a corpus: share of replies with any reference, 0 to 100."""
    return _corpus("part", predictions, references)


def extra_names(answers: Sequence[str], prediction: str) -> int:
    """Different words of five capitals in a reply to vt that are none of the answers.

    The score does not punish them: a reply that lists every variable is full marks.
    """
    return len(set(re.findall(r"\b[A-Z]{5}\b", prediction)) - set(answers))


def _corpus(metric: str, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    if isinstance(predictions, str) or isinstance(references, str):
        raise ValueError("predictions and references are lists, one entry per sample, not a string")
    if not len(predictions) or len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} predictions and {len(references)} references: give as many, "
            "and one at least"
        )
    scores = [score(metric, *pair) for pair in zip(references, predictions, strict=True)]
    return round(100 * sum(scores) / len(scores), 2)


def _combined(metric: str, found: list[int]) -> float:
    if metric not in ("all", "part"):
        raise ValueError(f"metric {metric!r} is unknown: all or part")
    return sum(found) / len(found) if metric == "all" else float(max(found))


def _checked(answers: Sequence[str], prediction: str) -> str:
    if isinstance(answers, str) or not len(answers) or not all(answers):
        raise ValueError(f"answers are a list of texts, none of them empty, not {answers!r}")
    if not isinstance(prediction, str):
        raise ValueError(f"a prediction is a text, not {prediction!r}")
    return prediction
