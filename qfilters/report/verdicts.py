"""What all rules share: the three verdicts, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Summary = Mapping[str, Any]
Judged = tuple[bool | None, str]
Judge = Callable[[Summary], Judged]


class CannotJudge(Exception):
    """Why a run says nothing about a claim."""


def verdict(holds: bool, fails: bool) -> bool | None:
    """True where the evidence excludes the contrary, False where it excludes the claim."""
    return True if holds else False if fails else None


def of_texts(n: int, holds: bool) -> bool | None:
    """One text decides nothing."""
    return holds if n > 1 else None


def some(found: Sequence, what: str) -> Sequence:
    """`found`, which must not be empty: CannotJudge."""
    if not found:
        raise CannotJudge(f"the run lacks {what}")
    return found
