"""Summaries on both sides of every rule by which claims are judged."""

import math

import result_rows as made

from qfilters.report.ppl import FALLBACK
from qfilters.ruler.summary import ALL


def inspected(
    positive=4, negative=2, ratio=20.0, ours=0.6, fallback=0.0, apart=0.3, texts=3
):  # of 4 query heads and 2 KV heads
    """Half of the 90 heads correlate `apart` above the mean, half below it."""

    def row(method, value):
        ends = {"low": value - 0.05, "high": value + 0.05} if texts > 1 else made.NO_INTERVAL
        heads = [[value + apart, value - apart]] * 45
        facts = {"right_sign": (value + apart > 0) / 2 + (value > apart) / 2, "by_layer": heads}
        sizes = {"skipped": 0, "n_texts": texts, "size": apart}
        return {"method": method, "correlation": value, **ends, **facts, **sizes}

    seen = made.INSPECTED["observations"] | {"ratio": ratio}
    seen |= {"positive_query_heads": positive, "negative_keys": negative}
    seen["intervals"] = {"ratio": [ratio - 2, ratio + 2] if texts > 1 else [None, None]}
    rows = [row("qfilters", ours), row("knorm", 0.4), row("qfilters_keysvd", fallback)]
    return {"observations": seen | {"n_texts": texts}, "rank_correlation": rows}


def spread(nat, texts):
    return [nat + 0.01 * (i - (texts - 1) / 2) for i in range(texts)]


def ppl(*nats, ours="qfilters", others=FALLBACK, texts=3):
    """`ours` at `nats` against 20 of the others at every budget, in every text."""
    rows = []
    for budget, nat in zip((64, 128), nats, strict=True):
        rows.append(made.arm(ours, budget, math.exp(nat / 10), *spread(nat, texts)))
        rows += [made.arm(other, budget, math.exp(2), *[20.0] * texts) for other in others]
    return {"rows": rows}


def wide(other):
    """At every budget better in one text, worse in another."""
    rows = [made.arm("qfilters", 64, 7.0, 18.0, 21.0), made.arm(other, 64, 7.0, 20.0, 20.0)]
    return {"rows": rows}


def recents(*perplexities, texts=3):
    """The full cache, and 0, 32, 64 rows: the first in all texts alike, so differences are not."""
    rows = [made.arm("none", None, 1.0, *[1.0] * texts, recent=None)]
    for recent, value in zip((0, 32, 64), perplexities, strict=True):
        nat = 10 * math.log(value)
        nll = [nat + 0.01 * recent / 32 * (i - (texts - 1) / 2) for i in range(texts)]
        rows.append(made.arm("qfilters", 128, value, *nll, recent=recent))
    return {"rows": rows}


def chunked(layers, cosine, texts=2):
    rows = [
        made.CHUNKS[0],
        made.CHUNKS[1] | {"identical_layers": layers, "direction_cosine": None},
        made.CHUNKS[1] | {"method": "qfilters_keysvd", "direction_cosine": cosine},
    ]
    return {"rows": [row | {"n_sequences": texts} for row in rows]}


def budgeted(**changes):
    return {"rows": [made.BUDGET[0] | {"tokens": 30} | changes]}


def ruled(task, low, high, **changes):
    row = made.CELL | {"task": task, "length": 64, "method": "qfilters", "size": "32"}
    return {"rows": [row | {"score": low, "low": low, "high": high, "evicted": 5} | changes]}


def shaped(drift=0.9, one_sign=0.25, better=0.29, width=0.01):
    """A quarter is chance."""
    best = "keysvd, better sign of each head"

    def row(keys, method, x):
        ends = {"retained": x, "low": x - width, "high": x + width} if width else made.NO_INTERVAL
        return {"keys": keys, "method": method, "length": 256, "budget": 64, **ends}

    arms = {"qfilters": 0.25, "keysvd +1": 0.25, "keysvd -1": one_sign, best: better, "knorm": 0.2}
    rows = [row("isotropic", arm, x) for arm, x in arms.items()]
    return {"rows": [*rows, row("drift", best, drift), row("drift", "random", 0.25)]}


def paired(*ends, a="qfilters", other="knorm"):
    """The difference over tasks at two sizes; `qfilters` may be the second of the pair."""
    names = ("difference_low", "difference", "difference_high")
    row = {"task": ALL, "length": 1024, "a": a, "b": other}
    far = row | dict(
        zip(names, (50.0, 60.0, 70.0) if a == "qfilters" else (-70, -60, -50), strict=True)
    )
    near = row | dict(zip(names, ends, strict=True))
    return {"pairs": [near | {"size": "512"}, far | {"size": "768"}, far | {"task": "vt"}]}


def reached(*nats, texts=3):
    """Two filters at one budget: the first at 20 nats in every text."""
    first = made.arm("qfilters --filters short.npz", 64, 7.0, *[20.0] * texts)
    rows = [made.arm("qfilters --filters long.npz", 64, 7.0, *spread(nat, texts)) for nat in nats]
    return {"rows": [first, *rows, made.arm("random --filters short.npz", 64, 9.0, 1.0)]}


