"""Tables of text, and how they are written as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Cells of text; a stretch between backticks is code. The first column names the rows.

    `words`: the other columns are words too, not numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    words: bool = False


def markdown(table: Table) -> str:
    """The table as Markdown: title, cells, note."""
    lines = [list(table.columns), ["---"] * len(table.columns), *map(list, table.rows)]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    title = f"**{table.title}**\n\n" if table.title else ""
    return f"{title}{text}" + (f"\n{table.note}\n" if table.note else "")


def plain_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Every single value of every row, as it is; lists and mappings are left out."""
    names = dict.fromkeys(
        name for row in rows for name, value in row.items() if not isinstance(value, list | dict)
    )
    return Table(list(names), [[cell(row.get(name)) for name in names] for row in rows], title)


def cell(value: Any) -> str:
    """A value in a few characters, safe inside a Markdown table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(str(value).replace("|", "\\|").split())


def interval(low: float | None, high: float | None, digits: int) -> str:
    """` [low, high]`, nothing where there is no interval."""
    return "" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
