"""Tables and figures from result files: as Markdown, in the README, as one HTML page.

A pure function of the files: the same files give the same bytes. Runs nothing, measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ..results import sanitize
from .blocks import update_readme
from .claims import claims_table
from .html import html_page
from .kinds import pictures_of, tables_of
from .runs import Run, read_evidence, read_runs
from .tables import markdown

__all__ = ["draw_figures", "html_page", "report_page", "shown", "tables", "update_readme"]

CLAIMS = "claims"
"""The name of the block of claims."""


def tables(results_root: str | Path) -> dict[str, str]:
    """The Markdown of every finished run under `results_root`, by the name of its folder, and of
    every item of evidence.json, by its name; an item that was not measured yet says so. With
    evidence there is `claims` too: what paper and earlier MLX port say, with verdicts.
    """
    runs = read_runs(results_root)
    items = read_evidence(results_root, runs)
    claims = {CLAIMS: markdown(claims_table(items))} if items else {}
    return {run.name: _text(run) for run in [*runs, *items]} | claims


def shown(results_root: str | Path) -> tuple[list[Run], list[Run]]:
    """The items of evidence.json, and the finished runs that belong to none of them."""
    runs = read_runs(results_root)
    items = read_evidence(results_root, runs)
    used = {name for item in items for name in item.members}
    return items, [run for run in runs if run.name not in used]


def report_page(results_root: str | Path) -> str:
    """One HTML page of all that is `shown`, its figures inside.

    Raises:
        UsageError: matplotlib is missing.
    """
    items, others = shown(results_root)
    return html_page([*items, *others], claims_table(items) if items else None)


def draw_figures(results_root: str | Path, folder: str | Path) -> Iterator[Path]:
    """Draw every figure of all that is `shown` as `<name>-<figure>.svg`, and yield the paths.

    Raises:
        UsageError: matplotlib is missing.
    """
    for run in chain(*shown(results_root)):
        if run.summary is not None:
            for picture in pictures_of(run):
                yield picture.write(Path(folder) / f"{sanitize(run.name)}-{picture.name}.svg")


def _text(run: Run) -> str:
    if run.summary is None:
        return f"Not measured yet: `{run.commands[0]}`.\n"
    return "\n".join(map(markdown, tables_of(run))) + _origin(run)


def _origin(run: Run) -> str:
    """The command that made the numbers, and where."""
    made = run.summary["qfilters"]
    versions = ", ".join(f"{k} {made[k]}" for k in ("qfilters", "mlx", "mlx_lm") if k in made)
    commands = ", ".join(f"`{command}`" for command in run.commands)
    return f"\nModel {run.model}; {versions}. Made by {commands}.\n"
