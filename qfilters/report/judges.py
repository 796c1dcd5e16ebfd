"""The rules by which claims about geometry, attention and the cache are judged.

The summary of one item in, verdict and numbers out. True: it holds; False: the contrary does; None:
the evidence excludes neither. A rule rests on an interval, on an exact property, or on a threshold
that a point value is held to, and then says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..stats import mean_t, wilson
from .verdicts import Judged, Summary, of_texts, some, verdict

# No better than noise: a mean rank correlation below this.
NOISE = 0.1
# The share of chance that an arm may lie above it.
ABOVE_CHANCE = 0.05


def drift(summary: Summary) -> Judged:
    """Threshold: the mean query over all texts projects positively in every head."""
    found = summary["observations"]
    positive, heads = found["positive_query_heads"], found["n_query_heads"]
    numbers = f"{positive} of {heads} query heads, threshold all"
    return of_texts(found["n_texts"], positive == heads), numbers


def opposed(summary: Summary) -> Judged:
    """Threshold: the mean key over all texts projects negatively in more than half the heads."""
    found = summary["observations"]
    negative, heads = found["negative_keys"], found["n_kv_heads"]
    numbers = f"{negative} of {heads} KV heads, threshold half"
    return of_texts(found["n_texts"], 2 * negative > heads), numbers


def dominance(summary: Summary) -> Judged:
    """Along the top direction the mean is 10 times as long as along the others, by its interval."""
    found = summary["observations"]
    low, high = found["intervals"]["ratio"]
    if low is None:
        return None, "one text cannot tell"
    numbers = (
        f"{found['ratio']:.0f} [{low:.0f}, {high:.0f}] times, {found['n_texts']} held-out texts"
    )
    energy = f"{found['top_energy']:.0%} of the energy"
    return verdict(low >= 10, high < 10), f"{numbers}, {energy}, bound 10"


def correlation(summary: Summary) -> Judged:
    """The intervals of the filter's and the norm's rank correlation lie apart."""
    ours, norm = (_correlated(summary, name) for name in ("qfilters", "knorm"))
    numbers = f"{_signed(ours)}, {_signed(norm)}, {ours['n_texts']} texts"
    if ours["low"] is None or norm["low"] is None:
        return None, f"{numbers}, no interval"
    return verdict(ours["low"] > norm["high"], ours["high"] < norm["low"]), numbers


def noise(summary: Summary) -> Judged:
    """The fallback's correlation is not above 0 and below `NOISE`, its sign right by chance.

    The intervals are over heads: a sign is drawn once per head, and every text sees the same. The
    contrary: the interval lies above 0, or that of heads with the right sign above a half.
    """
    found = _correlated(summary, "qfilters_keysvd")
    heads = [x for layer in found["by_layer"] for x in layer if x is not None]
    mean, low, high = mean_t(heads)
    if found["n_texts"] < 2 or low is None:
        return None, "one text or one head cannot tell"
    right = sum(x > 0 for x in heads)
    least, most = wilson(right, len(heads))
    better = low > 0 or least > 0.5
    numbers = (
        f"{found['method']} {mean:+.4f} [{low:+.4f}, {high:+.4f}] over {len(heads)} heads, bound "
        f"{NOISE}; right sign in {right / len(heads):.0%} [{least:.0%}, {most:.0%}]; its size "
        f"{found['size']:.2f} is no noise"
    )
    return verdict(not better and high < NOISE, better), numbers


def settled(summary: Summary) -> Judged:
    """Threshold: filters of other text have a mean cosine above 0.95."""
    rows = [row for row in summary["rows"] if row["against"] != "most"]
    near = all(row["mean_cosine"] > 0.95 for row in some(rows, "other text"))
    numbers = ", ".join(f"{row['against']}: {row['mean_cosine']:.3f}" for row in rows)
    return near, f"mean cosine {numbers}, threshold 0.95"


def chunks(summary: Summary) -> Judged:
    """Exact: kept sets of the recorded stream are those of one chunk, in every layer and text."""
    rows = [r for r in summary["rows"] if r["method"] == "qfilters" and not r["one_shot"]]
    same = all(r["identical_layers"] == r["n_layers"] for r in some(rows, "`qfilters` in chunks"))
    least = min(row["overlap_least"] for row in rows)
    return same, f"{rows[0]['n_layers']} layers; on the model {least:.3f} in common at the least"


def direction(summary: Summary) -> Judged:
    """Threshold: some chunk turns the fallback's direction to a mean cosine below 0.9."""
    rows = [r for r in summary["rows"] if r["direction_cosine"] is not None and not r["one_shot"]]
    turned = any(r["direction_cosine"] < 0.9 for r in some(rows, "`qfilters_keysvd` in chunks"))
    numbers = ", ".join(f"{row['chunk']}: {row['direction_cosine']:+.2f}" for row in rows)
    texts = rows[0]["n_sequences"]
    return of_texts(texts, turned), f"mean cosine at chunk {numbers}, threshold 0.9"


