"""What runs of `inspect` and `ruler` are shown as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from ..figures import curves, heat_map
from ..inspection_plots import pictures
from ..inspection_tables import measured_tables
from ..pictures import Picture
from ..ruler.summary import FULL
from ..ruler.table import mean_table, task_tables
from .runs import Run
from .tables import Table, plain_table

Summary = Mapping[str, Any]


def inspect_tables(summary: Summary) -> list[Table]:
    """What was measured on a text or against other filters; else the layers of the filters."""
    found = [Table(columns, rows, title) for title, columns, rows in measured_tables(summary)]
    return found or [plain_table(summary["rows"])]


def inspect_pictures(run: Run) -> list[Picture]:
    """The figures of `inspect --plots`."""
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
    last = len(found) - 1
    return [Table(c, r, t, note if i == last else "") for i, (t, c, r) in enumerate(found)]


def ruler_pictures(run: Run) -> list[Picture]:
    """Score against compression, per task and length; where needles were found, per length."""
    groups: dict[tuple, list] = {}
    needles: dict[int, dict] = {}
    for row in run.summary["rows"]:
        groups.setdefault((row["task"], row["length"]), []).append(row)
        if row["task"].startswith("niah"):
            arm = f"{row['method']} {row['size']}"
            needles.setdefault(row["length"], {}).setdefault(arm, []).append(row)
    made = [p for where, rows in groups.items() for p in _accuracy(where, rows)]
    for length, arms in needles.items():
        bins = len(next(iter(arms.values()))[0]["by_depth"])
        edges = [100 * i // bins for i in range(bins + 1)]
        tasks = ", ".join(dict.fromkeys(row["task"] for rows in arms.values() for row in rows))
        data = {
            "values": [
                [_mean(r["by_depth"][i] for r in rows) for i in range(bins)]
                for rows in arms.values()
            ],
            "x": "depth (%), 0 is the start",
            "y": "",
            "x_ticks": [f"{a}-{b}" for a, b in pairwise(edges)],
            "y_ticks": list(arms),
            "unit": "found (%)",
            "limits": (0, 100),
        }
        n = next(iter(arms.values()))[0]["n"]
        title = f"Needles found by depth at {length} tokens, n {n} per task ({tasks})"
        made.append(Picture(f"needles_{length}", title, heat_map, data))
    return made


def _accuracy(where: tuple, rows: list) -> Iterable[Picture]:
    series: dict[str, list] = {}
    for row in rows:
        if row["size"] != FULL:
            point = (row["compression_ratio"], row["score"], row["low"], row["high"])
            series.setdefault(row["method"], []).append(point)
    if series:
        task, length = where
        ceiling = rows[0]["ceiling"]
        data = {
            "series": {method: sorted(points) for method, points in series.items()},
            "x": "compression ratio (context / rows kept)",
            "y": "score (%)",
            "log_x": True,
            "reference": None if ceiling is None else ("full cache", ceiling),
        }
        title = f"{task} at {length} tokens, n {rows[0]['n']}"
        yield Picture(f"accuracy_{task}_{length}", title, curves, data)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
