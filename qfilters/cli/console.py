"""Printing: results to stdout, everything else to stderr; errors and notes in one line each."""

import sys
import warnings
from contextlib import contextmanager

import typer
from typer.core import TyperGroup

from ..errors import QFiltersError, QFiltersWarning, UsageError


class Group(TyperGroup):
    """Turns our errors into one line and an exit code, and our warnings into notes."""

    def invoke(self, ctx):
        """Run a command; tracebacks are left to what we did not foresee."""
        with _notes():
            try:
                return super().invoke(ctx)
            except QFiltersError as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(error.exit_code) from None


@contextmanager
def _notes():
    """Print each distinct note once, as `note: ...`; leave other warnings to Python."""
    said = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", QFiltersWarning)
        default = warnings.showwarning

        def show(message, category, *where, **more):
            if not issubclass(category, QFiltersWarning):
                default(message, category, *where, **more)
            elif str(message) not in said:
                said.add(str(message))
                typer.echo(f"note: {message}", err=True)

        warnings.showwarning = show
        yield


def note(text: str) -> None:
    """A line about the run, to stderr."""
    typer.echo(text, err=True)


def out(text: str) -> None:
    """The result, to stdout."""
    typer.echo(text)


def print_defaults(settings) -> None:
    """Say which settings came from defaults."""
    hidden = {"json", "overwrite", "resume", "save", "output"}
    values = settings.defaulted().items()
    shown = [f"{k}={_short(v)}" for k, v in values if k not in hidden and v not in (None, [], ())]
    if shown:
        note(f"defaults: {' '.join(shown)}")


def _short(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@contextmanager
def progress():
    """Yield `watch(label, total)` for `Session`: bars on a terminal, elsewhere a line when done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[extra]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def watch(label, total):
            task = bars.add_task(label, total=total, extra="")

            def update(done, total, value=None):
                extra = f"{value:.3f}" if isinstance(value, float) else value or ""
                bars.update(task, completed=done, total=total, extra=extra)
                if bars.disable and done == total:
                    note(f"{label} {extra}".rstrip())

            return update

        yield watch


def table(title: str, columns: list[str], rows: list[list[str]], text: int = 1) -> None:
    """A table on stdout; the first `text` columns are text, the others numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for i, name in enumerate(columns):
        side = "left" if i < text else "right"
        made.add_column(name, justify=side, no_wrap=i == 0 or i >= text, overflow="fold")
    for row in rows:
        made.add_row(*row)
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(made)


def draw(pictures, folder, kind: str) -> None:
    """Draw all pictures as `png` or `svg`; without matplotlib say so, for the numbers are kept."""
    for picture in pictures:
        try:
            note(f"drawn {picture.write(folder / f'{picture.name}.{kind}')}")
        except UsageError as error:
            note(f"note: {error}")
            return


def command_words() -> list[str]:
    """The command line as it is written into results: of a local path the last part only."""
    from ..results import base_name

    return ["qfilters", *(base_name(word) for word in sys.argv[1:])]
