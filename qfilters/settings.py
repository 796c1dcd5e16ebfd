"""Settings of the four commands as frozen models: names, defaults, and what values make sense.

Where a value comes from (flag or file) is the business of config.py; what needs a model or a text
to be checked is left to those who load it. Defaults are explained in configs/*.yaml.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from .arms import MethodSpec, check_budget, parse_method, parse_methods, split_ints
from .errors import UsageError


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise UsageError(f"{value} is not a number (YAML reads a bare yes or no as true or false)")
    return value


def _all_or_some(value: int) -> int:
    if value < 1 and value != -1:
        raise UsageError(f"{value} is neither at least 1 nor -1 (all)")
    return value


def _at_least_one(value: float | None) -> float | None:
    if value is None or value >= 1:
        return value
    text = f"{value:g} is below 1. Here the ratio is full/kept (2 keeps half)"
    if value < 0:
        raise UsageError(f"{text}.")
    removed = f"{1 / (1 - value):g}"
    raise UsageError(
        f"{text}; kvpress's {value:g} (fraction removed) is --compression-ratio {removed}."
    )


def _switch(value: Any) -> Any:
    # YAML reads a bare on or off as true or false.
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _json_object(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UsageError(f"{value!r} is not JSON: {error}") from error


def _not_blank(value: str) -> str:
    if not value.strip():
        raise UsageError("the prompt is empty: give some text")
    return value


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Rows = Annotated[int, BeforeValidator(_not_bool), Field(ge=0)]
Positive = Annotated[int, BeforeValidator(_not_bool), Field(ge=1)]
Length = Annotated[int, BeforeValidator(_not_bool), Field(ge=2)]
Samples = Annotated[int, BeforeValidator(_not_bool), AfterValidator(_all_or_some)]
Seed = Annotated[int, BeforeValidator(_not_bool), Field(ge=0, lt=2**32)]
Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
Share = Annotated[float, BeforeValidator(_not_bool), Field(ge=0, le=1)]
Number = Annotated[float, BeforeValidator(_not_bool)]
Budgets = Annotated[
    tuple[int, ...] | None,
    BeforeValidator(lambda value: None if value is None else split_ints(value)),
]
Methods = Annotated[
    tuple[MethodSpec, ...],
    PlainValidator(parse_methods),
    PlainSerializer(lambda specs: [spec.label for spec in specs]),
]
Method = Annotated[
    MethodSpec, PlainValidator(parse_method), PlainSerializer(lambda spec: spec.label)
]


class Settings(BaseModel):
    """What every command knows: the model, and how its result is printed and kept."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )
    command: ClassVar[str]

    model: str = "smollm2-135m"
    adapter_path: str | None = None
    trust_remote_code: bool = False
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    # BaseModel has a (deprecated) method `json`, so the attribute needs another name.
    as_json: bool = Field(False, alias="json")
    overwrite: bool = False

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def defaulted(self) -> dict[str, Any]:
        """Settings named neither by a flag nor in the user's own YAML file, with their values."""
        return {k: v for k, v in self.as_dict().items() if k not in self._origins}

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the flags' names; as YAML it reads back to the same settings."""
        return self.model_dump(mode="json", by_alias=True)


class CalibrateConfig(Settings):
    """`qfilters calibrate`."""

    command = "calibrate"

    data_path: str = "builtin"
    text_field: str = "text"
    num_samples: Samples = 8
    sequence_length: Length = 1024
    step_size: Positive | None = None
    seed: Seed = 42
    output: str | None = None


class InspectConfig(Settings):
    """`qfilters inspect`: a filter file, a model, or both."""

    command = "inspect"

    model: str | None = None
    filters: str | None = None
    save: bool = True

    @field_validator("filters")
    @classmethod
    def _something(cls, filters: str | None, info: ValidationInfo) -> str | None:
        if filters is None and info.data.get("model") is None:
            raise UsageError("give a filter file, --model, or both")
        return filters


class Eviction(Settings):
    """What the commands that evict share. Budget, sinks and recent count rows per KV head."""

    default_budget: ClassVar[Any]

    filters: str | None = None
    auto_calibrate: bool = True
    sinks: Rows = 4
    recent: Rows | None = None
    kernel: Switch = "auto"
    compression_ratio: Annotated[Number | None, AfterValidator(_at_least_one)] = None
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
        return (_rows_left(n_tokens, vars(self)),)


class GenerateConfig(Eviction):
    """`qfilters generate`: one method, one budget."""

    command = "generate"
    default_budget = 1024

    method: Method = "qfilters"
    budget: Positive | None = None
    prefill_step_size: Positive | None = None
    prompt: Annotated[str, AfterValidator(_not_blank)]
    max_tokens: Positive = 100
    temp: Annotated[Number, Field(ge=0)] = 0.0
    top_p: Share = 1.0
    min_p: Share = 0.0
    top_k: Rows = 0
    seed: Seed | None = None
    system_prompt: str | None = None
    ignore_chat_template: bool = False
    chat_template_config: Annotated[dict[str, Any] | None, BeforeValidator(_json_object)] = None
    extra_eos_token: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()


class PplConfig(Eviction):
    """`qfilters ppl`: every method at every budget."""

    command = "ppl"
    default_budget = (128, 256)

    method: Methods = "none,qfilters,knorm,streaming_llm,random"
    budget: Budgets = None
    data_path: str = "builtin"
    text_field: str = "text"
    num_samples: Samples = 4
    sequence_length: Length = 1024
    step_size: Positive = 32
    seed: Seed = 123
    bootstrap_iters: Positive = 10_000
    batch_arms: bool = True
    output: str | None = None
    resume: bool = False

    @field_validator("sequence_length")
    @classmethod
    def _long_enough(cls, length: int, info: ValidationInfo) -> int:
        if info.data.get("compression_ratio") and {"sinks", "recent", "method"} <= info.data.keys():
            _rows_left(length, info.data)
        return length

    @field_validator("resume")
    @classmethod
    def _not_both(cls, resume: bool, info: ValidationInfo) -> bool:
        if resume and info.data.get("overwrite"):
            raise UsageError("--resume and --overwrite exclude each other: give one")
        return resume


class BenchConfig(Eviction):
    """`qfilters bench decode`: every way to keep a cache at every length of prompt."""

    command = "bench"
    default_budget = (256,)

    method: Methods = "none,rotating,quantized,qfilters"
    budget: Budgets = None
    prompt_tokens: Annotated[tuple[Length, ...], BeforeValidator(split_ints)] = (512, 2048)
    generation_tokens: Length = 100
    num_trials: Annotated[int, BeforeValidator(_not_bool), Field(ge=3)] = 5
    prefill_step_size: Positive | None = None


COMMANDS = {
    c.command: c for c in (CalibrateConfig, InspectConfig, GenerateConfig, PplConfig, BenchConfig)
}


def _as_tuple(value: Any) -> tuple:
    if isinstance(value, tuple) and not isinstance(value, MethodSpec):
        return value
    return () if value is None else (value,)


def _window(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"sinks": values["sinks"], "recent": values["recent"]}


def _rows_left(n_tokens: int, values: Mapping[str, Any]) -> int:
    ratio = values["compression_ratio"]
    rows = math.floor(n_tokens / ratio)
    try:
        _check_room(_as_tuple(values["method"]), rows, **_window(values))
    except UsageError as error:
        raise UsageError(f"{n_tokens} tokens / --compression-ratio {ratio:g}: {error}") from None
    return rows


def _check_room(specs: tuple, budget: int, sinks: int, recent: int | None) -> None:
    if any(spec.name != "none" for spec in specs):
        check_budget(budget, sinks, recent)
