"""Types of single settings: what is read from a flag or a YAML value, and what is refused.

Which command has which setting is the business of settings.py.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator

from .arms import MethodSpec, parse_method, parse_methods, split_ints
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


def _names(value: Any) -> Any:
    names = _split(value)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{value!r} is not a list of names")
    return names


def _split(value: Any) -> Any:
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


def _numbers(value: Any) -> Any:
    items = _split(value)
    return items if isinstance(items, list | tuple) or items is None else (items,)


def _ratios(values: tuple[float, ...] | None) -> tuple[float, ...] | None:
    if values == ():
        raise UsageError("the list of ratios is empty: give one, or null")
    for value in values or ():
        _at_least_one(value)
        if values.count(value) > 1:
            raise UsageError(f"{value:g} is listed twice")
    return values


Rows = Annotated[int, BeforeValidator(_not_bool), Field(ge=0)]
Positive = Annotated[int, BeforeValidator(_not_bool), Field(ge=1)]
Repeats = Annotated[int, BeforeValidator(_not_bool), Field(ge=3)]
Length = Annotated[int, BeforeValidator(_not_bool), Field(ge=2)]
Samples = Annotated[int, BeforeValidator(_not_bool), AfterValidator(_all_or_some)]
Seed = Annotated[int, BeforeValidator(_not_bool), Field(ge=0, lt=2**32)]
Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
Figures = Literal["png", "svg", "none"]
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
OneRatio = Annotated[Number | None, AfterValidator(_at_least_one)]
Ratios = Annotated[tuple[Number, ...] | None, BeforeValidator(_numbers), AfterValidator(_ratios)]
Depths = Annotated[
    tuple[Annotated[Number, Field(ge=0, le=100)], ...] | None, BeforeValidator(_numbers)
]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Lengths = Annotated[tuple[Length, ...], BeforeValidator(split_ints)]
Text = Annotated[str, AfterValidator(_not_blank)]
Words = Annotated[tuple[str, ...], BeforeValidator(_listed)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_json_object)]
