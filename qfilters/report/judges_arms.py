"""The rules by which claims about perplexity and scores of arms are judged: see judges.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

from ..ruler.summary import ALL
from .ppl import nats_apart
from .verdicts import CannotJudge, Judge, Judged, Summary, some, verdict

# Much worse: this many times the perplexity.
MUCH = 1.1
# Points of a score that count as none.
NOTHING = 10


def below(*others: str, ours: str = "qfilters") -> Judge:
    """Less perplexity than all `others` at every budget: the paired intervals lie below 0.

    The contrary: some interval lies above 0.
    """

    def judge(summary: Summary) -> Judged:
        arms = {(row["method"], row["budget"]): row for row in summary["rows"]}
        budgets = some([b for method, b in arms if method == ours], f"`{ours}`")
        pairs = [(other, budget) for other in others for budget in budgets]
        if missing := [f"`{other}` at budget {b}" for other, b in pairs if (other, b) not in arms]:
            raise CannotJudge(f"the run lacks {', '.join(missing)}")
        apart = {f"{m} {b}": nats_apart(arms[ours, b], arms[m, b]) for m, b in pairs}
        texts = arms[ours, budgets[0]]["n_sequences"]
        return _everywhere(apart, 4, f"nat per token, {texts} texts, to", less=True)

    return judge


def not_below(other: str) -> Judge:
    """The contrary of `below`: at some budget the interval lies above 0."""

    def judge(summary: Summary) -> Judged:
        holds, numbers = below(other)(summary)
        return None if holds is None else not holds, numbers

    return judge


def recent(summary: Summary) -> Judged:
    """Without recent rows perplexity is `MUCH` times that with any number of them, by intervals."""
    arms = {row["recent"]: row for row in summary["rows"] if row["recent"] is not None}
    others = {rows: arm for rows, arm in arms.items() if rows}
    if 0 not in arms or not others:
        raise CannotJudge("the run lacks an arm without recent rows, or one with")
    apart = {rows: nats_apart(arms[0], arm) for rows, arm in others.items()}
    if any(low is None for _, low, _ in apart.values()):
        return None, "one text, or equal differences: no interval"
    ratios = {rows: tuple(map(exp, found)) for rows, found in apart.items()}
    found = "; ".join(
        f"{rows}: {r:.2f} [{lo:.2f}, {hi:.2f}]" for rows, (r, lo, hi) in ratios.items()
    )
    worse = all(low > MUCH for _, low, _ in ratios.values())
    near = any(high < MUCH for *_, high in ratios.values())
    found = f"times the perplexity with recent {found}; {arms[0]['n_sequences']} texts"
    return verdict(worse, near), f"{found}, bound {MUCH}"


def quarter(summary: Summary) -> Judged:
    """Recent rows of a quarter of the budget give less perplexity than any other number."""
    arms = {row["recent"]: row for row in summary["rows"] if row["recent"] is not None}
    best = next((row for rows, row in arms.items() if 4 * rows == row["budget"]), None)
    if best is None or len(arms) < 2:
        raise CannotJudge("the run lacks an arm with a quarter of the budget, or another")
    apart = {rows: nats_apart(best, row) for rows, row in arms.items() if row is not best}
    what = f"nat per token, {best['n_sequences']} texts, to recent"
    return _everywhere(apart, 4, what, less=True)


def reach(summary: Summary) -> Judged:
    """The second variant of `qfilters` gives less perplexity than the first at every budget."""
    arms: dict[int, list] = {}
    for row in summary["rows"]:
        if row["method"].split()[0] == "qfilters":
            arms.setdefault(row["budget"], []).append(row)
    pairs = {f"budget {b}": two for b, two in arms.items() if len(two) == 2}
    some(pairs, "`qfilters` with two filters")
    apart = {budget: nats_apart(two[1], two[0]) for budget, two in pairs.items()}
    texts = next(iter(pairs.values()))[0]["n_sequences"]
    return _everywhere(apart, 4, f"nat per token, {texts} texts,", less=True)


def ahead(other: str) -> Judge:
    """A higher mean score over tasks than `other` at every size: paired intervals lie above 0.

    The contrary: some interval lies below 0.
    """

    def judge(summary: Summary) -> Judged:
        apart = {}
        for row in summary["pairs"]:
            if row["task"] == ALL and {row["a"], row["b"]} == {"qfilters", other}:
                ends = [row[f"difference{end}"] for end in ("", "_low", "_high")]
                if row["b"] == "qfilters" and None not in ends:
                    ends = [-ends[0], -ends[2], -ends[1]]
                apart[row["size"]] = ends
        some(apart, f"`qfilters` and `{other}` on several tasks")
        return _everywhere(apart, 1, "points at size", less=False)

    return judge


def _everywhere(apart: Mapping[Any, Sequence], digits: int, what: str, less: bool) -> Judged:
    """Whether all of (mean, low, high) lie below 0, or above it; one beyond: the contrary."""
    # What rounding left of an exact 0 is no side, and is not written as "-0.0".
    known = {
        n: [round(x, 9) + 0.0 for x in found] for n, found in apart.items() if None not in found
    }
    form = f"{{:+.{digits}f}} [{{:+.{digits}f}}, {{:+.{digits}f}}]"
    numbers = "; ".join(f"{name}: {form.format(*found)}" for name, found in known.items())
    under = [high < 0 for *_, high in known.values()]
    over = [low > 0 for _, low, _ in known.values()]
    wanted, contrary = (under, over) if less else (over, under)
    if len(known) < len(apart) and not any(contrary):
        return None, "one sample, or equal differences: no interval"
    return verdict(all(wanted), any(contrary)), f"{what} {numbers}"


def zero(task: str) -> Judge:
    """The filter's interval ends below `NOTHING` points wherever it evicts and the model can.

    The contrary: some interval lies above 0, whatever the full cache scores. To confirm it takes 35
    prompts without a hit.
    """

    def judge(summary: Summary) -> Judged:
        rows = [r for r in summary["rows"] if r["task"] == task]
        rows = some(
            [r for r in rows if r["method"].split()[0] == "qfilters"], f"`qfilters` on {task}"
        )
        rows = some([row for row in rows if row["evicted"] > 0], f"{task} with rows evicted")
        if any(row["low"] is None for row in rows):
            return None, "one prompt has no interval"
        numbers = ", ".join(
            f"{r['length']} at {r['size']}: {r['score']:.0f} [{r['low']:.0f}, {r['high']:.0f}]"
            for r in rows
        )
        found = any(row["low"] > 0 for row in rows)
        if not found and not all(row["discriminative"] for row in rows):
            ceilings = ", ".join(f"{c:.0f}" for c in sorted({r["ceiling"] for r in rows}))
            raise CannotJudge(f"the full cache fails too: ceiling {ceilings} %, below 50")
        none = all(row["high"] < NOTHING for row in rows)
        return verdict(none, found), f"% {numbers}; bound {NOTHING}"

    return judge
