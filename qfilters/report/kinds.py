"""What each kind of run is shown as: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import QFiltersError
from ..pictures import Picture
from .measured import (
    decode_pictures_of,
    decode_tables,
    inspect_pictures,
    inspect_tables,
    ruler_pictures,
    ruler_tables,
)
from .ppl import ppl_pictures, ppl_tables
from .runs import Run
from .studies import (
    budget_tables,
    chunks_pictures,
    chunks_tables,
    geometry_pictures,
    geometry_tables,
    stability_pictures,
    stability_tables,
)
from .tables import Table, plain_table


class Kind(NamedTuple):
    """How runs of one command are shown."""

    tables: Callable[[Mapping[str, Any]], list[Table]] = lambda s: [plain_table(s["rows"])]
    pictures: Callable[[Run], list[Picture]] = lambda run: []


KINDS: dict[str, Kind] = {
    "ppl": Kind(ppl_tables, ppl_pictures),
    "ruler": Kind(ruler_tables, ruler_pictures),
    "bench-decode": Kind(decode_tables, decode_pictures_of),
    "inspect": Kind(inspect_tables, inspect_pictures),
    "study-chunks": Kind(chunks_tables, chunks_pictures),
    "study-budget": Kind(budget_tables),
    "study-geometry": Kind(geometry_tables, geometry_pictures),
    "study-stability": Kind(stability_tables, stability_pictures),
}
"""Kinds that are not here (`generate`, `bench_kernels`, ...) are plain tables."""


def tables_of(run: Run) -> list[Table]:
    """The tables of a run that was measured.

    Raises:
        QFiltersError: the summary lacks what its kind must have.
    """
    return _known(run, lambda kind: kind.tables(run.summary))


def pictures_of(run: Run) -> list[Picture]:
    """The figures of a run that was measured.

    Raises:
        QFiltersError: the summary lacks what its kind must have.
    """
    return _known(run, lambda kind: kind.pictures(run))


def _known(run: Run, show: Callable[[Kind], Any]) -> Any:
    try:
        return show(KINDS.get(run.kind, Kind()))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        where = ", ".join(f"{run.model}/{member}" for member in run.members) or run.name
        raise QFiltersError(
            f"summary.json of {where} is of another version or damaged ({error!r}): "
            f"remove it, or measure it again: {'; '.join(run.commands)}"
        ) from error
