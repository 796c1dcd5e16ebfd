"""qfilters bench: how fast this machine does what qfilters adds to a model."""

from typing import Annotated

import typer

from . import options as o
from .console import command_words, note, out, table

bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")


@bench.callback()
def _group() -> None:
    """A group although it has one command, so that others can join it."""


@bench.command()
def kernels(
    dtype: Annotated[
        str | None,
        typer.Option(help="Of keys and values; by default float32 on a Linux CPU, else float16."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of every measurement, at least 3.")] = 20,
    save: o.Save = None,
    json: o.Json = None,
) -> None:
    """Time scoring, selection, copies and decode; fused kernels only after they proved equal.

    \b
    qfilters bench kernels
    qfilters bench kernels --repeats 5 --json
    """
    from ..platform import require_mlx

    require_mlx()
    from ..bench_kernels import bench_cells, bench_kernels, keep_bench
    from ..platform import provenance
    from ..results import document, dump_json
    from ..session import RESULTS

    rows, passed = bench_kernels(dtype, repeats, watch=lambda what: note(f"timing: {what}"))
    if passed:
        note(f"{passed} equality checks passed before anything was timed")
    else:
        note("no GPU back end: the reference was timed, there is no kernel to compare it with")
    if save is not False:
        note(f"kept in {keep_bench(rows, passed, RESULTS, command_words())}")
    if json:
        facts = {**provenance(), "command": command_words(), "checks_passed": passed}
        out(dump_json(document(rows, facts)))
        return
    columns, cells = bench_cells(rows)
    table(f"kernels, {rows[0]['dtype']}, 8 KV heads of 128", columns, cells, text=2)
