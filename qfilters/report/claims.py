"""What paper and seed claim, one by one, against what the evidence says. Rules, not opinions.

A verdict needs an interval that excludes the contrary, or an exact property; where the evidence
cannot tell (one text, a ceiling too low, another machine) that is what is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .judges import (
    Judge,
    below,
    chunks,
    correlation,
    direction,
    dominance,
    drift,
    equal,
    noise,
    not_below,
    recent,
    settled,
    sign,
    undrifted,
    zero,
)
from .runs import Run
from .tables import Table

YES, NO, CANNOT = "confirmed", "not confirmed", "not testable here"


class Claim(NamedTuple):
    """`judge` gets the summary of the item: whether it holds (None: cannot tell), and numbers."""

    source: str
    text: str
    item: str = ""
    judge: Judge | None = None
    why: str = ""


CLAIMS = (
    Claim(
        "paper 3.1, seed",
        "The mean query projects positively on its filter in every head",
        "inspect",
        drift,
    ),
    Claim(
        "paper 3.2, seed",
        "The top direction carries the mean; at least 10 times the others'",
        "inspect",
        dominance,
    ),
    Claim(
        "paper fig. 4, seed",
        "The projection ranks keys by attention better than the norm",
        "inspect",
        correlation,
    ),
    Claim("seed", "The key-SVD fallback is no better than noise at it", "inspect", noise),
    Claim(
        "paper 4, seed",
        "Filters hardly depend on which text they are made from",
        "stability",
        settled,
    ),
    Claim(
        "seed",
        "Calibrated filters beat the fallback at every budget",
        "ppl-1024",
        below("qfilters_keysvd"),
    ),
    Claim("paper fig. 5, seed", "They beat the norm at every budget", "ppl-1024", below("knorm")),
    Claim(
        "paper fig. 5",
        "They beat a window with sinks at every budget",
        "ppl-1024",
        below("streaming_llm"),
    ),
    Claim(
        "seed",
        "On a longer text at mild compression they do not beat the norm everywhere",
        "ppl-3500",
        not_below("knorm"),
    ),
    Claim("seed", "Without a recent window perplexity is much worse", "recent", recent),
    Claim("seed", "The kept set of a stream does not depend on prefill chunks", "chunks", chunks),
    Claim("seed", "The fallback's direction does", "chunks", direction),
    Claim("seed", "All arms keep equally much and report the true position", "budget", equal),
    Claim("seed", "Nothing drifts: survivors keep their rotation", "budget", undrifted),
    Claim("seed", "Variable tracking scores 0 at every budget", "ruler-seed", zero("vt")),
    Claim("seed", "Two-hop questions score 0 at every budget", "ruler-seed", zero("qa_2")),
    Claim(
        "seed",
        "With drift the better sign beats chance, without it no filter does",
        "geometry",
        sign,
    ),
    Claim(
        "paper fig. 6",
        "Needles are found at 64k tokens, 64 times compressed",
        why="needs Llama-3.1-8B: `configs/paper-niah.yaml`",
    ),
    Claim(
        "paper table 1",
        "RULER at 4096 tokens, 8 times compressed",
        why="needs a 70B model: `configs/paper-table1.yaml`",
    ),
    Claim(
        "seed",
        "Perplexities, ratios and scores of Llama-3.2-1B/3B and Qwen2.5-7B",
        why="needs those models: `configs/models/`",
    ),
    Claim(
        "seed",
        "One block is up to 36 times faster than chunks of 16",
        why="a GPU's figure: `qfilters bench kernels` on one",
    ),
)


def claims_table(items: Iterable[Run]) -> Table:
    """Every claim with its verdict and the numbers behind it.

    Args:
        items: of evidence.json.
    """
    known = {run.name: run.summary for run in items}
    rows = []
    for claim in CLAIMS:
        verdict, numbers = CANNOT, claim.why
        if claim.judge:
            verdict, numbers = "not measured yet", f"`{claim.item}`"
            if summary := known.get(claim.item):
                holds, found = claim.judge(summary)
                verdict = CANNOT if holds is None else YES if holds else NO
                numbers = f"{found} (`{claim.item}`)"
        rows.append([claim.text, claim.source, verdict, numbers])
    return Table(["claim", "by", "here", "what was found"], rows, words=True)
