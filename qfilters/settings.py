"""Settings of the commands as frozen models: names, defaults, and what values make sense.

Where a value comes from (flag or file) is the business of config.py; what needs a model or a text
to be checked is left to those who load it. Defaults are explained in configs/*.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from .arms import MethodSpec, check_budget
from .errors import UsageError
from .fields import (
    Budgets,
    Depths,
    JsonObject,
    Length,
    Lengths,
    Method,
    Methods,
    Names,
    Number,
    OneRatio,
    Positive,
    Ratios,
    Rows,
    Samples,
    Seed,
    Share,
    Switch,
    Text,
    Words,
)


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
    auto_calibrate: bool = True
    compare: str | None = None
    data_path: str | None = None
    text_field: str = "text"
    num_samples: Samples = 4
    sequence_length: Length = 1024
    seed: Seed = 123
    method: Methods = "qfilters,qfilters_keysvd,knorm,expected_attention,qfilters_mean,random"
    budget: Budgets = (64, 128, 256)
    sinks: Rows = 4
    recent: Rows | None = None
    plots: str | None = None
    save: bool = True

    @field_validator("filters", "compare", "data_path", "plots")
    @classmethod
    def _something(cls, value: str | None, info: ValidationInfo) -> str | None:
        name, given = info.field_name, {key for key, known in info.data.items() if known}
        if name == "filters" and not value and "model" not in given:
            raise UsageError("give a filter file, --model, or both")
        needs = {"compare": ["filters"], "data_path": ["model"], "plots": ["compare", "data_path"]}
        if value and name in needs and given.isdisjoint(needs[name]):
            raise UsageError(f"it needs {' or '.join(needs[name])} as well")
        return value


class Eviction(Settings):
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
        return tuple(_rows_left(n_tokens, r, vars(self)) for r in _as_tuple(self.compression_ratio))


class GenerateConfig(Eviction):
    """`qfilters generate`: one method, one budget."""

    command = "generate"
    default_budget = 1024

    method: Method = "qfilters"
    budget: Positive | None = None
    prefill_step_size: Positive | None = None
    prompt: Text
    max_tokens: Positive = 100
    temp: Annotated[Number, Field(ge=0)] = 0.0
    top_p: Share = 1.0
    min_p: Share = 0.0
    top_k: Rows = 0
    seed: Seed | None = None
    system_prompt: str | None = None
    ignore_chat_template: bool = False
    chat_template_config: JsonObject | None = None
    extra_eos_token: Words = ()


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
    output: str | None = None
    resume: bool = False

    @field_validator("sequence_length")
    @classmethod
    def _long_enough(cls, length: int, info: ValidationInfo) -> int:
        if info.data.get("compression_ratio") and {"sinks", "recent", "method"} <= info.data.keys():
            _rows_left(length, info.data["compression_ratio"], info.data)
        return length

    @field_validator("resume")
    @classmethod
    def _not_both(cls, resume: bool, info: ValidationInfo) -> bool:
        return _one_of_two(resume, info)


class RulerConfig(Eviction):
    """`qfilters ruler`: tasks at lengths, every method at every budget or ratio."""

    command = "ruler"
    default_budget = None
    default_ratios: ClassVar[tuple[float, ...]] = (1.11, 2.0)

    task: Names = "vt"
    length: Lengths = 1024
    num_samples: Positive = 10
    method: Methods = "none,qfilters,knorm,streaming_llm,random"
    compression_ratio: Ratios = None
    budget: Budgets = None
    protocol: Literal["agnostic", "aware"] = "agnostic"
    mode: Literal["after_prefill", "stream"] = "after_prefill"
    skip_layers: Rows = 0
    prefill_step_size: Positive | None = None
    haystack: str | None = None
    source: Literal["synthetic", "files", "hub", "hub-sources"] = "synthetic"
    depth: Depths = None
    vt_chains: Positive = 1
    max_tokens: Positive | None = None
    answer_prefix: bool = True
    chat_template_config: JsonObject = {"enable_thinking": False}
    seed: Seed = 42
    bootstrap_iters: Positive = 10_000
    figures: Literal["png", "svg", "none"] = "png"
    dump_prompts: str | None = None
    output: str | None = None
    resume: bool = False

    @field_validator("skip_layers")
    @classmethod
    def _only_after_prefill(cls, layers: int, info: ValidationInfo) -> int:
        if layers and info.data.get("mode") == "stream":
            raise UsageError(f"{layers} layers cannot be skipped in --mode stream")
        return layers

    @field_validator("source")
    @classmethod
    def _from_files(cls, source: str, info: ValidationInfo) -> str:
        haystack = info.data.get("haystack")
        if source == "files" and haystack is None:
            raise UsageError("files needs --haystack FILE")
        if haystack is not None and source.startswith("hub"):
            raise UsageError(f"{source} has its own haystack: leave out --haystack {haystack}")
        return source if haystack is None else "files"

    @field_validator("resume")
    @classmethod
    def _not_both(cls, resume: bool, info: ValidationInfo) -> bool:
        return _one_of_two(resume, info)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The compression ratios asked for; none when budgets are."""
        if self.compression_ratio is None and self.budget is None:
            return self.default_ratios
        return self.compression_ratio or ()


COMMANDS = {
    c.command: c for c in (CalibrateConfig, InspectConfig, GenerateConfig, PplConfig, RulerConfig)
}


def _one_of_two(resume: bool, info: ValidationInfo) -> bool:
    if resume and info.data.get("overwrite"):
        raise UsageError("--resume and --overwrite exclude each other: give one")
    return resume


def _as_tuple(value: Any) -> tuple:
    if isinstance(value, tuple) and not isinstance(value, MethodSpec):
        return value
    return () if value is None else (value,)


def _window(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"sinks": values["sinks"], "recent": values["recent"]}


def _rows_left(n_tokens: int, ratio: float, values: Mapping[str, Any]) -> int:
    rows = math.floor(n_tokens / ratio)
    try:
        _check_room(_as_tuple(values["method"]), rows, **_window(values))
    except UsageError as error:
        raise UsageError(f"{n_tokens} tokens / --compression-ratio {ratio:g}: {error}") from None
    return rows


def _check_room(specs: tuple, budget: int, sinks: int, recent: int | None) -> None:
    if any(spec.name != "none" for spec in specs):
        check_budget(budget, sinks, recent)
