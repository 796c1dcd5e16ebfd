"""From flags and a YAML file to the settings of a command.

A value comes from a flag, else from the YAML file, else from the default. The shipped files in
configs/ are found from any folder, in a checkout and in an installed package.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from .arms import MethodSpec, check_budget, default_recent, split_ints, split_methods
from .commands import (
    COMMANDS,
    BenchConfig,
    CalibrateConfig,
    GenerateConfig,
    InspectConfig,
    PplConfig,
    RulerConfig,
)
from .errors import UsageError
from .settings import Settings

__all__ = [
    "COMMANDS",
    "BenchConfig",
    "CalibrateConfig",
    "GenerateConfig",
    "InspectConfig",
    "MethodSpec",
    "PplConfig",
    "RulerConfig",
    "Settings",
    "check_budget",
    "default_recent",
    "find_config",
    "load_yaml",
    "resolve",
    "split_ints",
    "split_methods",
]

Model = TypeVar("Model", bound=Settings)

COMMON = "common"


def resolve(model: type[Model], yaml_path: str | Path | None, flags: Mapping[str, Any]) -> Model:
    """Merge flags over a YAML file over the defaults, and check the result.

    yaml_path: the user's file, or None for the shipped `configs/<command>.yaml`.
    flags: values the user typed, under the flags' names with `_`; None means not typed.
    Raises UsageError, one line that names the flag, or the file and the key.
    """
    path = _shipped(model.command) if yaml_path is None else find_config(yaml_path)
    typed = {name: value for name, value in flags.items() if value is not None}
    written = load_yaml(path, model.command)
    # One of the two replaces the other when it comes from the stronger source.
    for name, other in (("budget", "compression_ratio"), ("compression_ratio", "budget")):
        if name in typed and other not in typed:
            written.pop(other, None)
    origins = dict.fromkeys(written, str(path)) | dict.fromkeys(typed, "flag")
    try:
        settings = model.model_validate({**written, **typed})
    except ValidationError as error:
        problems = [_explain(problem, origins, model) for problem in error.errors()]
        raise UsageError("; ".join(problems)) from None
    named = typed if yaml_path is None else origins
    settings._origins.update((name, origins[name]) for name in named)
    return settings


def find_config(name: str | Path) -> Path:
    """A YAML file by path, or a shipped one by name: `ppl`, `ppl.yaml`, `configs/ppl.yaml`."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.parent.name in ("", "configs") and path.suffix in ("", ".yaml"):
        return _shipped(path.stem)
    raise UsageError(f"there is no configuration file {path}")


def _shipped(name: str) -> Path:
    """In a wheel configs/ lies inside the package, in a checkout beside it."""
    package = Path(__file__).parent
    for folder in (package / "configs", package.parent / "configs"):
        if (path := folder / f"{name}.yaml").is_file():
            return path
    raise UsageError(f"there is no configuration file {name}.yaml, here or among the shipped ones")


def load_yaml(path: Path, command: str) -> dict[str, Any]:
    """The keys of a YAML file that concern `command`.

    A file is flat (keys of one command), or has a section per command and `common` for all.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.load(text, Loader=_UniqueKeys)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or error
        raise UsageError(f"{path}{line} is not YAML: {reason}") from error
    if data is None:
        raise UsageError(f"{path} is empty: it should hold keys like 'model: name'")
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds a {type(data).__name__}: it should hold 'key: value' lines")
    if not data.keys() & {COMMON, *COMMANDS}:
        return {str(key): value for key, value in data.items()}
    if unknown := data.keys() - {COMMON, *COMMANDS}:
        names = ", ".join(sorted(map(str, unknown)))
        raise UsageError(
            f"{path} has sections, but {names} is none: {COMMON}, {', '.join(COMMANDS)}"
        )
    if command not in data:
        raise UsageError(f"{path} has no section {command!r}, only {', '.join(map(str, data))}")
    merged: dict[str, Any] = {}
    for section in (COMMON, command):
        content = data.get(section) or {}
        if not isinstance(content, dict):
            raise UsageError(f"{path}: section {section!r} should hold 'key: value' lines")
        merged |= {str(key): value for key, value in content.items()}
    return merged


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML lets a repeated key win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"key {key.value!r} occurs twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _explain(problem: Any, origins: Mapping[str, str], model: type[Settings]) -> str:
    """One line for a pydantic error: where the value came from, the value, what is wrong."""
    name = str(problem["loc"][0])
    flag = f"--{name.replace('_', '-')}"
    if problem["type"] == "missing":
        return f"Missing value for '{flag}'"
    origin = origins.get(name, "flag")
    where = f"Invalid value for '{flag}'" if origin == "flag" else f"{origin}: {name}"
    if problem["type"] == "extra_forbidden":
        if origin == "flag":
            command = model.command.replace("evidence/", "study ")
            return f"No such option: '{flag}' is no setting of {command}"
        known = [field.alias or key for key, field in model.model_fields.items()]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        return f"{where}: unknown key for {model.command}; {hint}"
    if problem["type"] == "value_error":
        return f"{where}: {problem['ctx']['error']}"
    message = problem["msg"]
    return f"{where}: {problem['input']!r}: {message[0].lower()}{message[1:]}"
