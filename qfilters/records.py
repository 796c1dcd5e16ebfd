"""The shapes of what is in result files: rows, the `--json` document, and lm-eval's document.

Knows no files. A value that may be missing is null and says so here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

SCHEMA_VERSION = 1


class PplRow(TypedDict):
    """One arm (method at a budget) of a `ppl` run; a row of `--json` and of summary.json."""

    method: str  # name, with options as name(option=value)
    budget: int | None  # rows per KV head and layer; null for `none`, which has no budget
    sinks: int | None  # first positions protected; null for `none`
    recent: int | None  # last positions protected; null for `none`
    perplexity: float  # exp(total NLL / total predicted tokens)
    low: float | None  # 95 % interval, bootstrap over sequences; null below 2 sequences
    high: float | None  # as low
    n_tokens: int  # predicted tokens, all sequences
    n_sequences: int
    nll_sums: list[float]  # nat, one total per sequence
    rows_evicted: int  # tokens_seen - tokens_kept
    evicted: bool  # false: nothing was evicted, the number is the full cache's
    tokens_seen: int  # per KV head and layer, at the end of one sequence
    tokens_kept: int  # as tokens_seen
    compression_ratio: float  # seen / kept, at least 1
    kept_fraction: float  # kept / seen
    cache_bytes: int  # held at the end of one sequence, all layers
    full_cache_bytes: int  # what a full cache would hold
    bytes_ratio: float  # full_cache_bytes / (cache_bytes + bytes of the filters)
    kernel: str  # what chose and copied rows: metal, cuda or reference
    seconds: float  # wall time; where arms shared passes, that of all of them over their number
    arms: int  # arms that shared the forward passes, this one included
    mode: str  # `stream`: the budget holds after every forward pass


@dataclass(frozen=True)
class TaskResult:
    """One task in lm-eval's terms. Metrics are named as there, without the filter's suffix."""

    name: str
    metrics: Mapping[str, float]
    higher_is_better: Mapping[str, bool]
    n_original: int
    n_effective: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    intervals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def document(rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `--json`, which is also summary.json.

    provenance: versions, machine, hashes, seed, and `command`, the words of the command line.
    """
    return {
        "rows": [dict(row) for row in rows],
        "qfilters": {"schema_version": SCHEMA_VERSION, **provenance},
    }


def lm_eval_document(
    model: str,
    tasks: Sequence[TaskResult],
    row: Mapping[str, Any],
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    *,
    date: float | None = None,
) -> dict[str, Any]:
    """One arm as lm-eval's results file, everything of ours under `qfilters`.

    lm-eval prints every key of `results` as a metric, so intervals and the row, which `--resume`
    reads back, stand under `qfilters`. `date` is in seconds since 1970, now by default.
    """
    return {
        "results": {
            task.name: {
                "alias": task.name,
                "sample_len": task.n_effective,
                **{f"{metric},none": value for metric, value in task.metrics.items()},
            }
            for task in tasks
        },
        "group_subtasks": {task.name: [] for task in tasks},
        "configs": {task.name: {"task": task.name, **task.settings} for task in tasks},
        "versions": {task.name: 1.0 for task in tasks},
        "n-shot": {task.name: 0 for task in tasks},
        "higher_is_better": {task.name: dict(task.higher_is_better) for task in tasks},
        "n-samples": {
            task.name: {"original": task.n_original, "effective": task.n_effective}
            for task in tasks
        },
        "config": {
            "model": "mlx",
            "model_args": {"pretrained": model},
            "model_dtype": config.get("dtype"),
            "batch_size": 1,
            "device": provenance.get("device"),
            "limit": config.get("num_samples"),
            "bootstrap_iters": config.get("bootstrap_iters"),
            "random_seed": config.get("seed"),
            "numpy_seed": config.get("seed"),
        },
        "git_hash": provenance.get("git_hash"),
        "date": time.time() if date is None else date,
        "pretty_env_info": ", ".join(f"{k} {v}" for k, v in provenance.items() if k in _ENV),
        "transformers_version": provenance.get("transformers"),
        "model_source": "qfilters",
        "model_name": model,
        "model_name_sanitized": model.replace("/", "__"),
        "task_hashes": {},
        # lm-eval stores the wall time as text.
        "total_evaluation_time_seconds": str(row["seconds"]),
        "qfilters": {
            "schema_version": SCHEMA_VERSION,
            **provenance,
            "config": dict(config),
            "eviction": dict(row),
            "interval": {task.name: dict(task.intervals) for task in tasks if task.intervals},
        },
    }


_ENV = frozenset({"qfilters", "mlx", "mlx_lm", "numpy", "python", "platform"})
