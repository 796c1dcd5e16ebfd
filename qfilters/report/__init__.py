"""Tables and figures from result files: as Markdown, in the README, as one HTML page.

A pure function of the files: the same files give the same bytes. Runs nothing, measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from ..errors import QFiltersError, UsageError
from ..pictures import Picture
from ..results import sanitize
from .blocks import linked_figures, update_readme
from .claims import claims_table
from .html import html_page
from .kinds import pictures_of, tables_of
from .runs import Run, read_evidence, read_runs
from .tables import markdown

__all__ = [
    "draw_figures",
    "html_page",
    "pictures",
    "report_page",
    "shown",
    "tables",
    "update_readme",
]

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


def pictures(
    results_root: str | Path, folder: str | Path, pages: Sequence[str | Path] = ()
) -> dict[Path, Picture]:
    """Every figure of all that is `shown`, by its place `<folder>/<name>-<figure>.svg`.

    With `pages`, Markdown files, only those that one of them links to. A link to a figure of an
    item that was not measured yet counts for nothing.

    Raises:
        QFiltersError: a page links to a file in `folder` that is none of these figures.
        UsageError: pages that link to none of them.
    """
    runs = {sanitize(run.name): run for run in chain(*shown(results_root))}
    made = {
        f"{name}-{picture.name}.svg": picture
        for name, run in runs.items()
        if run.summary is not None
        for picture in pictures_of(run)
    }
    names = list(_linked(pages, Path(folder), made, runs) if pages else made)
    if pages and not names:
        raise UsageError(f"no page links to a figure in {folder}")
    return {Path(folder) / name: made[name] for name in names}


def _linked(
    pages: Sequence[str | Path],
    folder: Path,
    made: Mapping[str, Picture],
    runs: Mapping[str, Run],
) -> Iterator[str]:
    for page in pages:
        for name in linked_figures(Path(page), folder):
            if name in made:
                yield name
            elif not _to_come(name, runs):
                raise QFiltersError(f"{page} links to {folder / name}: no result has that figure")


def _to_come(figure: str, runs: Mapping[str, Run]) -> bool:
    """Whether it would be of an item that was not measured yet."""
    # `ppl-1024-perplexity.svg` is of `ppl-1024`, even where there is a `ppl`.
    names = [name for name in runs if figure.startswith(f"{name}-")]
    return bool(names) and runs[max(names, key=len)].summary is None


def draw_figures(
    results_root: str | Path, folder: str | Path, pages: Sequence[str | Path] = ()
) -> Iterator[Path]:
    """Draw what `pictures` finds, and yield the paths.

    Raises:
        UsageError: matplotlib is missing.
        QFiltersError: as `pictures`.
    """
    for path, picture in pictures(results_root, folder, pages).items():
        yield picture.write(path)


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
