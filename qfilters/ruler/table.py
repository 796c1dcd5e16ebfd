"""The tables of a RULER run: arms down, sizes across, ceilings and baselines beside them."""

from collections import defaultdict
from collections.abc import Iterable

from .base import FULL
from .summary import ALL

QFILTERS = "qfilters"


def task_tables(document: dict) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, column names, cells) of every task and length of a document of `--json`.

    A cell holds score [95 % interval]; a star says that nothing was evicted, so nothing was run.
    """
    made = []
    for cells in _by_task(document):
        title = _title(cells[0])
        if any(map(_kept_all, cells)):
            title += "; *: nothing was evicted"
        made.append((title, *_task_table(cells)))
    return made


def difference_tables(document: dict) -> list[tuple[str, list[str], list[list[str]]]]:
    """As `task_tables`: points above or below the full cache on the same prompts, and `strict`.

    A cell holds the mean difference [paired 95 % interval], after a bar the strict score.
    """
    made = []
    for cells in _by_task(document):
        evicting = [c for c in cells if c["size"] != FULL]
        sizes = list(dict.fromkeys(c["size"] for c in evicting))
        by_arm = {(c["method"], c["size"]): c for c in evicting}
        rows = [
            [method, *(_difference(by_arm.get((method, size))) for size in sizes)]
            for method in dict.fromkeys(c["method"] for c in evicting)
        ]
        if rows:
            where = f"{cells[0]['task']}, {cells[0]['length']} tokens"
            title = f"{where}: difference to the full cache | strict score"
            made.append((title, ["method", *sizes], rows))
    return made


def mean_table(document: dict) -> tuple[str, list[str], list[list[str]]] | None:
    """The means over tasks, None below two tasks."""
    found = document["means"]
    if not found:
        return None
    title = f"{found[0]['name']} of {len(found[0]['tasks'])} tasks, {found[0]['suite']}"
    if found[0]["suite"] != "RULER":
        title += ": own wording and sources, not comparable with published RULER scores"
    families = [f for f in ("retrieval", "tracing", "aggregation", "qa") if f in found[0]]
    apart = _to_qfilters(document)
    columns = ["method", "length", "size", "mean", *([f"- {QFILTERS}"] * bool(apart)), *families]
    rows = []
    for m in found:
        arm = m["method"], m["length"], m["size"]
        line = [m["method"], str(m["length"]), m["size"], _score(m)]
        line += [apart.get(arm, "-")] * bool(apart)
        rows.append(line + [f"{m[f]:.1f}" for f in families])
    return title, columns, rows


def _to_qfilters(document: dict) -> dict:
    """(method, length, size) -> its mean less that of `qfilters`, on the same prompts."""
    found = {}
    for row in document["pairs"]:
        if row["task"] == ALL and QFILTERS in (row["a"], row["b"]):
            other, sign = (row["b"], -1) if row["a"] == QFILTERS else (row["a"], 1)
            text = f"{round(sign * row['difference'], 1) + 0.0:+.1f}"
            if row["difference_low"] is not None:
                ends = (round(sign * row[f"difference_{end}"]) for end in ("low", "high"))
                text += " [{:+d}, {:+d}]".format(*sorted(ends))
            found[other, row["length"], row["size"]] = text
    return found


def _by_task(document):
    """The cells of every task and length."""
    groups = defaultdict(list)
    for cell in document["rows"]:
        groups[cell["task"], cell["length"]].append(cell)
    return groups.values()


def _title(cell) -> str:
    title = f"{cell['task']}, {cell['length']} tokens, n {cell['n']}"
    if cell["ceiling"] is not None:
        title += f": ceiling {cell['ceiling']:.1f}"
    if cell["discriminative"] is False:
        title += " is below 50, too low to tell methods apart"
    if cell["copy"] is not None:
        title += f"; copying any stretch of the list scores {cell['copy']:.1f}"
    return title


def _task_table(cells):
    sizes = list(dict.fromkeys(c["size"] for c in cells if c["size"] != FULL)) or [FULL]
    by_arm = {(c["method"], c["size"]): c for c in cells}
    rows = []
    for method in dict.fromkeys(c["method"] for c in cells):
        own = [c for c in cells if c["method"] == method]
        always = by_arm.get((method, FULL))
        scores = [by_arm.get((method, size), always) for size in sizes]
        rows.append([method, *map(_score, scores), *map(str, _counts(own))])
    rows.append(["(last rows, read perfectly)", *(_window(cells, s) for s in sizes), "", ""])
    return ["method", *sizes, "empty", "cut off"], rows


def _kept_all(cell) -> bool:
    return cell["size"] != FULL and cell.get("evicted") == 0


def _score(cell) -> str:
    if cell is None:
        return "-"
    interval = "" if cell["low"] is None else f" [{cell['low']:.0f}, {cell['high']:.0f}]"
    star = "*" if _kept_all(cell) else ""
    return f"{cell['score']:.1f}{star}{interval}"


def _difference(cell) -> str:
    if cell is None or cell["minus_full"] is None:
        return "-"
    low, high = cell["minus_full_low"], cell["minus_full_high"]
    interval = "" if low is None else f" [{low:+.0f}, {high:+.0f}]"
    return f"{cell['minus_full']:+.1f}{interval} | {cell['strict']:.1f}"


def _counts(cells: Iterable[dict]) -> tuple[int, int]:
    return sum(c["nulls"] for c in cells), sum(c["truncated"] for c in cells)


def _window(cells, size) -> str:
    found = [c["window"] for c in cells if c["size"] == size and c["window"] is not None]
    return f"{found[0]:.1f}" if found else "-"
