"""Pictures of a RULER run: accuracy against compression, and where needles were found."""

from collections import defaultdict
from pathlib import Path

from ..figures import curves, heat_map
from ..results import arm_name
from . import TASKS
from .base import FULL
from .summary import by_depth


def draw(cells: list[dict], rows: list[dict], folder: Path, kind: str) -> list[Path]:
    """Draw all pictures into `folder`.

    Args:
        cells: as `summarise` makes them.
        rows: the answers.
        kind: `png` or `svg`.

    Returns:
        Paths of the files.
    """
    made = []
    for task, length in dict.fromkeys((c["task"], c["length"]) for c in cells):
        here = [c for c in cells if (c["task"], c["length"]) == (task, length)]
        if any(c["size"] != FULL for c in here):
            path = folder / f"accuracy_{task}_{length}.{kind}"
            made.append(_accuracy(path, here))
    needles = defaultdict(list)
    for row in rows:
        if TASKS[row["task"]].family == "retrieval":
            needles[row["method"], row["size"]].append(row)
    for (method, size), found in needles.items():
        made.append(_needles(folder / f"needles_{arm_name(method, size)}.{kind}", found))
    return made


def _accuracy(path, cells):
    series = defaultdict(list)
    for cell in cells:
        if cell["size"] != FULL:
            point = (cell["compression_ratio"], cell["score"], cell["low"], cell["high"])
            series[cell["method"]].append(point)
    one = cells[0]
    full = None if one["ceiling"] is None else ("full cache", one["ceiling"])
    return curves(
        path,
        {name: sorted(points) for name, points in series.items()},
        title=f"{one['task']} at {one['length']} tokens, n {one['n']}",
        x="compression ratio (context / rows kept)",
        y="score (%)",
        log_x=True,
        reference=full,
    )


def _needles(path, rows):
    lengths = sorted({row["length"] for row in rows})
    columns = [by_depth([r for r in rows if r["length"] == length]) for length in lengths]
    method, size = rows[0]["method"], rows[0]["size"]
    tasks = ", ".join(dict.fromkeys(row["task"] for row in rows))
    step = 100 // len(columns[0])
    return heat_map(
        path,
        list(zip(*columns, strict=True)),
        title=f"{method}, {size}: needles found ({tasks})",
        x="length (tokens)",
        y="depth (%)",
        x_ticks=lengths,
        y_ticks=[f"{step * i}-{step * (i + 1)}" for i in range(len(columns[0]))],
        unit="score (%)",
        limits=(0, 100),
    )
