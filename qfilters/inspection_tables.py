"""What `inspect` measured, in tables: pure functions of the JSON document. Needs no device."""

from collections.abc import Iterator


def measured_tables(measured: dict) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, column names and cells of what was measured; the first column is text."""
    if "cosines" in measured:
        found = measured["cosines"]
        names = ("mean_cosine", "min_cosine", "mean_abs_cosine", "min_abs_cosine")
        cells = [
            [str(found["n_heads"]), *(f"{found[n]:.4f}" for n in names), str(found["opposed"])]
        ]
        columns = ["KV heads", "mean cosine", "least", "mean |cosine|", "least |.|", "opposed"]
        yield f"filters against {measured['compared_with']}", columns, cells
    if "observations" not in measured:
        return
    found = measured["observations"]
    texts = f"{found['n_texts']} texts of {measured['corpus']['name']}"
    columns = ["queries", "positive query heads", "on filter", "first", "others", "ratio", "energy"]
    names = ("filter_projection", "mean_projection", "other_projection", "ratio")
    cells = [str(found["n_queries"]), f"{found['positive_query_heads']:.1%}"]
    cells += [_number(found[name], 2) for name in names] + [f"{found['top_energy']:.1%}"]
    yield f"mean query of {found['n_query_heads']} query heads, {texts}", columns, [cells]

    rows = measured["rank_correlation"]
    columns = ["method", "correlation", "95 % interval", "right sign", "without sinks"]
    without = {row["method"]: row for row in rows if row["skipped"]}
    cells = [
        [
            row["method"],
            _number(row["correlation"], 3),
            _interval(row["low"], row["high"]),
            "-" if row["right_sign"] is None else f"{row['right_sign']:.1%}",
            _number(without.get(row["method"], {}).get("correlation"), 3),
        ]
        for row in rows
        if not row["skipped"]
    ]
    n = f"{rows[0]['n_heads']} KV heads, {rows[0]['n_rows']} rows"
    yield (
        f"rank correlation with the attention received ({n}, {texts}, sinks counted)",
        columns,
        cells,
    )

    rows = measured["retained_mass"]
    columns = ["method", "budget", "retained", "95 % interval", "beyond sinks"]
    cells = [
        [
            row["method"],
            str(row["budget"]),
            _number(row["retained"], 4),
            _interval(row["low"], row["high"]),
            _number(row["beyond_sinks"], 4),
        ]
        for row in rows
    ]
    n = f"{rows[0]['n_rows']} rows, {rows[0]['n_queries']} tokens after them"
    yield f"share of later attention on the rows kept ({n}, {texts}, sinks counted)", columns, cells


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"[{low:.3f}, {high:.3f}]"