def settled(value):
    return {"rows": [{"against": "other", "mean_cosine": value}, {"against": "most"}]}


CASES = {  # a word of the claim -> summaries for: holds, does not, undecided
    "projects positively": (inspected(), inspected(positive=3), inspected(texts=1)),
    "projects negatively": (inspected(), inspected(negative=1), inspected(texts=1)),
    "at least 10 times": (inspected(), inspected(ratio=7), inspected(ratio=11)),
    "better than the norm": (inspected(), inspected(ours=0.2), inspected(ours=0.45)),
    "no better than noise": (
        inspected(),
        inspected(fallback=0.2),
        inspected(fallback=0.05),
    ),
    "halves of one corpus": (settled(0.97), settled(0.9), None),
    "beat the fallback": (ppl(15.0, 16.0), ppl(15.0, 21.0), ppl(15.0, 16.0, texts=1)),
    "They beat the norm": (
        ppl(15, 16, others=["knorm"]),
        ppl(15, 21, others=["knorm"]),
        wide("knorm"),
    ),
    "beat sinks and last rows": (
        ppl(15, 16, others=["streaming_llm"]),
        None,
        wide("streaming_llm"),
    ),
    "They beat rows kept by lot": (ppl(15, 16, others=["random"]), None, wide("random")),
    "The norm beats rows": (ppl(15, 16, ours="knorm", others=["random"]), None, None),
    "mild compression": (
        ppl(15, 21, others=["knorm"]),
        ppl(15, 16, others=["knorm"]),
        wide("knorm"),
    ),
    **{
        text: (recents(9.0, 5.0, 5.1), recents(5.2, 5.0, 5.1), recents(9, 5, 6, texts=1))
        for text in ("Without a recent window", "The same with 32 tokens")
    },
    "quarter of the budget": (recents(9, 5, 6), recents(9, 5, 4.9), recents(9, 5, 6, texts=1)),
    "from sequences of 4096": (reached(19.0), reached(21.0), reached(20.0)),
    "kept set": (chunked(2, 0.5), chunked(1, 0.5), None),
    "direction of the fallback": (chunked(2, 0.5), chunked(2, 0.95), chunked(2, 0.5, texts=1)),
    "keep equally much": (budgeted(), budgeted(kept_most=9), None),
    "Nothing drifts": (budgeted(), budgeted(keys_changed=1), None),
    **{
        f"Needles in {length} tokens: more are found than with {words}": (
            paired(1, 5, 9, other=other),
            paired(1, 5, 9, a=other, other="qfilters"),
            paired(-1, 5, 9, other=other),
        )
        for length in (1024, 2048)
        for other, words in (
            ("knorm", "the norm"),
            ("streaming_llm", "sinks"),
            ("snapkv", "SnapKV"),
            ("random", "rows kept by lot"),
        )
    },
    **{
        f"{words} score 0 at every budget, {length}": (
            ruled(task, 0, 9),
            ruled(task, 1, 40),
            ruled(task, 0, 43),
        )
        for length in (1024, 2048)
        for task, words in (("vt", "Chains of variables"), ("qa_2", "Two-hop questions"))
    },
    "chunks do not save": (
        ruled("vt", 0, 9, method="qfilters --prefill-step-size 64"),
        ruled("vt", 1, 40),
        ruled("vt", None, None),
    ),
    "better sign": (shaped(), shaped(one_sign=0.28), shaped(one_sign=0.26)),
}

LACKING = {
    "ppl": ("They beat the norm", {"rows": ppl(15, 16, others=["knorm"])["rows"][:3]}),
    "arm": ("beat the fallback", wide("knorm")),
    "recent": ("Without a recent window", {"rows": recents(9, 5, 5)["rows"][2:]}),
    "quarter": ("quarter of the budget", {"rows": recents(9, 5, 5)["rows"][:2]}),
    "filters": ("from sequences of 4096", reached()),
    "pairs": ("1024 tokens: more are found than with the norm", paired(1, 5, 9, other="h2o")),
    "knorm": ("better than the norm", {"rank_correlation": inspected()["rank_correlation"][:1]}),
    "chunks": ("kept set", {"rows": made.CHUNKS[:1]}),
    "learned": ("direction of the fallback", {"rows": [made.CHUNKS[0]]}),
    "other text": ("halves of one corpus", {"rows": [{"against": "most"}]}),
    "random": ("better sign", {"rows": shaped()["rows"][:-1]}),
    "control": ("better sign", {"rows": shaped()["rows"][-2:]}),
    "task": ("Two-hop questions score 0 at every budget, 1024", ruled("vt", 0, 9)),
    "evicted": ("Two-hop questions score 0 at every budget, 1024", ruled("qa_2", 0, 9, evicted=0)),
    "key": (
        "Two-hop questions score 0 at every budget, 1024",
        {"rows": [made.CELL | {"task": "qa_2", "method": "qfilters"}]},
    ),
    "arms": ("keep equally much", {"rows": []}),
}
