"""Scores from rows: cells with intervals, what they must be compared with, and the mean over tasks.

Pure: the same rows give the same summary. A cell is one method at one size on one task and length.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from ..stats import mean_interval, mean_of_means, paired_difference
from . import TASKS
from .base import FULL

CEILING = 50.0
"""Below it a task is too hard for the model to tell methods apart."""
ALL = "all"
"""The `task` of a paired difference that is a mean over tasks."""
READ = (
    *("task", "length", "method", "size", "score", "strict", "predicted_answer", "finish", "meta"),
    *("evicted", "window", "copy", "depths", "hits", "seconds", "suite", "budget", "n_context"),
    *("n_kept", "compression_ratio", "fraction_removed"),
)
"""The keys of a row that are read here, beside its `id`."""
_BINS = 5


def summarise(rows: Iterable[dict], iters: int = 10_000, seed: int = 0) -> list[dict]:
    """One dict per cell, in the order of the rows. Scores are percent.

    Keys: `task`, `length`, `method`, `size`, `n`; `score` with `low` and `high` (95 %, over
    samples); `strict`; `nulls` (empty answers) and `truncated` (cut at the
    limit); `skipped` (drawn samples that did not fit); `evicted` (samples where rows were evicted:
    the others show the full cache's answer); `ceiling` (the
    full cache's score), `discriminative` (ceiling at least 50), `retained` (score / ceiling),
    `control` (`random` at this size); `window` and `copy` (what a perfect reader of the last rows,
    and copying, would score); `minus_full` with its paired interval; `by_depth` (percent in five
    bins of the context, null where no answer lay); means of `budget`, `n_context`, `n_kept`,
    `compression_ratio`, `fraction_removed`; `seconds`. What is not known is null.
    """
    cells = _cells(rows)
    out = []
    for (task, length, method, size), found in cells.items():
        full = cells.get((task, length, "none", FULL))
        control = cells.get((task, length, "random", size))
        ceiling = full and _percent(_mean(full, "score"))
        score = _percent(_mean(found, "score"))
        low, high = mean_interval([r["score"] for r in found], iters, seed)
        made = {
            "task": task,
            "length": length,
            "method": method,
            "size": size,
            "n": len(found),
            "score": score,
            "low": _percent(low),
            "high": _percent(high),
            "strict": _percent(_mean(found, "strict")),
            "nulls": sum(not r["predicted_answer"].strip() for r in found),
            "truncated": sum(r["finish"] == "length" for r in found),
            "skipped": sum(r["meta"].get("skipped", 0) for r in found),
            "evicted": sum(r["evicted"] for r in found),
            "ceiling": ceiling,
            "discriminative": None if ceiling is None else ceiling >= CEILING,
            "retained": score / ceiling if ceiling else None,
            "control": control and _percent(_mean(control, "score")),
            "window": _percent(_mean(found, "window")),
            "copy": _percent(_mean(found, "copy")),
            **_difference("minus_full", *_common(found, full), iters, seed),
            "by_depth": _by_depth(found),
            "seconds": sum(r["seconds"] for r in found),
        }
        for name in ("budget", "n_context", "n_kept", "compression_ratio", "fraction_removed"):
            made[name] = _mean(found, name)
        out.append(made)
    return out


def means(rows: Sequence[dict], iters: int = 10_000, seed: int = 0) -> list[dict]:
    """Unweighted means over tasks, one dict per length, method and size.

    Keys: `length`, `method`, `size`, `tasks`, `score`, `low`, `high` (bootstrap of the samples
    within each task), `name` (`mean13` when all 13 tasks are there, else `mean`), `suite`
    (`RULER` only if every sample is the benchmark's own, else `RULER-style`), and the mean of each
    family that is there. Arms that lack a task others have are left out.
    """
    cells, arms = _cells(rows), defaultdict(dict)
    for (task, length, method, size), found in cells.items():
        arms[length, method, size][task] = found
    most = defaultdict(int)
    for (length, *_), tasks in arms.items():
        most[length] = max(most[length], len(tasks))
    out = []
    for (length, method, size), tasks in arms.items():
        if len(tasks) < most[length] or len(tasks) < 2:
            continue
        scores = [[r["score"] for r in found] for found in tasks.values()]
        low, high = mean_of_means(scores, iters, seed)
        families, percents = defaultdict(list), []
        for task, found in tasks.items():
            percents.append(_percent(_mean(found, "score")))
            families[TASKS[task].family].append(percents[-1])
        suites = {r["suite"] for found in tasks.values() for r in found}
        out.append(
            {
                "length": length,
                "method": method,
                "size": size,
                "name": "mean13" if len(tasks) == len(TASKS) else "mean",
                "suite": "RULER" if suites == {"RULER"} else "RULER-style",
                "tasks": list(tasks),
                "score": float(np.mean(percents)),
                "low": _percent(low),
                "high": _percent(high),
                **{name: float(np.mean(values)) for name, values in families.items()},
            }
        )
    return out


def pairs(rows: Iterable[dict], iters: int = 10_000, seed: int = 0) -> list[dict]:
    """Paired differences a - b of every two methods at one size, in points, with 95 % intervals.

    One row per task, and where two methods share several tasks one of `task` ALL: the unweighted
    mean over these, the samples resampled within each task.
    """
    groups = defaultdict(dict)
    for (task, length, method, size), found in _cells(rows).items():
        groups[length, size].setdefault(method, {})[task] = found
    out = []
    for (length, size), arms in groups.items():
        for (a, first), (b, second) in combinations(arms.items(), 2):
            where, apart = {"length": length, "size": size, "a": a, "b": b}, []
            for task in first:
                a_scores, b_scores = _common(first[task], second.get(task))
                if a_scores:
                    apart.append(np.subtract(a_scores, b_scores))
                    found = _difference("difference", a_scores, b_scores, iters, seed)
                    out.append({"task": task, **where, "n": len(a_scores), **found})
            if len(apart) > 1:
                ends = map(_percent, mean_of_means(apart, iters, seed))
                mean = _percent(np.mean([np.mean(found) for found in apart]))
                found = dict(zip(_names("difference"), (mean, *ends), strict=True))
                out.append({"task": ALL, **where, "n": sum(map(len, apart)), **found})
    return out


def _by_depth(rows: list[dict]) -> list[float | None]:
    """Percent found in five bins of the context, from its start; None where nothing lay.

    Every gold piece counts where it lies; an answer with one place counts whole. In vt the first
    bins hold the solved example, so nothing lies there.
    """
    bins = [[] for _ in range(_BINS)]
    for row in rows:
        depths = row["depths"]
        found = row["hits"] if len(depths) == len(row["hits"]) else [row["score"]] * len(depths)
        for depth, hit in zip(depths, found, strict=True):
            bins[min(int(depth * _BINS), _BINS - 1)].append(hit)
    return [_percent(np.mean(found)) if found else None for found in bins]


def _cells(rows: Iterable[dict]) -> dict[tuple, list[dict]]:
    cells = defaultdict(list)
    for row in rows:
        cells[row["task"], row["length"], row["method"], row["size"]].append(row)
    return cells


def _mean(rows, name):
    values = [r[name] for r in rows if r[name] is not None]
    return float(np.mean(values)) if values else None


def _percent(share):
    return None if share is None else 100 * float(share)


def _common(first: list[dict], second: list[dict] | None) -> tuple[list[float], list[float]]:
    """Scores of the samples that both arms answered."""
    a = {r["id"]: r["score"] for r in first}
    b = {r["id"]: r["score"] for r in second or ()}
    common = [i for i in a if i in b]
    return [a[i] for i in common], [b[i] for i in common]


def _difference(name: str, a: list[float], b: list[float], iters: int, seed: int) -> dict:
    """Mean difference with its interval, in points; null where nothing is common."""
    if not a:
        return dict.fromkeys(_names(name))
    found = paired_difference(a, b, iters, seed)
    return dict(zip(_names(name), map(_percent, found), strict=True))


def _names(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"