def equal(summary: Summary) -> Judged:
    """Exact: every arm keeps its budget on average over layers, and but for pyramidkv in each of
    them, and says how many tokens it saw."""
    rows = some([row for row in summary["rows"] if row["method"] != "none"], "arms that evict")
    uniform = [row for row in rows if not row["method"].startswith("pyramidkv")]
    kept = all({row["kept_least"], row["kept_most"]} == {row["budget"]} for row in uniform)
    kept = kept and all(row["kept_mean"] == row["budget"] for row in rows)
    told = all(row["offset"] == row["tokens"] for row in rows)
    return kept and told, f"{len(rows)} arms in all cases; pyramidkv's rows differ by layer"


def undrifted(summary: Summary) -> Judged:
    """Exact: offsets are the tokens fed, no stored key changes. Threshold: keys are the dense ones.

    Sums in another order keep keys from being equal to the dense run's; a wrong rotation is no
    rounding.
    """
    rows = some(summary["rows"], "arms")
    worst = max(row["offset_error"] for row in rows)
    changed = sum(row["keys_changed"] for row in rows)
    checked = sum(row["keys_checked"] for row in rows)
    apart = max(row["dense_difference"] for row in rows)
    numbers = (
        f"offset off by {worst}, {changed} of {checked} stored keys changed, "
        f"{apart:.0e} to a dense run's, threshold 1e-2"
    )
    return worst == changed == 0 and apart < 1e-2, numbers


def sign(summary: Summary) -> Judged:
    """With drift the better sign beats `random` at every size, by intervals. Without, the intervals
    of the arms that have one sign end within `ABOVE_CHANCE` above chance, budget over length.

    The better sign is no arm of the control: the better of two is above chance by being chosen.
    """
    arms = {(r["keys"], r["length"], r["budget"], r["method"]): r for r in summary["rows"]}
    best = [row for key, row in arms.items() if key[0] == "drift" and "better" in key[3]]
    lots = [arms[*_size(row), "random"] for row in some(best, "the better sign")]
    filters = [
        row
        for (keys, *_, method), row in arms.items()
        if keys != "drift" and method.startswith(("qfilters", "keysvd")) and "better" not in method
    ]
    some(filters, "a filter on keys without drift")
    if any(row["low"] is None for row in (*best, *lots, *filters)):
        return None, "one seed has no interval"
    pairs = list(zip(best, lots, strict=True))
    wins = sum(ours["low"] > lot["high"] for ours, lot in pairs)
    lost = any(ours["high"] < lot["low"] for ours, lot in pairs)
    least, most = (
        max(row[end] * row["length"] / row["budget"] - 1 for row in filters)
        for end in ("low", "high")
    )
    numbers = (
        f"better sign, known afterwards, above chance at {wins} of {len(best)} sizes; without "
        f"drift intervals of arms with one sign end at most {most:+.1%} above chance, bound "
        f"{ABOVE_CHANCE:.0%}; the better of two signs is left out there, as choosing it lifts it"
    )
    holds = wins == len(best) and most < ABOVE_CHANCE
    return verdict(holds, lost or least > ABOVE_CHANCE), numbers


def _size(row: Mapping[str, Any]) -> tuple:
    return row["keys"], row["length"], row["budget"]


def _correlated(summary: Summary, method: str) -> Mapping[str, Any]:
    found = [r for r in summary["rank_correlation"] if r["method"] == method and not r["skipped"]]
    known = [row for row in found if row["correlation"] is not None]
    return some(known, f"a correlation of `{method}`")[0]


def _signed(row: Mapping[str, Any]) -> str:
    ends = "" if row["low"] is None else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    return f"{row['method']} {row['correlation']:+.3f}{ends}"
