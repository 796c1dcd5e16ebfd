"""How well methods foresee attention: rank correlation, and the attention on the rows they keep.

Tables over texts that `attention.observe` has run; runs nothing itself.
"""

from collections.abc import Sequence

import numpy as np

from .attention import Observed
from .stats import mean_t


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of `a` and `b` along the last axis, ties at their mean rank.

    NaN where one of them is constant or holds a NaN.
    """
    from scipy.stats import rankdata

    a, b = (rankdata(x, axis=-1) for x in (a, b))
    a, b = (x - x.mean(axis=-1, keepdims=True) for x in (a, b))
    length = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), length, out=np.full(len(a), np.nan), where=length > 0)


def rank_correlation(texts: Sequence[Observed], *, skip: int = 0) -> list[dict]:
    """Spearman correlation of each method's score with the attention received.

    The paper's figure 4, but for the row's own query, which is left out: mean attention from all
    queries after the row, those of the context among them. The methods that watch attention or
    average queries have seen the latter; `later` is what nobody has.

    Args:
        texts: observed with the same methods on the same model.
        skip: first rows of the context that are left out: 0 counts the attention sinks.

    Returns:
        One row per method, of the KV heads that have a correlation in every text: `correlation`
        mean over heads and texts, with `low` and `high` (95 %, t over texts; null below 2 and where
        all texts agree), `size` mean of its absolute value over heads, `right_sign` share of heads
        whose mean over texts is positive; `by_layer` that mean per head, null for the other heads;
        `later` with `later_low`, `later_high`: as `correlation`, with what tokens after the context
        pay alone, which no method saw; `n_heads`, `n_texts`, `n_rows` ranked per text, `skipped`.
        Null where no head has a correlation.
    """
    rows = []
    for method in texts[0].scores:
        found, later = (
            np.stack([spearman(t.scores[method][:, skip:], paid[:, skip:]) for t, paid in pairs])
            for pairs in ([(t, t.received) for t in texts], [(t, t.later_mass) for t in texts])
        )
        heads = found.mean(axis=0)  # NaN where one text has none
        known = np.isfinite(heads)
        rows.append(
            {
                "method": method,
                **_over_texts(found[:, known], "correlation"),
                **_over_texts(later[:, known], "later", "later_"),
                "size": _mean(np.abs(heads)),
                "right_sign": float((heads[known] > 0).mean()) if known.any() else None,
                "skipped": skip,
                "n_texts": len(texts),
                "n_heads": int(known.sum()),
                "n_rows": texts[0].context - skip,
                "by_layer": texts[0].by_layer(heads),
            }
        )
    return rows


def retained_mass(texts: Sequence[Observed]) -> list[dict]:
    """Share of the attention that the later tokens pay to the context that falls on kept rows.

    For one KV head: attention of all queries after the context, summed over them and the group, on
    the rows that a method keeps, over that on all rows of the context. `oracle` keeps the rows that
    hold most of this very mass, with none protected: no choice of as many rows holds more. (It has
    the same budget in every layer; pyramidkv has more in early layers.)

    Args:
        texts: observed with the same methods and budgets on the same model.

    Returns:
        One row per method and budget: `retained` mean over heads and texts with `low` and `high`
        (95 %, t over texts; null below 2, and where all agree, as when everything is kept),
        `beyond_sinks` the same with the first `sinks` rows left out of both sums; `by_layer`
        mean over the heads of each layer; `sinks`, `recent` rows protected; `n_texts`, `n_heads`,
        `n_rows` of the context, `n_queries` after it.
    """
    rows = []
    for arm, first in texts[0].retained.items():
        every = np.stack([text.retained[arm].every for text in texts])
        beyond = np.stack([text.retained[arm].beyond_sinks for text in texts])
        layers = texts[0].by_layer(every.mean(axis=0))
        rows.append(
            {
                "method": arm[0],
                "budget": arm[1],
                **_over_texts(every, "retained"),
                **_over_texts(beyond, "beyond_sinks", "beyond_sinks_"),
                "sinks": first.sinks,
                "recent": first.recent,
                "mode": "after_prefill",
                "n_texts": len(texts),
                "n_heads": every.shape[1],
                "n_rows": texts[0].context,
                "n_queries": texts[0].later,
                "by_layer": [_mean(np.array(heads, dtype=float)) for heads in layers],
            }
        )
    return rows


def _over_texts(values: np.ndarray, name: str, prefix: str = "") -> dict:
    """Mean of `[texts, heads]` over both, with its t interval over texts."""
    found = [mean for mean in map(_mean, values) if mean is not None]
    if not found:
        return dict.fromkeys((name, f"{prefix}low", f"{prefix}high"))
    mean, low, high = mean_t(found)
    return {name: mean, f"{prefix}low": low, f"{prefix}high": high}


def _mean(values: np.ndarray) -> float | None:
    """Mean of the finite values, None where there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None
