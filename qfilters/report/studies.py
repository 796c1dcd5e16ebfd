"""What the studies are shown as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..figures import curves
from ..pictures import Picture
from .runs import Run
from .tables import Table, interval

Summary = Mapping[str, Any]


def chunks_tables(summary: Summary) -> list[Table]:
    """Chunks down: time, kept sets, direction and perplexity of every method."""
    times = "prefill s: min / median / max"
    columns = ["method", "chunk", times, "layers identical", "layer 0", "mean", "least"]
    body = []
    for row in summary["rows"]:
        cosine = row["direction_cosine"]
        body.append(
            [
                f"`{row['method']}`",
                str(row["chunk"]),
                " / ".join(f"{row[f'seconds{end}']:.2f}" for end in ("_least", "", "_most")),
                f"{row['identical_layers']} of {row['n_layers']}",
                *(f"{row[f'overlap_{name}']:.3f}" for name in ("first", "mean", "least")),
                "-" if cosine is None else f"{cosine:+.2f} ({row['direction_abs_cosine']:.2f})",
                f"{row['perplexity']:.2f}{interval(row['low'], row['high'], 2)}",
                f"{row['n_sequences']} x {row['n_tokens'] // row['n_sequences']}",
            ]
        )
    note = (
        "Layers identical: kept sets equal to those of one chunk when every layer is fed the keys "
        "and values of the dense run. Layer 0, mean, least: share of rows kept in common with one "
        "chunk on the model, where deeper layers saw evicted caches. Cosine: key-SVD direction to "
        "that of one chunk, same keys, and the mean of its size. Perplexity: of the tokens after "
        "the context. Times: over texts, the order of chunks rotated from text to text."
    )
    return [Table([*columns, "cosine", "perplexity", "n"], body, note=note)]


def chunks_pictures(run: Run) -> list[Picture]:
    """Overlap with one chunk by layer, one curve per method and chunk."""
    series = {
        f"{row['method']}, {row['chunk']}": [
            (layer, share, None, None) for layer, share in enumerate(row["overlap_by_layer"])
        ]
        for row in run.summary["rows"]
        if not row["one_shot"]
    }
    data = {"series": series, "x": "layer", "y": "share of rows kept in common"}
    title = f"Rows kept by a prefill in chunks and by one chunk, {run.model}"
    return [Picture("overlap", title, curves, data)] if series else []


def geometry_pictures(run: Run) -> list[Picture]:
    """Attention retained against the length, one figure per kind of keys and budget."""
    groups: dict[tuple, dict] = {}
    for row in run.summary["rows"]:
        point = (row["length"], row["retained"], row["low"], row["high"])
        arms = groups.setdefault((row["keys"], row["budget"]), {})
        arms.setdefault(row["method"], []).append(point)
    n = run.summary["rows"][0]["n_seeds"]
    return [
        Picture(
            f"retained_{keys}_{budget}",
            f"Attention retained on synthetic {keys} keys at budget {budget} (n {n} random seeds)",
            curves,
            {"series": arms, "x": "rows", "y": "share of attention", "log_x": True},
        )
        for (keys, budget), arms in groups.items()
    ]


def stability_tables(summary: Summary) -> list[Table]:
    """Comparisons down: which filters, from how many tokens, how near."""
    less, most = _less_text(summary)
    others = [row for row in summary["rows"] if row["against"] != "most"]
    lines = [("less text", f"{most} tokens", row) for row in less]
    lines += [(row["against"], "as many tokens", row) for row in others]
    body = [
        [
            name,
            str(row["tokens"]),
            against,
            *(f"{row[key]:.4f}" for key in ("mean_cosine", "min_cosine")),
            str(row["opposed"]),
            f"{row['n_heads']} KV heads",
        ]
        for name, against, row in lines
    ]
    columns = ["filters of", "tokens", "held against", "mean cosine", "least", "opposed", "n"]
    note = (
        "Mean and least cosine over all KV heads of the model, which are no sample: no interval. "
        "Opposed: heads with a cosine below 0."
    )
    return [Table(columns, body, note=note)]


def stability_pictures(run: Run) -> list[Picture]:
    """Cosine to the filters of the most text against the tokens."""
    rows, most = _less_text(run.summary)
    series = {
        name: [(row["tokens"], row[key], None, None) for row in rows]
        for name, key in (("mean over KV heads", "mean_cosine"), ("least", "min_cosine"))
    }
    data = {"series": series, "x": "tokens", "y": "cosine", "log_x": True}
    title = f"Filters of {run.model} from less text against those from {most} tokens"
    return [Picture("stability", title, curves, data)] if rows else []


def _less_text(summary: Summary) -> tuple[list[Mapping[str, Any]], int]:
    """The rows of fewer tokens than the most, and the most: against itself the cosine is 1."""
    rows = [row for row in summary["rows"] if row["against"] == "most"]
    most = max((row["tokens"] for row in rows), default=0)
    return [row for row in rows if row["tokens"] < most], most


def budget_tables(summary: Summary) -> list[Table]:
    """One table per case: rows kept, offset, keys."""
    cases: dict[tuple, list] = {}
    for row in summary["rows"]:
        cases.setdefault((row["prefill"], row["decode"], row["budget"]), []).append(row)
    columns = ["method", "rows kept", "offset", "offset off by", "keys changed", "to dense run"]
    note = (
        "Rows kept per KV head: least to most over layers, every head of a layer alike. Offset off "
        "by: how far the offset that a cache reports, to which the next token is rotated, was at "
        "most from the tokens fed. That stored keys keep their rotation is what the last two "
        "columns check. Keys changed: stored rows whose bits are not those of the key that came in "
        "at their position. To dense run: largest difference of a key of the first layer, over the "
        "largest key."
    )
    return [
        Table(
            columns,
            [
                [
                    f"`{row['method']}`",
                    _span(row["kept_least"], row["kept_most"]),
                    str(row["offset"]),
                    str(row["offset_error"]),
                    f"{row['keys_changed']} of {row['keys_checked']}",
                    f"{row['dense_difference']:.1e}",
                ]
                for row in rows
            ],
            f"{prefill} tokens and {decode} one by one, budget {budget}, "
            f"{rows[0]['n_layers']} layers",
            note if number == len(cases) else "",
        )
        for number, ((prefill, decode, budget), rows) in enumerate(cases.items(), start=1)
    ]


def geometry_tables(summary: Summary) -> list[Table]:
    """One table per kind of keys: arms down, lengths and budgets across."""
    made = []
    note = (
        "[low, high]: 95 % interval over random seeds; in round brackets the error of the output. "
        "The better sign is chosen afterwards, which alone lifts it above chance."
    )
    kinds = list(dict.fromkeys(row["keys"] for row in summary["rows"]))
    for keys in kinds:
        rows = [row for row in summary["rows"] if row["keys"] == keys]
        sizes = list(dict.fromkeys((row["length"], row["budget"]) for row in rows))
        arms: dict[str, dict] = {}
        for row in rows:
            arms.setdefault(row["method"], {})[row["length"], row["budget"]] = row
        body = []
        for arm, own in arms.items():
            cells = (own[size] for size in sizes)
            body.append([arm, *(_retained(row) for row in cells), _cosines(own.values())])
        columns = ["attention retained", *(f"{b} of {n}" for n, b in sizes), "cosine to axis"]
        title = f"{keys} keys, n {rows[0]['n_seeds']} random seeds x {rows[0]['n_heads']} heads"
        made.append(Table(columns, body, title, note if keys == kinds[-1] else ""))
    return made


def _retained(row: Mapping[str, Any]) -> str:
    ends = interval(row["low"], row["high"], 3)
    return f"{row['retained']:.3f}{ends} ({row['output_error']:.2f})"


def _cosines(rows) -> str:
    known = [row["cosine"] for row in rows if row["cosine"] is not None]
    return _span(*(f"{end(known):.2f}" for end in (min, max))) if known else "-"


def _span(low: Any, high: Any) -> str:
    return str(low) if low == high else f"{low} to {high}"
