"""qfilters report: tables and figures from result files, as text, in a file, as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from .console import note, out


def report(
    results: Annotated[Path, typer.Option(help="Folder of result files.")] = Path(
        "artifacts/results"
    ),
    readme: Annotated[
        list[Path] | None,
        typer.Option(help="Fill the <!-- results:NAME --> blocks of this file; repeatable."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="With --readme: change nothing, fail when file or figure is stale."
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write one page with all tables and figures; no network.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Draw figures as SVG into this folder: all, or with --readme those it links to."
        ),
    ] = None,
) -> None:
    """Print Markdown tables of all result files, put them into a README, or make a page of them.

    NAME is the folder of a run, or an item of evidence.json beside them.

    \b
    qfilters report
    qfilters report --readme README.md
    qfilters report --readme docs/page.md --figures docs/figures
    qfilters report --html results.html
    """
    from ..errors import UsageError
    from ..files import atomic_write
    from ..report import report_page, tables

    readme = readme or []
    for path in readme:
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
    if check and not readme:
        raise UsageError("--check needs --readme: name the file to check")
    if check and html:
        raise UsageError("--check changes nothing, and --html writes a page: leave out one")
    if html:
        atomic_write(html, report_page(results))
        note(f"written: {html}")
    if figures:
        _draw(results, figures, readme, check)
    if readme:
        made = tables(results)
        for path in readme:
            _fill(path, made, check)
    if not (html or figures or readme):
        found = tables(results)
        for name, text in found.items():
            out(f"### {name}\n\n{text}")
        if not found:
            note(f"there are no finished runs in {results}")


def _draw(results: Path, folder: Path, pages: list[Path], check: bool) -> None:
    from ..errors import QFiltersError
    from ..report import draw_figures, pictures

    if not check:
        for path in draw_figures(results, folder, pages):
            note(f"drawn: {path}")
        return
    for path, picture in pictures(results, folder, pages).items():
        if not picture.drawn_in(path):
            raise QFiltersError(f"{path} is stale: run this without --check")


def _fill(path: Path, made: dict[str, str], check: bool) -> None:
    from ..errors import QFiltersError, UsageError
    from ..files import atomic_write
    from ..report import update_readme

    try:
        old = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from None
    new = update_readme(old, made)
    if check and new != old:
        raise QFiltersError(f"{path} is stale: run qfilters report --readme {path}")
    if new != old:
        atomic_write(path, new)
    note(f"{path} is up to date")
