"""Markdown tables from result files, and their place in README.md.

A pure function of the files: the same files give the same bytes. Runs nothing, measures nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import QFiltersError, UsageError

_OPEN = re.compile(r"\s*<!-- results:(\S+) -->\s*")
_CLOSE = re.compile(r"\s*<!-- /results -->\s*")


def tables(results_root: str | Path) -> dict[str, str]:
    """One Markdown table per finished run under `results_root`, by the run's folder name.

    A finished run is a folder `<model>/<command>-<id>/` with a summary.json in it.
    """
    made: dict[str, str] = {}
    for path in sorted(Path(results_root).glob("*/*/summary.json")):
        name = path.parent.name
        if name in made:
            raise QFiltersError(f"{name} is the name of two runs, one of them {path.parent}")
        summary = _load(path)
        command = name.rpartition("-")[0]
        table = _ppl_table if command == "ppl" else _plain_table
        try:
            made[name] = table(summary["rows"]) + _origin(path.parent.parent.name, summary)
        except KeyError as error:
            raise QFiltersError(f"{path} has no key {error}: was it made by qfilters?") from error
    return made


def update_readme(text: str, tables: Mapping[str, str]) -> str:
    """Replace what stands between `<!-- results:NAME -->` and `<!-- /results -->` lines.

    Raises UsageError for a NAME that `tables` lacks, and for a marker without its partner.
    """
    lines: list[str] = []
    opened: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        start = _OPEN.fullmatch(line)
        if start and opened:
            raise UsageError(
                f"line {number}: results:{opened[1]} of line {opened[0]} is not closed"
            )
        if start:
            opened = (number, start[1])
            if start[1] not in tables:
                known = ", ".join(sorted(tables)) or "none"
                raise UsageError(f"line {number}: no results {start[1]!r}; there are: {known}")
            lines.append(line)
        elif _CLOSE.fullmatch(line):
            if not opened:
                raise UsageError(f"line {number}: <!-- /results --> closes nothing")
            lines += [tables[opened[1]].rstrip("\n"), "\n", line]
            opened = None
        elif not opened:
            lines.append(line)
    if opened:
        raise UsageError(
            f"line {opened[0]}: results:{opened[1]} is not closed by <!-- /results -->"
        )
    return "".join(lines)


def _ppl_table(rows: list[Mapping[str, Any]]) -> str:
    """Methods down, budgets across; an arm without a budget counts for every column."""
    budgets = sorted({row["budget"] for row in rows if row["budget"] is not None}) or [None]
    methods = dict.fromkeys(row["method"] for row in rows)
    cells: dict[tuple[str, Any], list[str]] = {}
    for row in rows:
        for budget in budgets if row["budget"] is None else [row["budget"]]:
            cells.setdefault((row["method"], budget), []).append(_perplexity(row))
    sizes = {
        method: {
            f"{r['n_sequences']} x {r['n_tokens'] // r['n_sequences']}"
            for r in rows
            if r["method"] == method
        }
        for method in methods
    }
    header = ["perplexity", *(f"budget {b}" if b else "no budget" for b in budgets), "n"]
    body = [
        [
            f"`{method}`",
            *("; ".join(cells.get((method, budget), ["-"])) for budget in budgets),
            "; ".join(sorted(sizes[method])),
        ]
        for method in methods
    ]
    note = (
        "Lower is better. [low, high]: 95 % interval, bootstrap over whole sequences. "
        "n: sequences x predicted tokens."
    )
    if any(not row["evicted"] and row["budget"] is not None for row in rows):
        note += " *: nothing was evicted."
    return f"{_markdown(header, body)}\n{note}\n"


def _perplexity(row: Mapping[str, Any]) -> str:
    star = "*" if row["budget"] is not None and not row["evicted"] else ""
    if row["low"] is None:
        return f"{row['perplexity']:.2f}{star} [1 sequence: no interval]"
    return f"{row['perplexity']:.2f}{star} [{row['low']:.2f}, {row['high']:.2f}]"


def _plain_table(rows: list[Mapping[str, Any]]) -> str:
    """Every single value of every row, as it is."""
    names = dict.fromkeys(
        name for row in rows for name, value in row.items() if not isinstance(value, list | dict)
    )
    return _markdown(list(names), [[_cell(row.get(name)) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(str(value).replace("|", "\\|").split())


def _markdown(header: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, body)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _origin(model: str, summary: Mapping[str, Any]) -> str:
    """The command that made the numbers, and where."""
    made = summary["qfilters"]
    versions = ", ".join(f"{k} {made[k]}" for k in ("qfilters", "mlx", "mlx_lm") if k in made)
    return f"\nModel {model}; {versions}. Made by `{shlex.join(made['command'])}`.\n"


def _load(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise QFiltersError(f"cannot read {path}: {error}") from error
