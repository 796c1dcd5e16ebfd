"""What settings of commands are: frozen models, the keys that all share, those of eviction.

Where a value comes from (flag or file) is the business of config.py; what needs a model or a text
to be checked is left to those who load it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from .arms import MethodSpec, check_budget
from .errors import UsageError
from .fields import (
    OneRatio,
    Rows,
    Switch,
)


class Settings(BaseModel):
    """What every command knows: how its result is printed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )
    command: ClassVar[str]

    # BaseModel has a (deprecated) method `json`, so the attribute needs another name.
    as_json: bool = Field(False, alias="json")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("resume", check_fields=False)
    @classmethod
    def _one_of_two(cls, resume: bool, info: ValidationInfo) -> bool:
        if resume and info.data.get("overwrite"):
            raise UsageError("--resume and --overwrite exclude each other: give one")
        return resume

    def defaulted(self) -> dict[str, Any]:
        """Settings named neither by a flag nor in the user's own YAML file, with their values."""
        return {k: v for k, v in self.as_dict().items() if k not in self._origins}

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the flags' names; as YAML it reads back to the same settings."""
        return self.model_dump(mode="json", by_alias=True)


class ModelSettings(Settings):
    """What every command knows that runs a model."""

    model: str = "smollm2-135m"
    adapter_path: str | None = None
    trust_remote_code: bool = False
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"


class Eviction(ModelSettings):
    """What the commands that evict share. Budget, sinks and recent count rows per KV head."""

    default_budget: ClassVar[Any]

    filters: str | None = None
    auto_calibrate: bool = True
    sinks: Rows = 4
    recent: Rows | None = None
    kernel: Switch = "auto"
    compression_ratio: OneRatio = None
    save: bool = True

    @field_validator("budget", check_fields=False)
    @classmethod
    def _room(cls, budget: Any, info: ValidationInfo) -> Any:
        if not {"sinks", "recent", "compression_ratio", "method"} <= info.data.keys():
            return budget  # one of them is wrong, and reported
        if info.data["compression_ratio"] is None:
            budget = cls.default_budget if budget is None else budget
        elif budget is not None:
            raise UsageError("--budget and --compression-ratio exclude each other: give one")
        for rows in _as_tuple(budget):
            _check_room(_as_tuple(info.data["method"]), rows, **_window(info.data))
        return budget

    @property
    def use_kernel(self) -> bool | None:
        """`kernel` as `make_prompt_cache` takes it."""
        return {"auto": None, "on": True, "off": False}[self.kernel]

    def budgets_for(self, n_tokens: int) -> tuple[int, ...]:
        """The budgets in rows for a text of `n_tokens`: as given, or floor(n / ratio)."""
        if self.compression_ratio is None:
            return _as_tuple(self.budget)
        return tuple(rows_left(n_tokens, r, vars(self)) for r in _as_tuple(self.compression_ratio))


def _as_tuple(value: Any) -> tuple:
    if isinstance(value, tuple) and not isinstance(value, MethodSpec):
        return value
    return () if value is None else (value,)


def _window(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"sinks": values["sinks"], "recent": values["recent"]}


def rows_left(n_tokens: int, ratio: float, values: Mapping[str, Any]) -> int:
    """floor(n_tokens / ratio), UsageError where that leaves no room."""
    rows = math.floor(n_tokens / ratio)
    try:
        _check_room(_as_tuple(values["method"]), rows, **_window(values))
    except UsageError as error:
        raise UsageError(f"{n_tokens} tokens / --compression-ratio {ratio:g}: {error}") from None
    return rows


def _check_room(specs: tuple, budget: int, sinks: int, recent: int | None) -> None:
    if any(spec.name != "none" for spec in specs):
        check_budget(budget, sinks, recent)
