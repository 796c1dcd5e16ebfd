"""The rules by which claims are judged: the summary of one item in, verdict and numbers out.

True: it holds; False: the contrary does; None: the evidence excludes neither. A rule rests on an
interval, on an exact property, or on a threshold that a point value is held to, and then says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Any

from ..stats import paired_difference, wilson

Summary = Mapping[str, Any]
Judged = tuple[bool | None, str]
Judge = Callable[[Summary], Judged]

# No better than noise: a mean rank correlation below this.
NOISE = 0.1
# Much worse: this many times the perplexity.
MUCH = 1.1
# Points of a score that count as none, and the share of chance that an arm may lie above it.
NOTHING, ABOVE_CHANCE = 10, 0.05


class CannotJudge(Exception):
    """Why a run says nothing about a claim."""


def drift(summary: Summary) -> Judged:
    """Threshold: the mean query over all texts projects positively in every head."""
    found = summary["observations"]
    share = found["positive_query_heads"]
    numbers = f"{share:.1%} of {found['n_query_heads']} query heads, threshold all"
    return _of_texts(found["n_texts"], share == 1), numbers


def dominance(summary: Summary) -> Judged:
    """Threshold: along the top direction the mean is 10 times as long as along the others."""
    found = summary["observations"]
    if found["ratio"] is None:
        return None, "one text cannot tell"
    energy = f"{found['top_energy']:.0%} of the energy"
    return found[
        "ratio"
    ] >= 10, f"{found['ratio']:.1f} times, {energy}, held-out text, threshold 10"


def correlation(summary: Summary) -> Judged:
    """The intervals of the filter's and the norm's rank correlation lie apart."""
    ours, norm = (_correlated(summary, name) for name in ("qfilters", "knorm"))
    numbers = f"{_signed(ours)}, {_signed(norm)}"
    if ours["low"] is None or norm["low"] is None:
        return None, f"{numbers}, no interval"
    return _verdict(ours["low"] > norm["high"], ours["high"] < norm["low"]), numbers


def noise(summary: Summary) -> Judged:
    """The fallback's correlation is not above 0 and below `NOISE`, its sign right by chance.

    The intervals are over heads: a sign is drawn once per head, and every text sees the same. The
    contrary: the interval lies above 0, or that of heads with the right sign above a half.
    """
    found = _correlated(summary, "qfilters_keysvd")
    heads = [x for layer in found["by_layer"] for x in layer if x is not None]
    mean, low, high = paired_difference(heads, [0.0] * len(heads))
    if found["n_texts"] < 2 or low is None:
        return None, "one text or one head cannot tell"
    least, most = wilson(sum(x > 0 for x in heads), len(heads))
    better = low > 0 or least > 0.5
    numbers = (
        f"{found['method']} {mean:+.3f} [{low:+.3f}, {high:+.3f}] over {len(heads)} heads, bound "
        f"{NOISE}; right sign in {found['right_sign']:.0%} [{least:.0%}, {most:.0%}]"
    )
    return _verdict(not better and high < NOISE, better), numbers


def below(other: str) -> Judge:
    """Less perplexity than `other` at every budget: the paired intervals lie below 0.

    The contrary: at some budget the interval lies above 0.
    """

    def judge(summary: Summary) -> Judged:
        arms = {(row["method"], row["budget"]): row for row in summary["rows"]}
        budgets = _some([b for method, b in arms if method == "qfilters"], "`qfilters`")
        if missing := [str(b) for b in budgets if (other, b) not in arms]:
            raise CannotJudge(f"the run lacks `{other}` at budget {', '.join(missing)}")
        apart = {b: _nats(arms["qfilters", b], arms[other, b]) for b in budgets}
        if any(low is None for _, low, _ in apart.values()):
            return None, "one text, or equal differences: no interval"
        found = "; ".join(
            f"{b}: {d:+.4f} [{lo:+.4f}, {hi:+.4f}]" for b, (d, lo, hi) in apart.items()
        )
        less = all(high < 0 for *_, high in apart.values())
        more = any(low > 0 for _, low, _ in apart.values())
        return _verdict(less, more), f"nat per token at budget {found}"

    return judge


def not_below(other: str) -> Judge:
    """The contrary of `below`: at some budget the interval lies above 0."""

    def judge(summary: Summary) -> Judged:
        holds, numbers = below(other)(summary)
        return None if holds is None else not holds, numbers

    return judge


def recent(summary: Summary) -> Judged:
    """Without recent rows perplexity is `MUCH` times that with any number of them, by intervals."""
    arms = {row["recent"]: row for row in summary["rows"] if row["recent"] is not None}
    others = {rows: arm for rows, arm in arms.items() if rows}
    if 0 not in arms or not others:
        raise CannotJudge("the run lacks an arm without recent rows, or one with")
    apart = {rows: _nats(arms[0], arm) for rows, arm in others.items()}
    if any(low is None for _, low, _ in apart.values()):
        return None, "one text, or equal differences: no interval"
    ratios = {rows: tuple(map(exp, found)) for rows, found in apart.items()}
    found = "; ".join(
        f"{rows}: {r:.2f} [{lo:.2f}, {hi:.2f}]" for rows, (r, lo, hi) in ratios.items()
    )
    worse = all(low > MUCH for _, low, _ in ratios.values())
    near = any(high < MUCH for *_, high in ratios.values())
    return _verdict(worse, near), f"times the perplexity with recent {found}; bound {MUCH}"


def chunks(summary: Summary) -> Judged:
    """Exact: kept sets of the recorded stream are those of one chunk, in every layer and text."""
    rows = [r for r in summary["rows"] if r["method"] == "qfilters" and not r["one_shot"]]
    same = all(r["identical_layers"] == r["n_layers"] for r in _some(rows, "`qfilters` in chunks"))
    least = min(row["overlap_mean"] for row in rows)
    return same, f"{rows[0]['n_layers']} layers; on the model {least:.3f} in common at the least"


def direction(summary: Summary) -> Judged:
    """Threshold: some chunk turns the fallback's direction to a mean cosine below 0.9."""
    rows = [r for r in summary["rows"] if r["direction_cosine"] is not None and not r["one_shot"]]
    turned = any(r["direction_cosine"] < 0.9 for r in _some(rows, "`qfilters_keysvd` in chunks"))
    numbers = ", ".join(f"{row['chunk']}: {row['direction_cosine']:+.2f}" for row in rows)
    texts = rows[0]["n_sequences"]
    return _of_texts(texts, turned), f"mean cosine at chunk {numbers}, threshold 0.9"


