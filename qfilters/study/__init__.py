"""Studies: questions about the method that no single sweep answers, each one file here.

A study is measured as a whole and kept in a result folder like every other run.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..plan import fingerprint
from ..platform import provenance
from ..records import document
from ..results import RunFolder, open_run
from ..session import RESULTS, Session, filters_sha256
from .base import StudyConfig
from .budget import BudgetConfig, measure_budget
from .chunks import ChunksConfig, measure_chunks
from .geometry import GeometryConfig, measure_geometry
from .stability import StabilityConfig, measure_stability

Rows = Sequence[Sequence[int]]


class Study(NamedTuple):
    """What to resolve, what to call, and which half of the built-in text; None needs no model."""

    config: type[StudyConfig]
    measure: Callable[[Session, Rows], list[dict]]
    split: str | None = "evaluation"
    filters: bool = False


STUDIES = {
    "chunks": Study(ChunksConfig, measure_chunks, filters=True),
    "budget": Study(BudgetConfig, measure_budget, filters=True),
    "geometry": Study(GeometryConfig, measure_geometry, split=None),
    "stability": Study(StabilityConfig, measure_stability, split="calibration"),
}


def run_study(name: str, session: Session, command: list[str]) -> tuple[dict, RunFolder | None]:
    """Measure, or with `resume` read, one study.

    Args:
        name: of `STUDIES`.
        session: with its settings.
        command: the words of the command line, for the record.

    Returns:
        The document of `--json`, and the folder it is kept in.

    Raises:
        UsageError: settings that do not fit the text or each other.
        QFiltersError: the folder is there, and neither `resume` nor `overwrite` is set.
    """
    study, s = STUDIES[name], session.settings
    s.check()
    rows, corpus, inputs = [], None, {}
    if study.split:
        rows, corpus = session.rows(study.split)
        inputs = {"text_sha256": corpus["sha256"], "model_fingerprint": fingerprint(session.model)}
        if study.filters:
            inputs["filters_sha256"] = filters_sha256(session.filters)
    run = None
    if s.save:
        model = session.model_id if study.split else "synthetic"
        options = {"resume": s.resume, "overwrite": s.overwrite}
        run = open_run(RESULTS, model, f"study-{name}", s.as_dict(), inputs, **options)
        if run.finished:
            return run.read_json("summary.json"), run
    facts = {**provenance(), "command": command, **inputs}
    made = document(study.measure(session, rows), facts | ({"corpus": corpus} if corpus else {}))
    if run:
        run.write_json("summary.json", made)
    return made, run
