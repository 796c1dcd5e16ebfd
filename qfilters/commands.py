"""Settings of every command: names, defaults, and what values make sense together.

Defaults are explained in configs/*.yaml.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from .errors import UsageError
from .fields import (
    Budgets,
    Depths,
    Figures,
    JsonObject,
    Length,
    Lengths,
    Method,
    Methods,
    Names,
    Number,
    Positive,
    Ratios,
    Repeats,
    Rows,
    Samples,
    Seed,
    Share,
    Text,
    Words,
)
from .settings import Eviction, ModelSettings, rows_left


class CalibrateConfig(ModelSettings):
    """`qfilters calibrate`."""

    command = "calibrate"

    data_path: str = "builtin"
    text_field: str = "text"
    num_samples: Samples = 8
    sequence_length: Length = 1024
    step_size: Positive | None = None
    seed: Seed = 42
    output: str | None = None
    overwrite: bool = False


class InspectConfig(ModelSettings):
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
    figures: Figures = "png"
    save: bool = True

    @field_validator("filters", "compare", "data_path")
    @classmethod
    def _something(cls, value: str | None, info: ValidationInfo) -> str | None:
        name, given = info.field_name, {key for key, known in info.data.items() if known}
        if name == "filters" and not value and "model" not in given:
            raise UsageError("give a filter file, --model, or both")
        needed = {"compare": "filters", "data_path": "model"}.get(name)
        if value and needed and needed not in given:
            raise UsageError(f"it needs {needed} as well")
        return value


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
    batch_arms: bool = True
    output: str | None = None
    overwrite: bool = False
    resume: bool = False

    @field_validator("sequence_length")
    @classmethod
    def _long_enough(cls, length: int, info: ValidationInfo) -> int:
        if info.data.get("compression_ratio") and {"sinks", "recent", "method"} <= info.data.keys():
            rows_left(length, info.data["compression_ratio"], info.data)
        return length


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
    depth: Depths = None
    vt_chains: Positive = 1
    haystack: str | None = None
    source: Literal["synthetic", "files", "hub", "hub-sources"] = "synthetic"
    max_tokens: Positive | None = None
    answer_prefix: bool = True
    chat_template_config: JsonObject = Field({"enable_thinking": False})
    seed: Seed = 42
    bootstrap_iters: Positive = 10_000
    figures: Figures = "png"
    dump_prompts: str | None = None
    output: str | None = None
    overwrite: bool = False
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
        if source == "hub" and (info.data.get("depth") or info.data.get("vt_chains", 1) > 1):
            raise UsageError("hub rows are ready made: leave out --depth and --vt-chains")
        if source == "files" and haystack is None:
            raise UsageError("files needs --haystack FILE")
        if haystack is not None and source.startswith("hub"):
            raise UsageError(f"{source} has its own haystack: leave out --haystack {haystack}")
        return source if haystack is None else "files"

    @property
    def ratios(self) -> tuple[float, ...]:
        """The compression ratios asked for; none when budgets are."""
        if self.compression_ratio is None and self.budget is None:
            return self.default_ratios
        return self.compression_ratio or ()


class BenchConfig(Eviction):
    """`qfilters bench decode`: every way to keep a cache at every length of prompt."""

    command = "bench"
    default_budget = (256,)

    method: Methods = "none,rotating,quantized,qfilters"
    budget: Budgets = None
    prompt_tokens: Lengths = (512, 2048)
    generation_tokens: Length = 100
    num_trials: Repeats = 5
    figures: Figures = "png"
    prefill_step_size: Positive | None = None
    overwrite: bool = False


COMMANDS = {
    c.command: c
    for c in (
        CalibrateConfig,
        InspectConfig,
        GenerateConfig,
        PplConfig,
        RulerConfig,
        BenchConfig,
    )
}