def equal(summary: Summary) -> Judged:
    """Exact: every arm keeps its budget in every layer and says how many tokens it saw."""
    rows = _some([row for row in summary["rows"] if row["method"] != "none"], "arms that evict")
    uniform = [row for row in rows if not row["method"].startswith("pyramidkv")]
    kept = all({row["kept_least"], row["kept_most"]} == {row["budget"]} for row in uniform)
    told = all(row["offset"] == row["tokens"] for row in rows)
    return kept and told, f"{len(rows)} arms in all cases; pyramidkv has a budget per layer"


def undrifted(summary: Summary) -> Judged:
    """Exact: offsets are the tokens fed, no stored key changes. Threshold: keys are the dense ones.

    Sums in another order keep keys from being equal to the dense run's; a wrong rotation is no
    rounding.
    """
    rows = _some(summary["rows"], "arms")
    worst, changed = max(row["drift"] for row in rows), sum(row["keys_changed"] for row in rows)
    checked = sum(row["keys_checked"] for row in rows)
    apart = max(row["dense_difference"] for row in rows)
    numbers = (
        f"offset off by {worst}, {changed} of {checked} stored keys changed, "
        f"{apart:.0e} to a dense run's, threshold 1e-2"
    )
    return worst == changed == 0 and apart < 1e-2, numbers


