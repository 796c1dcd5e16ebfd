"""Text in, rows of token ids out: the built-in corpus, .txt, .jsonl, .parquet and hub data sets.

Knows nothing about models: a tokenizer is anything with `encode(text, add_special_tokens=False)`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import UsageError

Split = Literal["calibration", "evaluation"]


@dataclass(frozen=True)
class Corpus:
    """Documents and what identifies them.

    name: `builtin:<split>`, the file's name without its folder, or the hub id.
    sha256: of the documents as read (UTF-8, a NUL between two); for a plain .txt the file's own.
    """

    name: str
    sha256: str
    documents: tuple[str, ...]


def load_corpus(source: str, split: Split = "calibration", field: str = "text") -> Corpus:
    """Read `source`: `builtin`, a .txt (one document), .jsonl or .parquet file, or a hub id.

    split: which half of the built-in corpus; other sources have no halves and ignore it.
    field: the key or column that holds the text of a .jsonl, .parquet or hub record.
    Raises UsageError when there is nothing to read, saying where and why.
    """
    path = Path(source).expanduser()
    if source == "builtin":
        return _corpus(f"builtin:{split}", _builtin(split))
    if path.suffix in _READERS or path.exists():
        return _corpus(path.name, _read_file(path, field))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith("."):
        return _corpus(source, _read_hub(source, field))
    raise UsageError(
        f"no text at {source!r}: give 'builtin', a {', '.join(_READERS)} file, "
        "or a hub id of the form owner/name"
    )


def token_rows(
    corpus: Corpus, tokenizer: Any, num_rows: int, length: int, seed: int | None = None
) -> list[list[int]]:
    """Tokenise documents without special tokens, concatenate, cut into rows of `length` ids.

    num_rows: -1 takes every full row there is.
    seed: shuffles the order of the documents first, as mlx_lm.perplexity does with the same seed.
    Raises UsageError when the text is too short, with the tokens there are and those needed.
    """
    import numpy as np

    if num_rows < 1 and num_rows != -1:
        raise UsageError(f"the number of rows is {num_rows}: give 1 or more, or -1 for all")
    if length < 2:
        raise UsageError(f"the row length is {length}: a row needs at least 2 tokens")
    count = len(corpus.documents)
    order = range(count) if seed is None else np.random.RandomState(seed).permutation(count)
    need = max(num_rows, 1) * length
    ids: list[int] = []
    for index in order:
        ids += tokenizer.encode(corpus.documents[index], add_special_tokens=False)
        if num_rows != -1 and len(ids) >= need:
            break
    if len(ids) < need:
        raise UsageError(
            f"{corpus.name} has {len(ids)} tokens, but {max(num_rows, 1)} x {length} = {need} are "
            "needed: use fewer samples, shorter sequences or a longer text"
        )
    rows = len(ids) // length if num_rows == -1 else num_rows
    return [ids[start : start + length] for start in range(0, rows * length, length)]


def repetition(rows: Sequence[Sequence[int]], n: int = 32) -> float:
    """Share (0 to 1) of the n-grams inside `rows` that occurred before, in the same row or not."""
    grams = list(_grams(rows, n))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def overlap(rows: Sequence[Sequence[int]], other: Sequence[Sequence[int]], n: int = 32) -> float:
    """Share (0 to 1) of the n-grams inside `rows` that also occur inside `other`."""
    known = set(_grams(other, n))
    grams = list(_grams(rows, n))
    return sum(gram in known for gram in grams) / len(grams) if grams else 0.0


def _grams(rows: Sequence[Sequence[int]], n: int) -> Iterable[int]:
    # 64-bit hashes instead of tuples: a tenth of the memory, and integers hash the same everywhere.
    for row in rows:
        for start in range(len(row) - n + 1):
            yield hash(tuple(row[start : start + n]))


def _corpus(name: str, documents: Iterable[str]) -> Corpus:
    kept = tuple(document for document in documents if document.strip())
    if not kept:
        raise UsageError(f"{name} holds no text")
    digest = hashlib.sha256("\0".join(kept).encode("utf-8", "surrogatepass")).hexdigest()
    return Corpus(name, digest, kept)


def _builtin(split: Split) -> list[str]:
    """Every second topic of pydoc, a paragraph seen in an earlier topic dropped."""
    if split not in ("calibration", "evaluation"):
        raise UsageError(f"the built-in text has no split {split!r}: calibration or evaluation")
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UsageError(
            "this Python comes without pydoc_data.topics, the built-in text: name a file or a "
            "hub id with --data-path"
        ) from None
    seen: set[str] = set()
    documents = []
    for name in sorted(topics):
        paragraphs = []
        for block in re.split(r"\n\s*\n", topics[name]):
            paragraph = " ".join(block.split())
            if paragraph and paragraph not in seen:
                seen.add(paragraph)
                paragraphs.append(paragraph)
        if paragraphs:
            # The closing blank line keeps two concatenated topics apart.
            documents.append("\n\n".join([*paragraphs, ""]))
    return documents[::2] if split == "calibration" else documents[1::2]


def _read_file(path: Path, field: str) -> list[str]:
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give one of the files in it")
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    if path.suffix not in _READERS:
        raise UsageError(f"{path} is not a {', '.join(_READERS)} file: convert or rename it")
    try:
        if path.stat().st_size == 0:
            raise UsageError(f"{path} is empty")
        return _READERS[path.suffix](path, field)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _read_txt(path: Path, field: str) -> list[str]:
    return [path.read_text(encoding="utf-8-sig")]


def _read_jsonl(path: Path, field: str) -> list[str]:
    documents = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{where} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise UsageError(f"{where} is not a JSON object but {line.strip()[:40]}")
            _require_field(where, field, record)
            documents.append(_text(where, field, record[field]))
    return documents


def _read_parquet(path: Path, field: str) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _require_field(str(path), field, file.schema_arrow.names)
            values = file.read(columns=[field]).column(0).to_pylist()
    except pyarrow.ArrowException as error:
        raise UsageError(f"{path} is not a readable parquet file: {_first_line(error)}") from error
    return [_text(f"{path}, row {i}", field, value) for i, value in enumerate(values, start=1)]


def _read_hub(source: str, field: str) -> list[str]:
    import logging

    import datasets

    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    hub_log.setLevel(logging.ERROR)  # it reports every retry; the error below says it once
    try:
        data = datasets.load_dataset(source, split="train")
    except Exception as error:
        raise UsageError(
            f"cannot load the data set {source!r}: {_first_line(error)} (check the id and the "
            "network, or give a local file)"
        ) from error
    finally:
        hub_log.setLevel(level)
    _require_field(source, field, data.column_names)
    return [_text(f"{source}, row {i}", field, value) for i, value in enumerate(data[field], 1)]


def _require_field(where: str, field: str, present: Iterable[str]) -> None:
    if field not in present:
        names = ", ".join(map(str, present)) or "none"
        raise UsageError(f"{where} has no field {field!r}: choose with --text-field from {names}")


def _text(where: str, field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: field {field!r} holds {type(value).__name__}, not text")
    return value


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


_READERS: dict[str, Callable[[Path, str], list[str]]] = {
    ".txt": _read_txt,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
