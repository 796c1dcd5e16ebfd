"""Finished runs, read from their folders; and runs side by side, as a plan of evidence names them.

Reads files and computes nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import QFiltersError

PLAN = "evidence.json"
"""Beside the folders of the models: item -> `title`, `command` that measures it, `variants` it
consists of, and `runs`, variant -> `<model>/<run>`, of those measured so far."""


@dataclass(frozen=True)
class Run:
    """One finished run, or several of one kind put together.

    Attributes:
        name: of the run's folder, or of the item of evidence.
        model: the folder's name.
        kind: the command that made it: `ppl`, `ruler`, `inspect`, `study-chunks`, ...
        summary: the document of `--json`: `rows`, `qfilters` and what the kind adds; None for an
            item that was not measured yet.
        commands: what to type to get the numbers.
        members: names of the folders it was read from.
        title: of the item of evidence; a run that stands for itself has none.
    """

    name: str
    model: str
    kind: str
    summary: Mapping[str, Any] | None
    commands: tuple[str, ...]
    members: tuple[str, ...] = ()
    title: str = ""


def read_runs(root: str | Path) -> list[Run]:
    """Every finished run under `root`: a folder `<model>/<kind>-<id>/` with a summary.json.

    Raises:
        QFiltersError: two runs of one name, or a file that is not a summary.
    """
    found: dict[str, Run] = {}
    for path in sorted(Path(root).glob("*/*/summary.json")):
        name, model = path.parent.name, path.parent.parent.name
        if name in found:
            raise QFiltersError(f"{name} is the name of two runs, one of them {path.parent}")
        summary = _load(path)
        try:
            command = shlex.join(summary["qfilters"]["command"])
        except (KeyError, TypeError) as error:
            raise QFiltersError(
                f"{path} does not say what made it ({error!r}): remove it"
            ) from error
        found[name] = Run(name, model, name.rpartition("-")[0], summary, (command,), (name,))
    return list(found.values())


def read_evidence(root: str | Path, runs: list[Run]) -> list[Run]:
    """The items of `root/evidence.json` in its order, none without that file.

    Where an item has several runs, their rows stand together under the name of their variant.

    Raises:
        QFiltersError: a run is named that is not there, or a key is missing.
    """
    path = Path(root) / PLAN
    if not path.is_file():
        return []
    try:
        return list(_items(path, {f"{run.model}/{run.name}": run for run in runs}))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"{path} is damaged ({error!r}): remove it and run benchmarks/evidence.py"
        raise QFiltersError(text) from error


def _items(path: Path, by_place: Mapping[str, Run]) -> Iterator[Run]:
    for name, item in _load(path).items():
        if item["runs"].keys() < set(item["variants"]):
            yield Run(name, "", "", None, (item["command"],), title=item["title"])
            continue
        parts = {}
        for variant in item["variants"]:
            place = item["runs"][variant]
            if place not in by_place:
                raise QFiltersError(f"{path}: {name} names {place}, which is no finished run")
            parts[variant] = by_place[place]
        yield replace(_together(name, parts), title=item["title"])


def _together(name: str, parts: Mapping[str, Run]) -> Run:
    first, *rest = parts.values()
    if any((run.kind, run.model) != (first.kind, first.model) for run in rest):
        raise QFiltersError(f"{name}: runs of different kinds or models cannot stand together")
    if not rest:
        return replace(first, name=name)
    for run in rest:
        if run.summary.keys() != first.summary.keys():
            text = f"{name}: {run.model}/{run.name} and {first.name} are of different versions"
            raise QFiltersError(f"{text}: measure both again")
    summary = {**first.summary, "rows": [], "variants": list(parts)}
    for key, value in first.summary.items():
        if isinstance(value, list) and all(isinstance(row, dict) for row in value):
            summary[key] = list(_relabelled(key, parts))
    commands = tuple(command for run in parts.values() for command in run.commands)
    members = tuple(run.name for run in parts.values())
    return Run(name, first.model, first.kind, summary, commands, members)


def _relabelled(key: str, parts: Mapping[str, Run]) -> Iterator[dict]:
    """The rows of all parts, methods with their variant; the full cache counts once.

    Rows that name no method get a `variant`.
    """
    for number, (variant, run) in enumerate(parts.items()):
        for row in run.summary[key]:
            if row.get("method") == "none" and number:
                continue
            labels = {name: row[name] for name in ("method", "a", "b") if name in row}
            named = {k: x if x == "none" else f"{x} {variant}" for k, x in labels.items()}
            yield {**row, **(named or {"variant": variant})}


def _load(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise QFiltersError(f"cannot read {path}: {error}") from error
