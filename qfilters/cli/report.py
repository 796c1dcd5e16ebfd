"""qfilters report: tables from result files, and their place in the README."""

from pathlib import Path
from typing import Annotated

import typer

from .console import note, out


def report(
    results: Annotated[Path, typer.Option(help="Folder of result files.")] = Path(
        "artifacts/results"
    ),
    readme: Annotated[
        Path | None, typer.Option(help="Fill the <!-- results:NAME --> markers of this file.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --readme: change nothing, fail when it is stale.")
    ] = False,
) -> None:
    """Print Markdown tables of all result files, or put them into a README.

    \b
    qfilters report
    qfilters report --readme README.md
    """
    from ..errors import QFiltersError, UsageError
    from ..files import atomic_write
    from ..report import tables, update_readme

    if check and readme is None:
        raise UsageError("--check needs --readme: name the file to check")
    made = tables(results)
    if readme is None:
        for name, text in made.items():
            out(f"### {name}\n\n{text}")
        return
    if not readme.is_file():
        raise UsageError(f"there is no file {readme}")
    old = readme.read_text(encoding="utf-8")
    new = update_readme(old, made)
    if check and new != old:
        raise QFiltersError(f"{readme} is stale: run qfilters report --readme {readme}")
    if new != old:
        atomic_write(readme, new)
    note(f"{readme} is up to date")
