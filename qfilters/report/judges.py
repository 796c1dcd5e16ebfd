"""The rules by which claims are judged: the summary of one item in, verdict and numbers out.

True: it holds; False: it does not, or the interval does not exclude the contrary; None: these
results cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..stats import paired_difference

Summary = Mapping[str, Any]
Judged = tuple[bool | None, str]
Judge = Callable[[Summary], Judged]


def drift(summary: Summary) -> Judged:
    """The mean query projects positively in every head."""
    found = summary["observations"]
    share = found["positive_query_heads"]
    return share == 1, f"{share:.1%} of {found['n_query_heads']} query heads"


def dominance(summary: Summary) -> Judged:
    """Along the top direction the mean is at least 10 times as long as along the others."""
    found = summary["observations"]
    if found["ratio"] is None:
        return None, "one text cannot tell"
    energy = f"{found['top_energy']:.0%} of the energy"
    return found["ratio"] >= 10, f"{found['ratio']:.1f} times, {energy}, held-out text"


def correlation(summary: Summary) -> Judged:
    """The filter's rank correlation lies above the norm's, intervals apart."""
    ours, norm = (_correlated(summary, name) for name in ("qfilters", "knorm"))
    return ours["low"] is not None and ours["low"] > norm["high"], _signed(ours, norm)


def noise(summary: Summary) -> Judged:
    """The fallback's correlation is within 0.1 of none, its sign right in 40 to 60 % of heads."""
    found = _correlated(summary, "qfilters_keysvd")
    holds = abs(found["correlation"]) < 0.1 and 0.4 <= found["right_sign"] <= 0.6
    return holds, f"{_signed(found)}, right sign in {found['right_sign']:.0%} of heads"


def _correlated(summary, method) -> Mapping[str, Any]:
    rows = summary["rank_correlation"]
    return next(row for row in rows if row["method"] == method and not row["skipped"])


def _signed(*rows) -> str:
    return ", ".join(f"{row['method']} {row['correlation']:+.3f}" for row in rows)


def below(other: str) -> Judge:
    """Less perplexity than `other` at every budget: the paired interval lies below 0."""

    def judge(summary: Summary) -> Judged:
        arms = {(row["method"], row["budget"]): row for row in summary["rows"]}
        apart = []
        for (method, budget), row in arms.items():
            if method == "qfilters":
                size = row["n_tokens"] // row["n_sequences"]
                both = (row["nll_sums"], arms[other, budget]["nll_sums"])
                apart.append((budget, *paired_difference(*both), size))
        if any(high is None for *_, high, _ in apart):
            return None, "one text has no interval"
        numbers = "; ".join(
            f"{b}: {d / n:+.4f} [{lo / n:+.4f}, {hi / n:+.4f}]" for b, d, lo, hi, n in apart
        )
        return all(high < 0 for *_, high, _ in apart), f"nat per token at budget {numbers}"

    return judge


def not_below(other: str) -> Judge:
    """The contrary of `below`: at some budget the interval does not lie below 0."""

    def judge(summary: Summary) -> Judged:
        holds, numbers = below(other)(summary)
        return None if holds is None else not holds, numbers

    return judge


def recent(summary: Summary) -> Judged:
    """No recent rows are the worst, by more than a tenth."""
    found = {row["recent"]: row["perplexity"] for row in summary["rows"]}
    order = sorted(found, key=found.get)
    numbers = ", ".join(f"{rows}: {value:.2f}" for rows, value in found.items())
    return order[-1] == 0 and found[0] > 1.1 * found[32], f"perplexity with {numbers}"


def chunks(summary: Summary) -> Judged:
    """Kept sets of the recorded stream are those of one chunk, in every layer and text."""
    rows = [row for row in summary["rows"] if row["method"] == "qfilters"]
    same = all(row["identical_layers"] == row["n_layers"] for row in rows)
    least = min(row["overlap_mean"] for row in rows)
    return same, f"{rows[0]['n_layers']} layers; on the model {least:.3f} in common at the least"


def direction(summary: Summary) -> Judged:
    """Some chunk turns the fallback's direction to a cosine below 0.9."""
    rows = [row for row in summary["rows"] if row["direction_cosine"] is not None]
    rows = [row for row in rows if not row["one_shot"]]
    numbers = ", ".join(f"{row['chunk']}: {row['direction_cosine']:+.2f}" for row in rows)
    return any(row["direction_cosine"] < 0.9 for row in rows), f"cosine at chunk {numbers}"


def equal(summary: Summary) -> Judged:
    """Every arm keeps its budget in every layer and says how many tokens it saw."""
    rows = [row for row in summary["rows"] if row["method"] != "none"]
    uniform = [row for row in rows if not row["method"].startswith("pyramidkv")]
    kept = all({row["kept_least"], row["kept_most"]} == {row["budget"]} for row in uniform)
    told = all(row["offset"] == row["tokens"] for row in rows)
    return kept and told, f"{len(rows)} arms in all cases; pyramidkv has a budget per layer"


def undrifted(summary: Summary) -> Judged:
    """No token is rotated to another place than its own, and no stored key changes."""
    rows = summary["rows"]
    worst, changed = max(row["drift"] for row in rows), sum(row["keys_changed"] for row in rows)
    checked = sum(row["keys_checked"] for row in rows)
    return worst == changed == 0, f"drift {worst}, {changed} of {checked} stored keys changed"


def zero(task: str) -> Judge:
    """The filter scores 0 wherever the ceiling can tell methods apart."""

    def judge(summary: Summary) -> Judged:
        rows = [r for r in summary["rows"] if (r["task"], r["method"]) == (task, "qfilters")]
        told = [row for row in rows if row["discriminative"]]
        if not told:
            ceilings = ", ".join(
                f"{ceiling:.0f}" for ceiling in sorted({r["ceiling"] for r in rows})
            )
            return None, f"ceiling {ceilings} %, below 50"
        numbers = ", ".join(f"{r['length']} at {r['size']}: {r['score']:.0f}" for r in told)
        return all(row["score"] == 0 for row in told), f"% {numbers}"

    return judge


def sign(summary: Summary) -> Judged:
    """With drift the better sign beats chance at every size; without, the filter is within 5 %."""
    arms = {(r["keys"], r["length"], r["budget"], r["method"]): r for r in summary["rows"]}
    sizes = [key[:3] for key in arms if key[3] == "random"]
    best = next(key[3] for key in arms if "better" in key[3])
    wins = [arms[*s, best]["low"] > arms[*s, "random"]["high"] for s in sizes if s[0] == "drift"]
    apart = max(
        abs(arms[*s, "qfilters"]["retained"] / arms[*s, "random"]["retained"] - 1)
        for s in sizes
        if s[0] != "drift"
    )
    numbers = f"{sum(wins)} of {len(wins)} sizes; without drift at most {apart:.1%} off chance"
    return all(wins) and apart < 0.05, numbers


def settled(summary: Summary) -> Judged:
    """Filters of other text have a mean cosine above 0.95."""
    rows = [row for row in summary["rows"] if row["against"] != "most"]
    numbers = ", ".join(f"{row['against']}: {row['mean_cosine']:.3f}" for row in rows)
    return all(row["mean_cosine"] > 0.95 for row in rows), f"mean cosine {numbers}"
