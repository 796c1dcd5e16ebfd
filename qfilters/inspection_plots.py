"""The figures of `inspect`, from what it measured: pure functions of the JSON document."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from .figures import bars, curves, heat_map
from .pictures import Picture
from .results import sanitize


def pictures(document: dict, name: str) -> Iterator[Picture]:
    """Every figure the document has numbers for.

    Args:
        document: of `inspect --json`, with `cosines`, `observations`, `rank_correlation` and
            `retained_mass`, or some of them.
        name: of the model, for the titles.
    """
    if found := document.get("cosines"):
        title = f"Cosine of the filters of {name} to those of {document['compared_with']}"
        data = _map(found["cosine"], "KV head", "cosine", (-1, 1), found["layers"])
        yield Picture("cosine", title, heat_map, data)
    if found := document.get("observations"):
        n = f"{found['n_texts']} texts, {found['n_queries']} queries"
        title = f"Mean projection of the queries of {name} on their filter ({n})"
        data = _map(found["projection_by_layer"], "query head", "q . filter")
        yield Picture("projection", title, heat_map, data)
        title = f"Projection of the mean key of {name} on its filter ({found['n_texts']} texts)"
        data = _map(found["keys_by_layer"], "KV head", "mean k . filter")
        yield Picture("keys", title, heat_map, data)
    rows = document.get("rank_correlation", [])
    counted = [row for row in rows if not row["skipped"]]
    for row in counted:
        title = f"{row['method']} against attention received, {name} ({row['n_texts']} texts)"
        data = _map(row["by_layer"], "KV head", "rank correlation", (-1, 1))
        yield Picture(f"correlation_{sanitize(row['method'])}", title, heat_map, data)
    if counted:
        n = f"{counted[0]['n_heads']} KV heads, {counted[0]['n_texts']} texts"
        for keys, who in (
            (("correlation", "low", "high"), "from all queries after a row"),
            (("later", "later_low", "later_high"), "from tokens after the context"),
        ):
            data = {
                "values": {r["method"]: tuple(r[k] for k in keys) for r in counted},
                "x": "Spearman correlation, mean over KV heads",
            }
            title = f"Rank correlation of score and attention {who}, {name} ({n})"
            yield Picture(keys[0], title, bars, data)
    if rows := document.get("retained_mass"):
        series: dict[str, list] = {}
        for row in rows:
            point = (row["budget"], row["retained"], row["low"], row["high"])
            series.setdefault(row["method"], []).append(point)
        n = f"{rows[0]['n_rows']} rows of context, {rows[0]['n_texts']} texts"
        data = {
            "series": {method: sorted(points) for method, points in series.items()},
            "x": "budget (rows per KV head)",
            "y": "share of attention",
            "log_x": True,
        }
        title = f"Later attention on the rows that are kept, {name} ({n})"
        yield Picture("retained", title, curves, data)


def _map(
    by_layer: Sequence[Sequence[float | None]],
    head: str,
    unit: str,
    limits: tuple[float, float] | None = None,
    layers: Sequence[int] | None = None,
) -> dict:
    """Layers from left to right, heads from top to bottom."""
    heads = list(zip_longest(*by_layer))
    return {
        "values": heads,
        "x": "layer",
        "y": head,
        "x_ticks": layers or range(len(by_layer)),
        "y_ticks": range(len(heads)),
        "unit": unit,
        "limits": limits,
        "centre": 0.0,
    }
