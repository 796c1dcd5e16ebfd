"""none: keep everything. The baseline of every comparison, through the same code path."""

from dataclasses import dataclass
from typing import ClassVar

from .base import Method


@dataclass(frozen=True)
class KeepAll(Method):
    """Keeps every row. Budget, sinks and recent are accepted and ignored. Cost per step: none."""

    name: ClassVar[str] = "none"
    family: ClassVar[str] = "control"
    paper: ClassVar[str] = "-"
    cost: ClassVar[str] = "none"
    evicts: ClassVar[bool] = False
