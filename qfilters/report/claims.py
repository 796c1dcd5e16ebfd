"""What paper and earlier MLX port claim, one by one, against the evidence. Rules, not opinions.

A verdict needs an interval that excludes the contrary, an exact property, or a threshold that is
named; where the evidence cannot tell (one text, a ceiling too low) that is what is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from . import judges as j
from . import judges_arms as arms
from .ppl import FALLBACK
from .runs import Run
from .tables import Table
from .verdicts import CannotJudge, Judge

VERDICTS = {True: "confirmed", False: "contradicted", None: "undecided"}
NOT_JUDGED, NOT_HERE = "cannot be judged", "not testable here"


class Claim(NamedTuple):
    """`judge` gets the summary of the item: whether it holds (None: undecided), and numbers."""

    source: str
    text: str
    item: str = ""
    judge: Judge | None = None
    why: str = ""


CLAIMS = (
    Claim(
        "paper 3.1, port",
        "The mean query projects positively on its filter in every head",
        "inspect",
        j.drift,
    ),
    Claim(
        "paper 3.1",
        "The mean key projects negatively on it in most heads",
        "inspect",
        j.opposed,
    ),
    Claim(
        "paper 3.2, port",
        "The top direction carries the mean; at least 10 times the others'",
        "inspect",
        j.dominance,
    ),
    Claim(
        "paper fig. 4, port",
        "The projection ranks keys by attention better than the norm",
        "inspect",
        j.correlation,
    ),
    Claim(
        "port",
        "The key-SVD fallback is no better than noise at it: its sign is a coin toss",
        "inspect",
        j.noise,
    ),
    Claim(
        "paper 4, port",
        "Filters hardly depend on the text: between halves of one corpus",
        "stability",
        j.settled,
    ),
    Claim(
        "port",
        "Calibrated filters beat the fallback, either sign, at every budget",
        "ppl-1024",
        arms.below(*FALLBACK),
    ),
    Claim(
        "paper fig. 5, port",
        "They beat the norm at every budget",
        "ppl-1024",
        arms.below("knorm"),
    ),
    Claim(
        "paper fig. 5",
        "They beat sinks and last rows at every budget",
        "ppl-1024",
        arms.below("streaming_llm"),
    ),
    Claim(
        "control", "They beat rows kept by lot at every budget", "ppl-1024", arms.below("random")
    ),
    Claim(
        "control",
        "The norm beats rows kept by lot at every budget",
        "ppl-1024",
        arms.below("random", ours="knorm"),
    ),
    Claim(
        "port",
        "On a longer text at mild compression they do not beat the norm everywhere",
        "ppl-3500",
        arms.not_below("knorm"),
    ),
    Claim(
        "port",
        "Without a recent window perplexity is much worse, one token per step",
        "recent-exact",
        arms.recent,
    ),
    Claim("port", "The same with 32 tokens per step", "recent", arms.recent),
    Claim("port", "A recent window of a quarter of the budget is best", "recent", arms.quarter),
    Claim(
        "ours",
        "On long texts filters from sequences of 4096 tokens beat those from 1024",
        "reach-3500",
        arms.reach,
    ),
    Claim(
        "port", "For given keys the kept set does not depend on prefill chunks", "chunks", j.chunks
    ),
    Claim("port", "The direction of the fallback does", "chunks", j.direction),
    Claim("port", "All arms keep equally much and report the true position", "budget", j.equal),
    Claim("port", "Nothing drifts: survivors keep their rotation", "budget", j.undrifted),
    *(
        Claim(
            "control" if other == "random" else "paper fig. 6",
            f"Needles in {length} tokens: more are found than with {words}",
            f"niah-{length}",
            arms.ahead(other),
        )
        for length in (1024, 2048)
        for other, words in (
            ("knorm", "the norm"),
            ("streaming_llm", "sinks and last rows"),
            ("snapkv", "SnapKV"),
            ("random", "rows kept by lot"),
        )
    ),
    *(
        Claim("port", f"{words} score 0 at every budget, {length} tokens", item, arms.zero(task))
        for length, item in ((1024, "ruler-hard"), (2048, "ruler-hard-2048"))
        for task, words in (("vt", "Chains of variables"), ("qa_2", "Two-hop questions"))
    ),
    Claim(
        "port",
        "Smaller prefill chunks do not save chains of variables: still 0",
        "vt-chunks",
        arms.zero("vt"),
    ),
    Claim(
        "port",
        "With drift the better sign beats chance, without it no filter does",
        "geometry",
        j.sign,
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
        "port",
        "Perplexities, ratios and scores of Llama-3.2-1B/3B and Qwen2.5-7B",
        why="needs those models: `configs/models/`",
    ),
    Claim(
        "port",
        "One block is up to 36 times faster than chunks of 16",
        why="a GPU's figure: `qfilters bench kernels` on one",
    ),
)


NOTE = (
    "[low, high]: 95 % interval; over texts by Student's t, over prompts by bootstrap, unless "
    "other things are named."
)


def claims_table(items: Iterable[Run]) -> Table:
    """Every claim with its verdict and the numbers behind it.

    Args:
        items: of evidence.json.
    """
    known = {run.name: run.summary for run in items}
    rows = []
    for claim in CLAIMS:
        verdict, numbers = NOT_HERE, claim.why
        if claim.judge:
            verdict, numbers = "not measured yet", f"`{claim.item}`"
            if summary := known.get(claim.item):
                verdict, found = _judged(claim.judge, summary)
                numbers = f"{found} (`{claim.item}`)"
        rows.append([claim.text, claim.source, verdict, numbers])
    return Table(["claim", "by", "here", "what was found"], rows, note=NOTE, words=True)


def _judged(judge: Judge, summary: Mapping[str, Any]) -> tuple[str, str]:
    try:
        holds, found = judge(summary)
    except CannotJudge as error:
        return NOT_JUDGED, str(error)
    except KeyError as error:
        return NOT_JUDGED, f"the run lacks {error}"
    return VERDICTS[holds], found