def zero(task: str) -> Judge:
    """The filter's interval ends below `NOTHING` points wherever it evicts and the model can.

    The contrary: some interval lies above 0.
    """

    def judge(summary: Summary) -> Judged:
        rows = [r for r in summary["rows"] if (r["task"], r["method"]) == (task, "qfilters")]
        _some(rows, f"`qfilters` on {task}")
        rows = _some([row for row in rows if row["evicted"] > 0], f"{task} with rows evicted")
        told = [row for row in rows if row["discriminative"]]
        if not told:
            ceilings = ", ".join(f"{c:.0f}" for c in sorted({r["ceiling"] for r in rows}))
            raise CannotJudge(f"the full cache fails too: ceiling {ceilings} %, below 50")
        if any(row["low"] is None for row in told):
            return None, "one prompt has no interval"
        numbers = ", ".join(
            f"{r['length']} at {r['size']}: {r['score']:.0f} [{r['low']:.0f}, {r['high']:.0f}]"
            for r in told
        )
        none = all(row["high"] < NOTHING for row in told)
        return _verdict(none, any(row["low"] > 0 for row in told)), f"% {numbers}; bound {NOTHING}"

    return judge


def sign(summary: Summary) -> Judged:
    """With drift the better sign beats `random` at every size, by intervals. Without, the intervals
    of the arms that have one sign end within `ABOVE_CHANCE` above chance, budget over length.

    The better sign is no arm of the control: the better of two is above chance by being chosen.
    """
    arms = {(r["keys"], r["length"], r["budget"], r["method"]): r for r in summary["rows"]}
    best = [row for key, row in arms.items() if key[0] == "drift" and "better" in key[3]]
    lots = [arms[*_size(row), "random"] for row in _some(best, "the better sign")]
    filters = [
        row
        for (keys, *_, method), row in arms.items()
        if keys != "drift" and method.startswith(("qfilters", "keysvd")) and "better" not in method
    ]
    _some(filters, "a filter on keys without drift")
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
    return _verdict(holds, lost or least > ABOVE_CHANCE), numbers


def settled(summary: Summary) -> Judged:
    """Threshold: filters of other text have a mean cosine above 0.95."""
    rows = [row for row in summary["rows"] if row["against"] != "most"]
    near = all(row["mean_cosine"] > 0.95 for row in _some(rows, "other text"))
    numbers = ", ".join(f"{row['against']}: {row['mean_cosine']:.3f}" for row in rows)
    return near, f"mean cosine {numbers}, threshold 0.95"


def _verdict(holds: bool, fails: bool) -> bool | None:
    return True if holds else False if fails else None


def _of_texts(n: int, holds: bool) -> bool | None:
    """One text decides nothing."""
    return holds if n > 1 else None


def _some(found: Sequence, what: str) -> Sequence:
    if not found:
        raise CannotJudge(f"the run lacks {what}")
    return found


def _size(row: Mapping[str, Any]) -> tuple:
    return row["keys"], row["length"], row["budget"]


def _nats(ours: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Paired difference in nat per token, low and high; the sequences of a run are equally long."""
    size = ours["n_tokens"] / ours["n_sequences"]
    found = paired_difference(ours["nll_sums"], other["nll_sums"])
    return tuple(None if x is None else x / size for x in found)


def _correlated(summary: Summary, method: str) -> Mapping[str, Any]:
    found = [r for r in summary["rank_correlation"] if r["method"] == method and not r["skipped"]]
    known = [row for row in found if row["correlation"] is not None]
    return _some(known, f"a correlation of `{method}`")[0]


def _signed(row: Mapping[str, Any]) -> str:
    ends = "" if row["low"] is None else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    return f"{row['method']} {row['correlation']:+.3f}{ends}"
