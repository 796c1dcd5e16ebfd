"""What a filter artifact and a model's plan say, as rows and as a few lines of text."""

import numpy as np

from .filters import Filters


def filter_rows(filters: Filters) -> list[dict]:
    """One row per layer: means over its heads, and how many point the wrong way.

    `mean_projection` is the mean of `q . v1`, `other_projection` the mean over the other
    directions of `|mean of q . v|`, `explained_energy` the top direction's share of `sum |q|^2`;
    all null for published filters. `positive_share`: query heads whose mean query projects
    positively on the filter of their KV head; below 1 a filter points the wrong way.
    """
    rows = []
    for i, index in enumerate(filters.layer_index.tolist()):
        row = {"layer": index, "kv_heads": filters.q_filters.shape[1]}
        if filters.query_mean is None:
            names = ("explained_energy", "mean_projection", "other_projection", "positive_share")
            rows.append(row | dict.fromkeys(names))
            continue
        means = filters.query_mean[i].reshape(row["kv_heads"], -1, filters.q_filters.shape[2])
        along = np.einsum("hgd,hd->hg", means, filters.q_filters[i])
        rows.append(
            {
                **row,
                "explained_energy": float(filters.explained_energy[i].mean()),
                "mean_projection": float(filters.mean_projection[i].mean()),
                "other_projection": float(filters.other_projection[i].mean()),
                "positive_share": float((along > 0).mean()),
                "negative_kv_heads": np.flatnonzero((along <= 0).all(axis=1)).tolist(),
            }
        )
    return rows


def filter_summary(filters: Filters) -> str:
    """A paragraph: for which model, from which text, how the queries drift."""
    meta, rows = filters.metadata, filter_rows(filters)
    layers, heads, size = filters.q_filters.shape
    lines = [
        f"filters of {meta.get('model')}: {layers} layers x {heads} KV heads x {size} = "
        f"{filters.q_filters.size} parameters{_share(filters)}, score = k . filter, higher = keep"
    ]
    if filters.query_mean is None:
        return lines[0] + "\npublished filters: nothing is known of the queries they come from"
    corpus = meta.get("corpus", {})
    lines.append(
        f"text {corpus.get('name')} (sha256 {str(corpus.get('sha256'))[:12]}), "
        f"{meta.get('tokens')} tokens in sequences of up to {meta.get('sequence_length')}"
    )
    energy = filters.explained_energy.mean()
    ratio = filters.mean_projection.mean() / max(float(filters.other_projection.mean()), 1e-30)
    share = np.mean([row["positive_share"] for row in rows])
    lines.append(
        f"mean query projects positively on its filter in {share:.1%} of "
        f"{filters.mean_projection.size} query heads; top direction holds {energy:.0%} of the "
        f"energy, its mean projection is {ratio:.0f} times that of the others (on the "
        "calibration text itself, where the others nearly vanish by construction)"
    )
    wrong = [(row["layer"], head) for row in rows for head in row["negative_kv_heads"]]
    if wrong:
        lines.append(f"WRONG WAY ROUND (layer, KV head): {wrong}: calibrate again")
    if meta.get("degenerate_heads"):
        lines.append(f"no drift found in (layer, KV head): {meta['degenerate_heads']}")
    return "\n".join(lines)


def _share(filters):
    total = filters.metadata.get("model_parameters")
    return f" (1/{total // filters.q_filters.size} of the model's)" if total else ""


def filter_cells(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """A table of layers: column names and cells."""
    columns = ["layer", "KV heads", "top energy", "mean projection", "others", "positive heads"]
    cells = []
    for row in rows:
        known = row["explained_energy"] is not None
        cells.append(
            [str(row["layer"]), str(row["kv_heads"])]
            + (
                [
                    f"{row['explained_energy']:.1%}",
                    f"{row['mean_projection']:.2f}",
                    f"{row['other_projection']:.3f}",
                    f"{row['positive_share']:.0%}",
                ]
                if known
                else ["-"] * 4
            )
        )
    return columns, cells


def plan_rows(model) -> list[dict]:
    """One row per cache of a model: what it is, whether it evicts, and if not why."""
    from dataclasses import asdict

    from .plan import layer_plan

    return [asdict(plan) for plan in layer_plan(model)]


def plan_summary(rows: list[dict]) -> str:
    """The plan in lines, equal layers together."""
    groups: dict[tuple, list[int]] = {}
    for row in rows:
        what = "evicts" if row["evicts"] else "untouched"
        groups.setdefault((what, row["cache"], row["reason"]), []).append(row["index"])
    lines = []
    for (what, cache, reason), layers in groups.items():
        because = f": {reason}" if reason else ""
        lines.append(f"{what}: layers {_ranges(layers)} ({cache}){because}")
    return "\n".join(lines)


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2, 5`."""
    parts, start = [], numbers[0]
    for here, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following != here + 1:
            parts.append(str(start) if start == here else f"{start}-{here}")
            start = following
    return ", ".join(parts)


def method_rows() -> list[dict]:
    """One row per method: what it is, what it needs, what it costs, where it comes from."""
    from dataclasses import fields

    from .methods import METHODS

    return [
        {
            "name": name,
            "family": cls.family,
            "queries": "yes" if cls.needs_queries else "no",
            "filters": "yes" if cls.needs_filters else "no",
            "cost per step": cls.cost,
            "path-independent": "yes" if cls.path_independent else "no",
            "paper": cls.paper,
            "options": ", ".join(f"{f.name}={f.default}" for f in fields(cls)),
        }
        for name, cls in METHODS.items()
    ]
