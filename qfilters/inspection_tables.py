"""What `inspect` measured, in tables: pure functions of the JSON document. Needs no device."""

from collections.abc import Iterator

# What of the observations is shown: key, words, format.
OBSERVED = (
    ("filter_projection", "mean query: projection on the filter", ".2f"),
    ("mean_projection", "mean query along the first of D directions", ".2f"),
    ("other_projection", "mean query along the others, mean size", ".3f"),
    ("ratio", "first / others", ".1f"),
    ("top_energy", "share of the energy along the top direction", ".1%"),
    ("key_axis", "size of the cosine of the keys' first axis to the filter", ".2f"),
)


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
    counted = (
        ("query heads whose mean query points along the filter", "positive_query_heads", "query"),
        ("KV heads whose mean key points against the filter", "negative_keys", "kv"),
    )
    cells = [[text, f"{found[n]} of {found[f'n_{kind}_heads']}", "-"] for text, n, kind in counted]
    cells += [_observed(found, *line) for line in OBSERVED]
    title = f"{found['n_query_heads']} query heads, {found['n_queries']} queries each"
    yield f"geometry of {title}, {texts}", ["observation", "found", "95 % interval"], cells

    rows = measured["rank_correlation"]
    columns = ["method", "correlation", "by later tokens", "size", "right sign", "without sinks"]
    without = {row["method"]: row for row in rows if row["skipped"]}
    cells = [
        [
            row["method"],
            _with_interval(row["correlation"], row["low"], row["high"]),
            _with_interval(row["later"], row["later_low"], row["later_high"]),
            _number(row["size"]),
            "-" if row["right_sign"] is None else f"{row['right_sign']:.1%}",
            _number(without.get(row["method"], {}).get("correlation")),
        ]
        for row in rows
        if not row["skipped"]
    ]
    n = f"{rows[0]['n_heads']} KV heads, {rows[0]['n_rows']} rows"
    title = f"rank correlation with the attention from all queries after a row ({n}, {texts})"
    yield title, columns, cells

    rows = measured["retained_mass"]
    columns = ["method", "budget", "retained", "beyond sinks"]
    cells = [
        [
            row["method"],
            str(row["budget"]),
            _with_interval(row["retained"], row["low"], row["high"]),
            _with_interval(row["beyond_sinks"], row["beyond_sinks_low"], row["beyond_sinks_high"]),
        ]
        for row in rows
    ]
    n = f"{rows[0]['n_rows']} rows, {rows[0]['n_queries']} tokens after them"
    yield f"share of later attention on the rows kept ({n}, {texts}, sinks counted)", columns, cells


def _observed(found: dict, name: str, text: str, form: str) -> list[str]:
    low, high = found["intervals"].get(name, (None, None))
    value = "-" if found[name] is None else format(found[name], form)
    ends = "-" if low is None else f"[{low:{form}}, {high:{form}}]"
    return [text, value, ends]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _with_interval(value: float | None, low: float | None, high: float | None) -> str:
    return _number(value) + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
