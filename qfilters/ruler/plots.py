"""Pictures of a RULER run, from its cells: score by compression, and where needles were found."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..figures import curves, heat_map
from ..pictures import Picture
from ..results import arm_name
from . import TASKS
from .base import FULL

Cells = list[Mapping[str, Any]]


def pictures(cells: Cells) -> Iterator[Picture]:
    """Every figure that the cells, as `summarise` makes them, have numbers for.

    Score against compression, per task and length; needles found by arm and depth, per length, and
    where there are several lengths by depth and length, per arm.
    """
    for (task, length), here in _grouped(cells, "task", "length").items():
        yield from _accuracy(task, length, here)
    needles = [cell for cell in cells if TASKS[cell["task"]].family == "retrieval"]
    lengths = _grouped(needles, "length")
    for (length,), here in lengths.items():
        yield _by_arm(length, here)
    if len(lengths) > 1:
        for (method, size), here in _grouped(needles, "method", "size").items():
            yield _by_length(method, size, here)


def _accuracy(task: str, length: int, cells: Cells) -> Iterator[Picture]:
    series = defaultdict(list)
    for cell in cells:
        if cell["size"] != FULL:
            point = (cell["compression_ratio"], cell["score"], cell["low"], cell["high"])
            series[cell["method"]].append(point)
    if series:
        ceiling = cells[0]["ceiling"]
        data = {
            "series": {method: sorted(points) for method, points in series.items()},
            "x": "compression ratio (context / rows kept)",
            "y": "score (%)",
            "log_x": True,
            "reference": None if ceiling is None else ("full cache", ceiling),
        }
        title = f"{task} at {length} tokens, n {cells[0]['n']}"
        if cells[0]["discriminative"] is False:
            title += ": ceiling below 50, too low to tell methods apart"
        yield Picture(f"accuracy_{task}_{length}", title, curves, data)


def _by_arm(length: int, cells: Cells) -> Picture:
    arms = _grouped(cells, "method", "size")
    data = {
        "values": [_depths(here) for here in arms.values()],
        "x": "depth (%), 0 is the start",
        "y": "",
        "x_ticks": _bins(cells),
        "y_ticks": [f"{method} {size}" for method, size in arms],
        "unit": "found (%)",
        "limits": (0, 100),
    }
    title = f"Needles found by depth at {length} tokens, {_what(cells)}"
    return Picture(f"needles_{length}", title, heat_map, data)


def _by_length(method: str, size: str, cells: Cells) -> Picture:
    columns = {length: _depths(here) for (length,), here in _grouped(cells, "length").items()}
    data = {
        "values": list(zip(*columns.values(), strict=True)),
        "x": "length (tokens)",
        "y": "depth (%), 0 is the start",
        "x_ticks": list(columns),
        "y_ticks": _bins(cells),
        "unit": "found (%)",
        "limits": (0, 100),
    }
    title = f"{method} {size}: needles found, {_what(cells)}"
    return Picture(f"needles_{arm_name(method, size)}", title, heat_map, data)


def _grouped(cells: Cells, *keys: str) -> dict[tuple, Cells]:
    groups = defaultdict(list)
    for cell in cells:
        groups[tuple(cell[key] for key in keys)].append(cell)
    return groups


def _depths(cells: Cells) -> list[float | None]:
    """Percent found in each bin, the mean over tasks."""
    return [_mean(values) for values in zip(*(c["by_depth"] for c in cells), strict=True)]


def _bins(cells: Cells) -> list[str]:
    count = len(cells[0]["by_depth"])
    return [f"{100 * i // count}-{100 * (i + 1) // count}" for i in range(count)]


def _what(cells: Cells) -> str:
    return f"n {cells[0]['n']} per task ({', '.join(dict.fromkeys(c['task'] for c in cells))})"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
