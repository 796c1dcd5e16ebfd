"""qfilters bench: how fast this machine does what qfilters adds to a model."""

from typing import Annotated

import typer

from . import options as o
from .console import command_words, draw, note, out, print_defaults, progress, table

bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")


@bench.command()
def decode(
    model: o.Model = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    method: o.Contenders = None,
    budget: o.BenchBudgets = None,
    compression_ratio: o.CompressionRatio = None,
    sinks: o.Sinks = None,
    recent: o.Recent = None,
    kernel: o.Kernel = None,
    filters: o.Filters = None,
    auto_calibrate: o.AutoCalibrate = None,
    prefill_step_size: o.PrefillStepSize = None,
    prompt_tokens: o.PromptTokens = None,
    generation_tokens: o.GenerationTokens = None,
    num_trials: o.NumTrials = None,
    figures: o.Figures = None,
    save: o.Save = None,
    overwrite: o.Overwrite = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Time decoding with a full cache, with mlx-lm's remedies, and with methods.

    \b
    qfilters bench decode --prompt-tokens 1024,4096 --budget 256
    qfilters bench decode --method "none,quantized(bits=4),qfilters,h2o" --num-trials 15
    """
    flags = {k: v for k, v in locals().items() if k != "config"}
    from ..config import BenchConfig, resolve

    settings = resolve(BenchConfig, config, flags)
    from ..decode_run import run_decode_bench
    from ..decode_shown import decode_cells, decode_pictures
    from ..results import dump_json
    from ..session import Session

    print_defaults(settings)
    with progress() as watch:
        session = Session(settings, watch)
        made, folder = run_decode_bench(session, command_words(), note)
    if folder:
        note(f"kept in {folder}")
        if settings.figures != "none":
            draw(decode_pictures(made["rows"]), folder, settings.figures)
    if settings.as_json:
        out(dump_json(made))
        return
    columns, cells = decode_cells(made["rows"])
    table(f"decoding with {session.model_id}", columns, cells)


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
