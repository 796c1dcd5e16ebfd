"""qfilters inspect: what is in a filter file, what layers can do, what filters foresee."""

from typing import Annotated

import typer

from . import inspect_options as i
from . import options as o
from .console import command_words, draw, note, out, progress, table


def inspect_filters(
    filters: Annotated[str | None, typer.Argument(help="Filter file.")] = None,
    model: o.InspectedModel = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    method: i.JudgedMethods = None,
    budget: i.JudgedBudgets = None,
    sinks: o.Sinks = None,
    recent: o.Recent = None,
    auto_calibrate: o.AutoCalibrate = None,
    compare: i.Compare = None,
    data_path: i.HeldOut = None,
    text_field: o.TextField = None,
    num_samples: o.PplSamples = None,
    sequence_length: o.SequenceLength = None,
    seed: i.TextSeed = None,
    figures: o.Figures = None,
    save: o.Save = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Show orientation, energy and projections of filters; with --model, which layers evict.

    With --model and --data-path, what they are worth on that text: the mean query along the filter,
    the rank correlation of every method's score with the attention received, and the share of later
    attention on the rows that are kept.

    \b
    qfilters inspect artifacts/filters/smollm2-135m.npz
    qfilters inspect artifacts/filters/smollm2-135m.npz --model smollm2-135m
    qfilters inspect --model smollm2-135m --data-path builtin --figures svg
    """
    flags = {k: v for k, v in locals().items() if k != "config"}
    from ..config import InspectConfig, resolve

    settings = resolve(InspectConfig, config, flags)
    from ..filters import Filters
    from ..inspection import filter_cells, filter_rows, filter_summary
    from ..results import document, dump_json

    loaded = Filters.load(settings.filters) if settings.filters else None
    facts, measured = {"command": command_words()}, {}
    if settings.compare:
        measured |= _compared(loaded, settings.compare)
    name = loaded.metadata.get("model", "unknown") if loaded else None
    if settings.model:
        with progress() as watch:
            loaded, name = _inspect_model(settings, loaded, facts, measured, watch)
    rows = filter_rows(loaded) if loaded else []
    if loaded:
        facts["filters"] = loaded.metadata
    made = {**document(rows, facts), **measured}
    if settings.as_json:
        out(dump_json(made))
    else:
        _print(loaded and filter_summary(loaded), filter_cells(rows), made)
    if settings.save:
        _keep(settings, name, loaded, made)


def _compared(loaded, path) -> dict:
    from ..filters import Filters
    from ..results import base_name
    from ..similarity import compare

    return {"cosines": compare(loaded, Filters.load(path)), "compared_with": base_name(path)}


def _inspect_model(settings, loaded, facts, measured, watch):
    from ..inspection import plan_rows
    from ..session import Session, check_methods

    methods = check_methods(settings.method)
    session = Session(settings, watch)
    if settings.data_path:
        from ..inspection_run import measure
        from ..platform import provenance

        measured |= measure(session, methods)
        loaded = session.filters
        facts |= provenance()
    elif loaded:
        loaded.check(session.model, session.model_id)
    facts["plan"] = plan_rows(session.model)
    return loaded, session.model_id


def _print(summary, cells, made) -> None:
    if summary:
        out(summary)
        table("", *cells)
    if "plan" in made["qfilters"]:
        from ..inspection import plan_summary

        out(plan_summary(made["qfilters"]["plan"]))
    if "cosines" in made or "observations" in made:
        from ..inspection_tables import measured_tables

        for title, columns, rows in measured_tables(made):
            table(title, columns, rows)


def _keep(settings, name, loaded, made) -> None:
    from ..inspection_plots import pictures
    from ..results import open_run
    from ..session import RESULTS, filters_sha256

    inputs = {}
    if loaded:
        inputs["filters_sha256"] = filters_sha256(loaded)
    if "corpus" in made:
        inputs["text_sha256"] = made["corpus"]["sha256"]
    # The same inputs give the same numbers, so nothing is lost.
    run = open_run(RESULTS, name, "inspect", settings.as_dict(), inputs, overwrite=True)
    run.write_json("summary.json", made)
    note(f"kept in {run.path}")
    if settings.figures != "none":
        draw(pictures(made, name), run.path, settings.figures)
