"""What a perplexity run is shown as: methods down, budgets across, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..figures import curves
from ..pictures import Picture
from ..stats import bootstrap_perplexity, gap_closed
from .runs import Run
from .tables import Table, interval

FALLBACK = ("qfilters_keysvd", "qfilters_keysvd(sign=-1)")
BETTER = "`qfilters_keysvd`, the better sign of the two, known afterwards"

Rows = Sequence[Mapping[str, Any]]


def ppl_tables(summary: Mapping[str, Any]) -> list[Table]:
    """One table; an arm without a budget counts for every column.

    Beside every perplexity: its ratio to the full cache's, where that was measured, and the share
    of the gap between fallback and full cache that the arm closes, where both were.
    """
    rows = summary["rows"]
    budgets = sorted({row["budget"] for row in rows if row["budget"] is not None}) or [None]
    arms: dict[str, dict] = {}
    for row in rows:
        for budget in budgets if row["budget"] is None else [row["budget"]]:
            arms.setdefault(f"`{row['method']}`", {}).setdefault(budget, []).append(row)
    full = [row for row in rows if row["method"] == "none"][:1]
    fallback = {row["budget"]: row for row in rows if row["method"] == FALLBACK[0]}
    if better := _better_sign(rows):
        arms[BETTER] = {budget: [row] for budget, row in better.items()}
    columns = ["perplexity"]
    for budget in budgets:
        columns.append(f"budget {budget}" if budget else "no budget")
        columns += ["/ full"] * bool(full and budget)
        columns += ["gap closed"] * bool(full and fallback.get(budget))
    body = []
    for label, own in arms.items():
        line = [label]
        for budget in budgets:
            here = own.get(budget, [])
            line.append("; ".join(map(_perplexity, here)) or "-")
            if full and budget:
                line.append("; ".join(_ratio(row, full[0]) for row in here) or "-")
            if full and budget in fallback:
                gaps = (_gap(row, fallback[budget], full[0]) for row in here)
                line.append("; ".join(gaps) or "-")
        body.append([*line, "; ".join(sorted({_size(r) for rows in own.values() for r in rows}))])
    return [Table([*columns, "n"], body, note=_note(rows, full, fallback))]


def ppl_pictures(run: Run) -> list[Picture]:
    """Perplexity against the budget; nothing where there is only one budget or none."""
    rows = run.summary["rows"]
    series: dict[str, list] = {}
    for row in rows:
        if row["budget"] is not None:
            point = (row["budget"], row["perplexity"], row["low"], row["high"])
            series.setdefault(row["method"], []).append(point)
    if len({point[0] for points in series.values() for point in points}) < 2:
        return []
    full = next((row["perplexity"] for row in rows if row["method"] == "none"), None)
    data = {
        "series": {method: sorted(points) for method, points in series.items()},
        "x": "budget (rows per KV head)",
        "y": "perplexity",
        "log_x": True,
        "reference": None if full is None else ("full cache", full),
    }
    title = f"Perplexity of {run.model} under a budget (n {_size(rows[0])} tokens)"
    return [Picture("perplexity", title, curves, data)]


def _better_sign(rows: Rows) -> dict:
    """At every budget the arm of less perplexity, where both signs were measured."""
    found: dict[Any, list] = {}
    for row in rows:
        if row["method"] in FALLBACK:
            found.setdefault(row["budget"], []).append(row)
    pairs = {budget: both for budget, both in found.items() if len(both) == len(FALLBACK)}
    return {b: min(both, key=lambda row: row["perplexity"]) for b, both in pairs.items()}


def _note(rows: Rows, full: Rows, fallback: Mapping) -> str:
    note = (
        "Lower is better. [low, high]: 95 % interval, bootstrap over whole sequences. "
        "n: sequences x predicted tokens."
    )
    if any(not row["evicted"] and row["budget"] is not None for row in rows):
        note += " *: nothing was evicted."
    if full and any(row["budget"] for row in rows):
        note += " / full: ratio to `none`, the same sequences drawn for both."
    if full and fallback:
        note += (
            " gap closed: (fallback - method) / (fallback - full) in perplexity, fallback = "
            "`qfilters_keysvd` with sign 1."
        )
    return note


def _perplexity(row: Mapping[str, Any]) -> str:
    star = "*" if row["budget"] is not None and not row["evicted"] else ""
    ends = interval(row["low"], row["high"], 2) or " [1 sequence: no interval]"
    return f"{row['perplexity']:.2f}{star}{ends}"


def _ratio(row: Mapping[str, Any], full: Mapping[str, Any]) -> str:
    if row is full:
        return "1"
    apart = [a - b for a, b in zip(row["nll_sums"], full["nll_sums"], strict=True)]
    ends = bootstrap_perplexity(apart, _tokens(row))
    return f"{row['perplexity'] / full['perplexity']:.3f}{interval(*ends, 3)}"


def _gap(row: Mapping[str, Any], worse: Mapping[str, Any], full: Mapping[str, Any]) -> str:
    if row is full:
        return "100%"
    three = (row["nll_sums"], worse["nll_sums"], full["nll_sums"])
    share, low, high = gap_closed(*three, _tokens(row))
    if share is None:
        return "no gap"
    ends = "" if low is None else f" [{low:.0%}, {high:.0%}]"
    return f"{share:.0%}{ends}"


def _tokens(row: Mapping[str, Any]) -> list[int]:
    """Predicted tokens of every sequence; all rows of a run are equally long."""
    return [row["n_tokens"] // row["n_sequences"]] * row["n_sequences"]


def _size(row: Mapping[str, Any]) -> str:
    return f"{row['n_sequences']} x {row['n_tokens'] // row['n_sequences']}"
