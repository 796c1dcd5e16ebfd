"""qfilters inspect: what is in a filter file, and what a model's layers can do."""

from typing import Annotated

import typer

from . import options as o
from .console import command_words, note, out, table


def inspect_filters(
    filters: Annotated[str | None, typer.Argument(help="Filter file.")] = None,
    model: o.InspectedModel = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    save: o.Save = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Show orientation, energy and projections of filters; with --model, which layers evict.

    \b
    qfilters inspect artifacts/filters/smollm2-135m.npz
    qfilters inspect artifacts/filters/smollm2-135m.npz --model smollm2-135m
    """
    flags = {k: v for k, v in locals().items() if k != "config"}
    from ..config import InspectConfig, resolve

    settings = resolve(InspectConfig, config, flags)
    from ..filters import Filters
    from ..inspection import filter_cells, filter_rows, filter_summary
    from ..results import document, dump_json

    loaded = Filters.load(settings.filters) if settings.filters else None
    rows = filter_rows(loaded) if loaded else []
    facts = {"filters": loaded.metadata} if loaded else {}
    if not settings.as_json and loaded:
        out(filter_summary(loaded))
        table("", *filter_cells(rows))
    name = loaded.metadata.get("model", "unknown") if loaded else None
    if settings.model:
        name = _inspect_model(settings, loaded, facts)
    made = document(rows, {**facts, "command": command_words()})
    if settings.as_json:
        out(dump_json(made))
    if settings.save:
        _keep(settings, name, made)


def _inspect_model(settings, loaded, facts) -> str:
    from ..inspection import plan_rows, plan_summary
    from ..session import Session

    session = Session(settings)
    if loaded:
        loaded.check(session.model, session.model_id)
    facts["plan"] = plan_rows(session.model)
    if not settings.as_json:
        out(plan_summary(facts["plan"]))
    return session.model_id


def _keep(settings, name, made) -> None:
    from ..results import open_run
    from ..session import RESULTS

    run = open_run(RESULTS, name, "inspect", settings.as_dict(), overwrite=True)
    run.write_json("summary.json", made)
    note(f"kept in {run.path}")
