"""What a perplexity run is shown as: methods down, a table per budget, and curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any

from ..figures import curves
from ..pictures import Picture
from ..stats import gap_closed, mean_t
from .runs import Run
from .tables import Table, interval

METHOD = "qfilters"
FALLBACK = ("qfilters_keysvd", "qfilters_keysvd(sign=-1)")
BETTER = "`qfilters_keysvd`, the better sign of the two, known afterwards"

Row = Mapping[str, Any]
Rows = Sequence[Row]

FULL, APART, GAP = "/ full", f"NLL - `{METHOD}`", "gap closed"
MEANING = {
    FULL: " / full: ratio to `none`, t interval of its logarithm over sequences.",
    APART: f" NLL - `{METHOD}`: nat per token, below 0 is better; t interval over sequences.",
    GAP: " gap closed: (fallback - method) / (fallback - full) in perplexity, fallback = "
    f"`{FALLBACK[0]}` with sign 1.",
}


def ppl_tables(summary: Mapping[str, Any]) -> list[Table]:
    """A table per budget; an arm without one stands in all of them.

    Beside every perplexity, where what it is held against was measured: its ratio to the full
    cache's, the paired difference of NLL to `qfilters` at the same budget, and the share of the
    gap between fallback and full cache that the arm closes.
    """
    rows = summary["rows"]
    budgets = sorted({row["budget"] for row in rows if row["budget"] is not None}) or [None]
    made = [_budget_table(rows, budget) for budget in budgets]
    return [*made[:-1], replace(made[-1], note=_note(rows, made))]


def _budget_table(rows: Rows, budget: int | None) -> Table:
    here = [row for row in rows if row["budget"] in (None, budget)]
    arms = {f"`{row['method']}`": row for row in here}
    full, ours, worse = (arms.get(f"`{name}`") for name in ("none", METHOD, FALLBACK[0]))
    both = [row for row in here if row["method"] in FALLBACK]
    if len(both) == len(FALLBACK):
        arms[BETTER] = min(both, key=lambda row: row["perplexity"])
    columns: dict[str, Callable[[Row], str]] = {"perplexity": _perplexity}
    if full and budget:
        columns[FULL] = lambda row: _paired(row, full, lambda nat: f"{exp(nat):.3f}", "1")
    if ours and len(arms) > 1:
        columns[APART] = lambda row: _paired(row, ours, "{:+.4f}".format, "0")
    if full and worse:
        columns[GAP] = lambda row: _gap(row, worse, full)
    sizes = "; ".join(sorted({_size(row) for row in here}))
    title = f"budget {budget}, n {sizes}" if budget else f"no budget, n {sizes}"
    body = [[label, *(show(row) for show in columns.values())] for label, row in arms.items()]
    return Table(["method", *columns], body, title)


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


def _note(rows: Rows, made: Sequence[Table]) -> str:
    note = (
        "Lower is better. [low, high]: 95 % interval, bootstrap over whole sequences. "
        "n: sequences x predicted tokens."
    )
    if any(not row["evicted"] and row["budget"] is not None for row in rows):
        note += " *: nothing was evicted."
    shown = {name for table in made for name in table.columns}
    return note + "".join(text for name, text in MEANING.items() if name in shown)


def _perplexity(row: Row) -> str:
    star = "*" if row["budget"] is not None and not row["evicted"] else ""
    ends = interval(row["low"], row["high"], 2) or " [1 sequence: no interval]"
    return f"{row['perplexity']:.2f}{star}{ends}"


def nats_apart(ours: Row, other: Row) -> tuple[float, float | None, float | None]:
    """Nat per token more than `other`, mean over sequences of one length, with its t interval."""
    size = ours["n_tokens"] / ours["n_sequences"]
    pairs = zip(ours["nll_sums"], other["nll_sums"], strict=True)
    return mean_t([(a - b) / size for a, b in pairs])


def _paired(row: Row, other: Row, show: Callable[[float], str], same: str) -> str:
    if row is other:
        return same
    apart, low, high = nats_apart(row, other)
    ends = "" if low is None else f" [{show(low)}, {show(high)}]"
    return f"{show(apart)}{ends}"


def _gap(row: Row, worse: Row, full: Row) -> str:
    if row is full:
        return "100%"
    three = (row["nll_sums"], worse["nll_sums"], full["nll_sums"])
    share, low, high = gap_closed(*three, _tokens(row))
    if share is None:
        return "no gap"
    ends = "" if low is None or row is worse else f" [{low:.0%}, {high:.0%}]"
    return f"{share:.0%}{ends}"


def _tokens(row: Row) -> list[int]:
    """Predicted tokens of every sequence; all rows of a run are equally long."""
    return [row["n_tokens"] // row["n_sequences"]] * row["n_sequences"]


def _size(row: Row) -> str:
    return f"{row['n_sequences']} x {row['n_tokens'] // row['n_sequences']}"
