"""What runs of `inspect`, `ruler` and `bench decode` are shown as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..decode_shown import decode_cells, decode_pictures
from ..inspection_plots import pictures
from ..inspection_tables import measured_tables
from ..pictures import Picture
from ..ruler import plots as ruler_plots
from ..ruler.table import QFILTERS, mean_table, task_tables
from .runs import Run
from .tables import Table, plain_table

Summary = Mapping[str, Any]


def inspect_tables(summary: Summary) -> list[Table]:
    """What was measured on a text or against other filters; else the layers of the filters."""
    found = [Table(columns, rows, title) for title, columns, rows in measured_tables(summary)]
    return found or [plain_table(summary["rows"])]


def inspect_pictures(run: Run) -> list[Picture]:
    """The figures of `inspect --figures`."""
    return list(pictures(run.summary, run.model))


def ruler_tables(summary: Summary) -> list[Table]:
    """One table per task and length, and the means."""
    found = task_tables(summary)
    if mean := mean_table(summary):
        found.append(mean)
    note = (
        "Percent of the answers found, higher is better. [low, high]: 95 % interval over prompts. "
        "Sizes are rows kept, or (2x) context over rows kept. Last rows, read perfectly: what a "
        "reader who finds everything in the last rows of that number would score."
    )
    if any(f"- {QFILTERS}" in columns for _, columns, _ in found):
        note += f" - {QFILTERS}: mean difference to it at the same size, on the same prompts."
    last = len(found) - 1
    return [Table(c, r, t, note if i == last else "") for i, (t, c, r) in enumerate(found)]


def ruler_pictures(run: Run) -> list[Picture]:
    """The figures of `ruler --figures`."""
    return list(ruler_plots.pictures(run.summary["rows"]))


def decode_tables(summary: Summary) -> list[Table]:
    """The table of `bench decode`."""
    note = (
        "Speeds and ratios are medians over rounds in which all took turns, [low, high] 95 % "
        "bootstrap intervals of the ratios: x first to the first row of the same context, x "
        "rotating to mlx-lm's RotatingKVCache with as many rows. TTFT: one prefill each."
    )
    return [Table(*decode_cells(summary["rows"]), note=note)]


def decode_pictures_of(run: Run) -> list[Picture]:
    """The figures of `bench decode`."""
    return list(decode_pictures(run.summary["rows"]))
