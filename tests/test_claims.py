"""Every claim has a rule; fixtures on both sides of it get the other verdict."""

import math

import pytest
import result_rows as made

from qfilters.report import report_page, tables
from qfilters.report.claims import CLAIMS, claims_table
from qfilters.report.runs import read_evidence, read_runs


def inspected(share=1.0, ratio=20.0, ours=0.6, fallback=0.02, right=0.5):
    def row(method, value, **more):
        ends = {"low": value - 0.05, "high": value + 0.05}
        return {"method": method, "correlation": value, **ends, "skipped": 0, "right_sign": right}

    seen = made.INSPECTED["observations"] | {"positive_query_heads": share, "ratio": ratio}
    rows = [row("qfilters", ours), row("knorm", 0.4), row("qfilters_keysvd", fallback)]
    return {"observations": seen, "rank_correlation": rows}


def ppl(*nats, other="qfilters_keysvd", texts=3):
    """qfilters at `nats` against 20 of the other at every budget, in every text."""
    rows = []
    for budget, nat in zip((64, 128), nats, strict=True):
        sums = [nat + 0.01 * (i - (texts - 1) / 2) for i in range(texts)]
        rows.append(made.arm("qfilters", budget, math.exp(nat / 10), *sums))
        rows.append(made.arm(other, budget, math.exp(2), *[20.0] * texts))
    return {"rows": rows}


def recents(*values):
    pairs = zip((0, 32, 64, 96), values, strict=True)
    return {"rows": [made.arm("x", 128, value, 1.0, recent=rows) for rows, value in pairs]}


def chunked(layers, cosine):
    rows = [
        made.CHUNKS[0],
        made.CHUNKS[1] | {"identical_layers": layers, "direction_cosine": None},
        made.CHUNKS[1] | {"method": "qfilters_keysvd", "direction_cosine": cosine},
    ]
    return {"rows": rows}


def budgeted(**changes):
    return {"rows": [made.BUDGET[0] | {"tokens": 30} | changes]}


def ruled(task, score, discriminative=True):
    row = made.CELL | {"task": task, "length": 64, "method": "qfilters", "size": "32"}
    return {"rows": [row | {"score": score, "discriminative": discriminative}]}


def shaped(best=0.9, isotropic=0.1):
    arms = {"qfilters": isotropic, "random": 0.1, "keysvd, better sign of each head": 0.1}
    rows = [{"keys": "isotropic", "method": arm, "retained": x} for arm, x in arms.items()]
    rows += [
        {"keys": "drift", "method": arm, "retained": x, "low": x - 0.01, "high": x + 0.01}
        for arm, x in (arms | {"keysvd, better sign of each head": best}).items()
    ]
    return {"rows": [row | {"length": 256, "budget": 64} for row in rows]}


def settled(value):
    return {"rows": [{"against": "other", "mean_cosine": value}, {"against": "most"}]}


CASES = {  # a word of the claim -> summaries for: holds, does not, cannot tell
    "projects positively": (inspected(), inspected(share=0.99), None),
    "at least 10 times": (inspected(), inspected(ratio=9), inspected(ratio=None)),
    "better than the norm": (inspected(), inspected(ours=0.45), None),
    "no better than noise": (inspected(), inspected(fallback=0.2), None),
    "which text": (settled(0.97), settled(0.9), None),
    "beat the fallback": (ppl(15.0, 16.0), ppl(15.0, 21.0), ppl(15.0, 16.0, texts=1)),
    "They beat the norm": (ppl(15, 16, other="knorm"), ppl(15, 20, other="knorm"), None),
    "a window with sinks": (ppl(15, 16, other="streaming_llm"), None, None),
    "mild compression": (ppl(15, 21, other="knorm"), ppl(15, 16, other="knorm"), None),
    "recent window": (recents(9.0, 5.0, 5.1, 6.0), recents(5.2, 5.0, 5.1, 6.0), None),
    "kept set": (chunked(2, 0.5), chunked(1, 0.5), None),
    "direction does": (chunked(2, 0.5), chunked(2, 0.95), None),
    "keep equally much": (budgeted(), budgeted(kept_most=9), None),
    "Nothing drifts": (budgeted(), budgeted(keys_changed=1), None),
    "Variable tracking": (ruled("vt", 0.0), ruled("vt", 4.0), ruled("vt", 0.0, False)),
    "Two-hop": (ruled("qa_2", 0.0), ruled("qa_2", 4.0), ruled("qa_2", 0.0, False)),
    "better sign": (shaped(), shaped(best=0.1), None),
}


def judge(word, summary):
    [claim] = [claim for claim in CLAIMS if word in claim.text]
    return claim.judge(summary)


@pytest.mark.parametrize("word", CASES)
def test_both_sides_of_every_rule(word):
    for summary, wanted in zip(CASES[word], (True, False, None), strict=True):
        if summary is not None:
            holds, numbers = judge(word, summary)
            assert holds is wanted and numbers


def test_other_ways_to_fail():
    assert judge("no better than noise", inspected(right=0.9))[0] is False
    assert judge("keep equally much", budgeted(offset=8))[0] is False
    assert judge("Nothing drifts", budgeted(drift=1))[0] is False
    assert judge("better sign", shaped(isotropic=0.2))[0] is False
    assert judge("better sign", shaped(isotropic=0.08))[0] is False


def test_every_claim_is_tried_here_or_says_why_not():
    tried = [claim for claim in CLAIMS if any(word in claim.text for word in CASES)]
    rest = [claim for claim in CLAIMS if claim not in tried]
    assert all(claim.judge for claim in tried) and len(tried) == len(CASES)
    assert all(claim.judge is None and claim.why for claim in rest)


def test_numbers_are_per_token():
    _, numbers = judge("beat the fallback", ppl(15.0, 16.0))
    assert numbers == (
        "nat per token at budget 64: -0.5000 [-0.5010, -0.4990]; 128: -0.4000 [-0.4010, -0.3990]"
    )


def test_the_table_says_what_was_not_measured(tmp_path):
    name = made.write(tmp_path, "study-budget", budgeted()["rows"])
    made.plan(tmp_path, budget=([""], {"": f"org__name/{name}"}), recent=([""], {}))
    table = claims_table(read_evidence(tmp_path, read_runs(tmp_path)))
    verdicts = {row[0]: row[2:] for row in table.rows}
    assert len(verdicts) == len(CLAIMS)
    drifts = verdicts["Nothing drifts: survivors keep their rotation"]
    assert drifts == ["confirmed", "drift 0, 0 of 32 stored keys changed (`budget`)"]
    window = verdicts["Without a recent window perplexity is much worse"]
    assert window == ["not measured yet", "`recent`"]
    assert "| not testable here | needs a 70B model" in tables(tmp_path)["claims"]
    assert "Claims, one by one" in report_page(tmp_path)
