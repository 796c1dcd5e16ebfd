"""Every claim has a rule; summaries on both sides of it get the other verdict."""

import pytest
import result_rows as made
from claim_cases import CASES, LACKING, budgeted, inspected, paired, ppl, recents, ruled, shaped

from qfilters.report import report_page, tables
from qfilters.report.claims import CLAIMS, claims_table
from qfilters.report.ppl import FALLBACK
from qfilters.report.runs import Run, read_evidence, read_runs
from qfilters.report.verdicts import CannotJudge


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
    below_the_bound = inspected(fallback=0.06, apart=0.1)
    assert judge("no better than noise", below_the_bound)[0] is False
    signs = inspected(fallback=0.0, apart=0.3)
    signs["rank_correlation"][2]["by_layer"] = [[0.1], [0.1], [-0.4]] * 30
    assert judge("no better than noise", signs)[0] is False, "two thirds of the signs are right"
    assert judge("keep equally much", budgeted(offset=8))[0] is False
    assert judge("keep equally much", budgeted(kept_mean=7.5))[0] is False
    assert judge("Nothing drifts", budgeted(offset_error=1))[0] is False
    assert judge("Nothing drifts", budgeted(dense_difference=0.5))[0] is False
    assert judge("better sign", shaped(drift=0.1))[0] is False


def test_other_ways_to_be_undecided():
    assert judge("no better than noise", inspected(texts=1))[0] is None
    assert judge("better than the norm", inspected(texts=1))[0] is None
    assert judge("at least 10 times", inspected(texts=1))[0] is None
    assert judge("better sign", shaped(drift=0.25))[0] is None
    assert judge("better sign", shaped(width=0))[0] is None
    assert judge("Without a recent window", recents(5.5, 5.0, 5.0))[0] is None, (
        "the bound is in the interval"
    )
    assert judge("mild compression", ppl(20.0, 16.0, others=["knorm"]))[0] is None


def test_what_rounding_left_of_zero_is_no_side():
    holds, numbers = judge("1024 tokens: more are found than with the norm", paired(-9, -5, -1e-15))
    assert holds is None and "[-9.0, +0.0]" in numbers


def test_what_has_no_interval_hides_no_contradiction():
    summary = paired(-9, -5, -1)
    summary["pairs"][1] |= {"difference": 0.0, "difference_low": None, "difference_high": None}
    claim = "1024 tokens: more are found than with the norm"
    assert judge(claim, summary)[0] is False
    summary["pairs"][0] |= {"difference": 5.0, "difference_low": 1.0, "difference_high": 9.0}
    assert judge(claim, summary) == (None, "one sample, or equal differences: no interval")


def test_the_better_of_both_signs_is_no_arm_of_the_control():
    holds, numbers = judge("better sign", shaped(better=0.4))
    assert holds is True and "the better of two signs is left out" in numbers


@pytest.mark.parametrize("case", LACKING)
def test_what_a_run_lacks_is_said(case):
    word, summary = LACKING[case]
    [claim] = [claim for claim in CLAIMS if word in claim.text]
    kind = Run(claim.item, "m", "ppl", summary, ())
    [row] = [row for row in claims_table([kind]).rows if row[0] == claim.text]
    assert row[2] == "cannot be judged" and row[3].startswith("the run lacks "), row


def test_a_model_that_cannot_do_the_task_tells_nothing():
    hard = ruled("vt", 0, 9, discriminative=False, ceiling=20.0)
    rows = claims_table([Run("ruler-hard", "m", "ruler", hard, ())]).rows
    [row, _] = [row for row in rows if row[0].startswith("Chains of variables")]
    found = "the full cache fails too: ceiling 20 %, below 50 (`ruler-hard`)"
    assert row[2:] == ["cannot be judged", found]


def test_a_hit_is_a_hit_whatever_the_full_cache_scores():
    hard = {"discriminative": False, "ceiling": 20.0}
    claim = "Chains of variables score 0 at every budget, 1024"
    assert judge(claim, ruled("vt", 16, 60, **hard))[0] is False
    with pytest.raises(CannotJudge, match="the full cache fails too"):
        judge(claim, ruled("vt", 0, 60, **hard))


def test_every_claim_is_tried_here_or_says_why_not():
    tried = [claim for claim in CLAIMS if any(word in claim.text for word in CASES)]
    rest = [claim for claim in CLAIMS if claim not in tried]
    assert all(claim.judge for claim in tried) and len(tried) == len(CASES)
    assert all(claim.judge is None and claim.why for claim in rest)


def test_numbers_are_per_token():
    _, numbers = judge("beat the fallback", ppl(15.0, 16.0))
    # Student's t of three texts, 0.001 apart: 4.303 times 0.001 / sqrt(3).
    near, far = "-0.5000 [-0.5025, -0.4975]", "-0.4000 [-0.4025, -0.3975]"
    apart = [f"{name} 64: {near}; {name} 128: {far}" for name in FALLBACK]
    assert numbers == f"nat per token, 3 texts, to {'; '.join(apart)}"


def test_the_table_says_what_was_not_measured(tmp_path):
    name = made.write(tmp_path, "study-budget", budgeted()["rows"])
    made.plan(tmp_path, budget=([""], {"": f"org__name/{name}"}), **{"recent-exact": ([""], {})})
    table = claims_table(read_evidence(tmp_path, read_runs(tmp_path)))
    verdicts = {row[0]: row[2:] for row in table.rows}
    assert len(verdicts) == len(CLAIMS)
    drifts = verdicts["Nothing drifts: survivors keep their rotation"]
    found = "offset off by 0, 0 of 32 stored keys changed, 1e-07 to a dense run's, threshold 1e-2"
    assert drifts == ["confirmed", f"{found} (`budget`)"]
    window = verdicts["Without a recent window perplexity is much worse, one token per step"]
    assert window == ["not measured yet", "`recent-exact`"]
    assert "| not testable here | needs a 70B model" in tables(tmp_path)["claims"]
    assert "Claims, one by one" in report_page(tmp_path)
