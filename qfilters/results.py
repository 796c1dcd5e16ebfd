"""Result files: run folders, their names, atomic writes. What is in them: records.py.

Writes what it is given and computes nothing. A number that is not finite is an error, not a NaN in
a file; a number that may be missing is null.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import QFiltersError, UsageError
from .files import atomic_write, lock, writing
from .records import PplRow, TaskResult, document, lm_eval_document

__all__ = [
    "PplRow",
    "RunFolder",
    "TaskResult",
    "arm_name",
    "atomic_write",
    "base_name",
    "document",
    "dump_json",
    "lm_eval_document",
    "open_run",
    "result_name",
    "run_id",
    "sanitize",
]

# Settings that say how a result is worked out, kept or shown: they do not change the numbers.
NOT_IN_ID = frozenset(
    [
        "config",
        "output",
        "save",
        "resume",
        "overwrite",
        "json",
        "figures",
        "dump_prompts",
        "batch_arms",
    ]
)
# Settings that may hold a path: only the last part counts, so that the id is the same everywhere.
PATHS = frozenset({"model", "adapter_path", "filters", "compare", "data_path", "haystack"})
_FILES = frozenset({".jsonl", ".npz", ".parquet", ".safetensors", ".txt"})


@dataclass(frozen=True)
class RunFolder:
    """A folder with the results of one configuration."""

    path: Path
    id: str

    @property
    def finished(self) -> bool:
        """The summary is written last, so its presence says that the run got to its end."""
        return (self.path / "summary.json").is_file()

    def write_json(self, name: str, obj: Any) -> Path:
        """Write one JSON document atomically; QFiltersError names a key that is not finite."""
        return atomic_write(self.path / name, dump_json(obj))

    def read_json(self, name: str) -> Any | None:
        """The document `name`, or None when it was not written yet."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def append_jsonl(self, name: str, *rows: Any) -> None:
        """Add one line per row to `name` and put them on the disk before returning."""
        lines = "".join(dump_json(row, indent=None) for row in rows)
        with writing(self.path / name), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def read_jsonl(self, name: str, keys: Iterable[str] = ()) -> list[dict]:
        """The rows of `name`, none when it was not written yet.

        Raises:
            QFiltersError: a line is no object, or lacks one of the `keys`.
        """
        path = self.path / name
        if not path.is_file():
            return []
        rows = []
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                rows.append({**json.loads(line)})
                missing = [key for key in keys if key not in rows[-1]]
            except (ValueError, TypeError) as error:
                missing = [str(error)]
            if missing:
                text = f"{path}, line {number}, is damaged ({missing[0]})"
                raise QFiltersError(f"{text}: start again with --overwrite")
        return rows


def open_run(
    root: str | Path,
    model: str,
    command: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, str] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> RunFolder:
    """Create `root/<model>/<command>-<id>/` with `config.yaml` in it, before any work is done.

    config: the resolved settings; config.yaml holds those that the id depends on.
    inputs: hashes of the text, the filters and the model. They are part of the id, because of
        paths only the last part is, and stand in config.yaml as comments.
    An existing folder is continued with `resume`, replaced with `overwrite`, else QFiltersError.
    Until the process ends no other one can open it.
    """
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other: give one")
    run = run_id({**config, **(inputs or {})})
    folder = RunFolder(Path(root) / sanitize(model) / f"{command}-{run}", run)
    with writing(folder.path):
        if overwrite and folder.path.exists():
            _hold(folder.path)
            shutil.rmtree(folder.path)
        new = not folder.path.exists()
        folder.path.mkdir(parents=True, exist_ok=True)
        _hold(folder.path)
        if not (new or resume):
            state, more = "a run that was interrupted", "continues it"
            if folder.finished:
                state, more = "a finished run", "shows it again"
            raise QFiltersError(
                f"{folder.path} holds {state} of this configuration: --resume {more}, "
                "--overwrite replaces it"
            )
        _drop_torn_lines(folder.path.glob("*.jsonl"))
    if not (folder.path / "config.yaml").is_file():
        atomic_write(folder.path / "config.yaml", _config_text(config, inputs or {}))
    return folder


_held: dict[Path, int] = {}


def _hold(path: Path) -> None:
    """Lock a folder until the process ends: two that write into one would mix their results."""
    if path in _held:
        os.close(_held.pop(path))
    _held[path] = lock(path)


def run_id(config: Mapping[str, Any]) -> str:
    """First 8 hex digits of the SHA-256 of the configuration, the same on every machine."""
    kept = {k: base_name(v) if k in PATHS else v for k, v in config.items() if k not in NOT_IN_ID}
    text = json.dumps(json.loads(dump_json(kept)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def sanitize(model: str) -> str:
    """A model's name as one folder name: `org/name` -> `org__name`, of a path the last part."""
    return re.sub(r"[^\w.+-]", "_", base_name(model).replace("/", "__"))


def result_name(method: str, budget: int | str | None) -> str:
    """`results_<method>_<budget>.json`, as `arm_name`."""
    return f"results_{arm_name(method, budget)}.json"


def arm_name(method: str, budget: int | str | None) -> str:
    """`<method>_<budget>`, safe in any file system, one name per arm.

    `qfilters_keysvd(sign=-1)` at 128 gives `qfilters_keysvd-sign=-1_128`; an arm without a budget
    is `full`.
    """
    label = re.sub(r"[(,] ?", "-", method.removesuffix(")"))
    safe = re.sub(r"[^\w.=+-]", "_", label)
    if safe != label:
        safe += "-" + hashlib.sha256(method.encode()).hexdigest()[:8]
    return f"{safe}_{'full' if budget is None else budget}"


def dump_json(obj: Any, indent: int | None = 2) -> str:
    """JSON with a final newline. QFiltersError names the first number that is not finite."""
    plain = json.loads(json.dumps(obj, default=_plain))
    for key, value in _leaves(plain, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise QFiltersError(f"{key} is {value}: results hold finite numbers only")
    return json.dumps(plain, indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def _config_text(config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    kept = {name: value for name, value in config.items() if name not in NOT_IN_ID}
    comments = "".join(f"# {name}: {value}\n" for name, value in inputs.items())
    return comments + yaml.safe_dump(json.loads(dump_json(kept)), sort_keys=False)


def _plain(value: Any) -> Any:
    """What JSON does not know: numpy scalars and arrays, paths."""
    return value.tolist() if hasattr(value, "tolist") else os.fspath(value)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{key}[{index}]")
    else:
        yield key, value


def base_name(value: Any) -> Any:
    """The last part of what is certainly a local path; `owner/name` may be a hub id and stays."""
    if not isinstance(value, str | os.PathLike):
        return value
    text = os.fspath(value)
    if text.startswith(("/", "~", ".")) or Path(text).suffix in _FILES:
        return Path(os.path.abspath(os.path.expanduser(text))).name or "root"
    return text


def _drop_torn_lines(files: Iterable[Path]) -> None:
    """Cut what an interrupted append left behind the last complete line."""
    for path in files:
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            atomic_write(path, data[: data.rfind(b"\n") + 1])
