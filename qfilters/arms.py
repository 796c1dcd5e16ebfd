"""What the user asks to compare: lists of methods and budgets, and the room a budget must leave.

Text and numbers only. Which methods exist, and what their options mean, is not known here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

from .errors import UsageError

Option = int | float | bool | str


class MethodSpec(NamedTuple):
    """A method as the user named it; `options` are not checked against the method yet."""

    name: str
    options: dict[str, Option]

    @property
    def label(self) -> str:
        """`name` or `name(option=value, ...)`, options sorted: the same text for the same arm."""
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in sorted(self.options.items()))})"


def split_methods(text: str) -> list[MethodSpec]:
    """`"knorm, qfilters_keysvd(sign=-1)"` -> `[("knorm", {}), ("qfilters_keysvd", {"sign": -1})]`.

    Splits at commas outside parentheses. Values become int, float, bool (true or false) or str.
    Raises UsageError for unbalanced parentheses, empty items, positional or repeated options.
    """
    items, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise UsageError(f"unbalanced parentheses in {text!r}")
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    if depth:
        raise UsageError(f"unbalanced parentheses in {text!r}")
    return [_method(item.strip(), text) for item in items]


def split_ints(value: Any) -> tuple[int, ...]:
    """`128`, `"128,256"` or `[128, "256"]` -> whole numbers of at least 1, none of them twice."""
    items = value.split(",") if isinstance(value, str) else value
    items = items if isinstance(items, list | tuple) else [items]
    numbers: list[int] = []
    if not items:
        raise UsageError("the list is empty")
    for item in items:
        written = str(item).strip() if isinstance(item, str | int) else ""
        if not re.fullmatch(r"[0-9]+", written) or int(written) < 1:
            raise UsageError(f"{item!r} is not a whole number of at least 1")
        numbers.append(int(written))
    _refuse_twice(numbers)
    return tuple(numbers)


def default_recent(budget: int) -> int:
    """Recent rows protected when the user names no number: a quarter of the budget."""
    return budget // 4


def check_budget(budget: int, sinks: int, recent: int | None) -> int:
    """Return the recent rows in force; UsageError unless budget > sinks + recent (all in rows)."""
    window = default_recent(budget) if recent is None else recent
    if budget <= sinks + window:
        enough = next(
            rows
            for rows in count(sinks + 1)
            if rows > sinks + (default_recent(rows) if recent is None else recent)
        )
        raise UsageError(
            f"{budget} leaves no room for --sinks {sinks} + --recent {window} "
            f"(needs at least {enough})."
        )
    return window


def _method(item: str, text: str) -> MethodSpec:
    match = re.fullmatch(r"([A-Za-z]\w*)\s*(?:\((.*)\))?", item, re.DOTALL)
    if not match:
        what = f"{item!r} is not name or name(option=value, ...)" if item else "an item is empty"
        raise UsageError(f"{what} in the method list {text!r}")
    name, inside = match.groups()
    options: dict[str, Option] = {}
    for part in inside.split(",") if inside and inside.strip() else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise UsageError(f"{part.strip()!r} in {item!r} must read option=value")
        if key in options:
            raise UsageError(f"option {key!r} is given twice in {item!r}")
        options[key] = _option(value, item)
    return MethodSpec(name, options)


def _option(value: Any, item: str) -> Option:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"[\w.+-]+", value):
        raise UsageError(f"{value!r} in {item!r} is no option value: a number, true, false or word")
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number, kind in ((r"[+-]?\d+", int), (r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", float)):
        if re.fullmatch(number, value, re.IGNORECASE):
            return kind(value)
    return value


def parse_methods(value: Any) -> tuple[MethodSpec, ...]:
    """A comma list, or a YAML list of names and of mappings `{name: {option: value}}`."""
    if isinstance(value, str):
        specs = split_methods(value)
    elif isinstance(value, list | tuple) and value:
        specs = [parse_method(item) for item in value]
    else:
        raise UsageError(f"{value!r} is not a list of methods")
    _refuse_twice([spec.label for spec in specs])
    return tuple(specs)


def parse_method(value: Any) -> MethodSpec:
    """One method: `name(option=value)` or a YAML mapping `{name: {option: value}}`."""
    if isinstance(value, MethodSpec):
        return value
    if isinstance(value, str):
        specs = split_methods(value)
        if len(specs) == 1:
            return specs[0]
        raise UsageError(f"{value!r} names {len(specs)} methods where one is wanted")
    if isinstance(value, Mapping) and len(value) == 1:
        (name, options) = next(iter(value.items()))
        if isinstance(options, Mapping | None):
            spec = _method(str(name), str(name))
            return MethodSpec(
                spec.name, {str(k): _option(v, str(name)) for k, v in (options or {}).items()}
            )
    raise UsageError(f"{value!r} is neither a method's name nor {{name: {{option: value}}}}")


def _refuse_twice(items: list) -> None:
    for item in items:
        if items.count(item) > 1:
            raise UsageError(f"{item} is listed twice")
