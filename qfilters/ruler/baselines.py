"""What a reader without understanding would score: one that sees only the end, one that copies.

A method is worth something on a task where it beats them.
"""

from __future__ import annotations

import re
from collections import Counter

from .base import Sample

COPIED = 25
"""List entries that fit in the 120 tokens of an answer to cwe."""


def window(sample: Sample, tail: str) -> float:
    """Score, 0 to 1, of a perfect reader who sees only `tail`, the last tokens of the context.

    Where something is to be found: the share of answers that are in the tail (in QA: any). Where
    words are to be counted: the expected share when the tail is counted exactly and ties are
    broken by chance.
    """
    if sample.task not in ("cwe", "fwe"):
        found = [answer in tail for answer in sample.answers]
        return float(any(found)) if sample.task.startswith("qa") else sum(found) / len(found)
    seen = sample.context[-len(tail) :] if tail else ""
    text = _counted(sample.context)
    words = text if len(seen) >= len(text) else seen.split(None, 1)[-1] if seen.strip() else ""
    counts = Counter(w for w in words.split() if re.search("[a-z]", w))
    return _expected(counts, sample.answers)


def copy(sample: Sample) -> float | None:
    """Expected score of copying `COPIED` list entries in a row, over all starts; cwe only."""
    if sample.task != "cwe":
        return None
    words = _counted(sample.context).split()[1::2]
    size = min(COPIED, len(words))
    gold = set(sample.answers)
    starts = range(len(words) - size + 1)
    found = sum(len(gold.intersection(words[i : i + size])) for i in starts)
    return found / len(starts) / len(gold)


def _expected(counts: Counter[str], answers: tuple[str, ...]) -> float:
    """Expected share of the answers among as many most frequent words, ties broken by chance."""
    wanted = len(answers)
    ranked = sorted(counts.values(), reverse=True)
    limit = ranked[wanted - 1] if len(ranked) >= wanted else 0
    above = sum(count > limit for count in ranked)
    tied = ranked.count(limit)
    chance = (wanted - above) / tied if tied else 0
    share = [1.0 if counts[w] > limit else chance * (counts[w] == limit > 0) for w in answers]
    return sum(share) / wanted


def _counted(context: str) -> str:
    """The part of a context that is to be counted: the last numbered list, or the last text."""
    starts = [match.start(1) for match in re.finditer(r"(?:^|\s)(1\. )", context)]
    return context[starts[-1] :] if starts else context.strip().rsplit("\n", 1)[-1]
