"""qfilters study: questions that no single sweep answers; settings are in the YAML file."""

from typing import Annotated

import typer

from . import options as o
from .console import command_words, note, out, progress


def study(
    name: Annotated[str, typer.Argument(help="chunks, budget, geometry or stability.")],
    model: o.Model = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    filters: o.Filters = None,
    auto_calibrate: o.AutoCalibrate = None,
    data_path: o.DataPath = None,
    text_field: o.TextField = None,
    save: o.Save = None,
    resume: o.Resume = None,
    overwrite: o.Overwrite = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Run one study: does chunking matter, are arms equal, what geometry does, how much text.

    geometry has neither model nor text, stability makes its own filters.

    Sizes stand in the YAML file alone: --config with a copy of configs/evidence/NAME.yaml.

    \b
    qfilters study geometry
    qfilters study chunks --config my.yaml
    """
    flags = {k: v for k, v in locals().items() if k not in ("config", "name")}
    from ..errors import UsageError
    from ..platform import require_mlx

    require_mlx()
    from ..config import resolve
    from ..report.kinds import tables_of
    from ..report.runs import Run
    from ..report.tables import markdown
    from ..results import dump_json
    from ..session import Session
    from ..study import STUDIES, run_study

    if name not in STUDIES:
        raise UsageError(f"there is no study {name!r}. Known: {', '.join(STUDIES)}")
    settings = resolve(STUDIES[name].config, config, flags)
    with progress() as watch:
        made, run = run_study(name, Session(settings, watch), command_words())
    if run:
        note(f"kept in {run.path}")
    if settings.as_json:
        out(dump_json(made))
        return
    shown = tables_of(Run(name, "", f"study-{name}", made, ()))
    out("\n".join(map(markdown, shown)))
