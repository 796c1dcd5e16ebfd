"""Scores from rows: recomputed by hand from what the rows say."""

import numpy as np
import pytest

from qfilters.ruler import TASKS
from qfilters.ruler.run import Size
from qfilters.ruler.summary import ALL, means, pairs, summarise
from qfilters.ruler.table import difference_tables, mean_table, task_tables
from qfilters.stats import mean_interval, paired_difference, wilson


def row(i, score, method="qfilters", size="2x", task="vt", length=1024, **more):
    full = size == "full"
    return {
        "id": f"{task}/{length}/42/{i}",
        "task": task,
        "length": length,
        "method": method,
        "size": size,
        "budget": None if full else 450 + i,
        "n_kept": 900 + 2 * i if full else 450 + i,
        "n_context": 900 + 2 * i,
        "compression_ratio": 1.0 if full else 2.0,
        "fraction_removed": 0.0 if full else 0.5,
        "suite": "RULER-style",
        "depths": [],
        "hits": [],
        "meta": {},
        "evicted": not full,
        "predicted_answer": "x",
        "finish": "stop",
        "score": score,
        "strict": score,
        "window": None if full else 0.25,
        "copy": None,
        "seconds": 0.5,
        **more,
    }


def arm(scores, **more):
    return [row(i, s, **more) for i, s in enumerate(scores)]


ROWS = [
    *arm([1, 1, 1, 0.8], method="none", size="full"),
    *arm([1, 0.4, 0, 0.2]),
    *arm([0, 0, 0.2, 0.2], method="random"),
]


def cell(rows=ROWS, method="qfilters", **where):
    (found,) = [c for c in summarise(rows, 500) if c["method"] == method]
    return found


def test_a_cell_is_the_mean_over_samples_beside_its_ceiling_and_control():
    got = cell()
    assert got["score"] == pytest.approx(40) and got["n"] == 4
    assert got["ceiling"] == pytest.approx(95) and got["retained"] == pytest.approx(40 / 95)
    assert got["control"] == pytest.approx(10) and got["window"] == 25 and got["copy"] is None
    assert got["discriminative"] and got["budget"] == 451.5 and got["compression_ratio"] == 2
    low, high = mean_interval([1, 0.4, 0, 0.2], 500)
    assert (got["low"], got["high"]) == pytest.approx((100 * low, 100 * high))
    wanted = paired_difference([1, 0.4, 0, 0.2], [1, 1, 1, 0.8], 500)
    found = [got[k] for k in ("minus_full", "minus_full_low", "minus_full_high")]
    assert found == pytest.approx([100 * x for x in wanted])


def test_the_gate_opens_at_fifty():
    for scores, opens in (([1, 0], True), ([0.98, 0], False)):
        made = summarise([*arm(scores, method="none", size="full"), *arm([0, 0])], 100)
        assert [c["discriminative"] for c in made] == [opens, opens]


def test_without_a_ceiling_nothing_is_claimed():
    got = cell(arm([1, 0]))
    unknown = ("ceiling", "discriminative", "retained", "control", "minus_full", "minus_full_low")
    assert {got[k] for k in unknown} == {None}


def test_a_ceiling_of_zero_retains_nothing():
    got = cell([*arm([0, 0], method="none", size="full"), *arm([0, 0])])
    assert got["retained"] is None and not got["discriminative"]


def test_empty_and_truncated_answers_are_counted():
    rows = [*arm([0, 0, 0]), row(3, 0, predicted_answer=" \n", finish="length")]
    assert (cell(rows)["nulls"], cell(rows)["truncated"]) == (1, 1)


def test_differences_are_paired_by_sample():
    """Arms that did not answer the same samples are compared on those that both did."""
    rows = [*arm([1, 1, 0], method="none", size="full"), *arm([0.5, 1])]
    assert cell(rows)["minus_full"] == pytest.approx(-25)


def test_depth_bins_hold_every_gold_piece_where_it_lies():
    rows = [
        row(0, 0.5, depths=[0.0, 1.0], hits=[1, 0]),
        row(1, 1.0, depths=[0.19999, 0.2], hits=[1, 1]),
        row(2, 0.5, depths=[0.5], hits=[0, 1, 0]),
    ]
    assert cell(rows)["by_depth"] == [100, 100, 50, None, 0]


def test_pairs_compare_arms_of_one_size_only():
    got = pairs([*ROWS, *arm([1, 1, 1, 1], size="4x")], 100)
    assert [(p["a"], p["b"], p["size"]) for p in got] == [("qfilters", "random", "2x")]
    assert got[0]["difference"] == pytest.approx(30) and got[0]["n"] == 4


def test_pairs_over_tasks_weigh_tasks_alike_and_resample_within_them():
    rows = [
        *arm([1, 0, 1, 0], task="vt", method="a"),
        *arm([0, 0, 0, 0], task="vt", method="b"),
        *arm([1, 1], task="cwe", method="a"),
        *arm([0, 0, 1], task="cwe", method="b"),
        *arm([1], task="fwe", method="b"),
    ]
    vt, cwe, every = pairs(rows, 2000)
    assert [p["task"] for p in (vt, cwe, every)] == ["vt", "cwe", ALL]
    assert (vt["difference"], cwe["difference"], every["difference"]) == (50, 100, 75)
    assert (vt["n"], cwe["n"], every["n"]) == (4, 2, 6)
    # Only vt varies, so the mean of two tasks has half the spread.
    for end in ("low", "high"):
        assert every[f"difference_{end}"] == pytest.approx(vt[f"difference_{end}"] / 2 + 50, abs=7)


def every_task(score, **more):
    return [r for name in TASKS for r in arm([score, score], task=name, **more)]


def test_mean13_needs_all_13_tasks():
    full = every_task(1.0)
    assert {m["name"] for m in means(full, 100)} == {"mean13"}
    rest = [r for r in full if r["task"] != "cwe"]
    (got,) = means(rest, 100)
    assert got["name"] == "mean" and len(got["tasks"]) == 12 and got["suite"] == "RULER-style"
    assert means(arm([1, 1]), 100) == []


def test_the_mean_is_over_tasks_and_not_over_families():
    rows = every_task(0.0)
    for r in rows:
        r["score"] = 1.0 if r["task"].startswith("niah") else 0.0
    (got,) = means(rows, 100)
    assert got["score"] == pytest.approx(100 * 8 / 13)
    assert (got["retrieval"], got["qa"], got["tracing"]) == (100, 0, 0)


def test_the_name_ruler_is_for_the_benchmarks_own_rows():
    own = every_task(1.0, suite="RULER")
    assert means(own, 10)[0]["suite"] == "RULER"
    own[3]["suite"] = "RULER-style"
    assert means(own, 10)[0]["suite"] == "RULER-style"


def test_the_interval_of_the_mean_covers_it():
    random = np.random.default_rng(0)
    rows = [r for t in TASKS for r in arm(random.integers(0, 2, 10).astype(float), task=t)]
    (got,) = means(rows, 2000)
    assert got["low"] < got["score"] < got["high"]
    spread = np.sqrt(sum(np.var([r["score"] for r in rows if r["task"] == t]) / 10 for t in TASKS))
    assert got["high"] - got["low"] == pytest.approx(100 * 2 * 1.96 * spread / 13, rel=0.1)


def test_intervals_of_scores():
    assert mean_interval([1, 0, 1, 1]) == wilson(3, 4)
    assert mean_interval([0.4] * 5) == wilson(2, 5)
    assert mean_interval([0.6] * 2) == (wilson(1, 2)[0], wilson(2, 2)[1])
    assert mean_interval([0.3]) == (None, None)
    low, high = mean_interval([0.2, 0.4, 0.9, 0.1])
    assert 0.1 < low < 0.4 < high < 0.9


def test_tables_mark_cells_where_nothing_was_evicted():
    rows = [*ROWS, *arm([0.6] * 4, size="512"), *arm([0.1] * 4, size="512", method="random")]
    rows += arm([1, 1, 1, 1], method="knorm", evicted=False)
    document = {"rows": summarise(rows, 100), "means": []}
    ((title, columns, cells),) = task_tables(document)
    assert "ceiling 95.0" in title and title.endswith("*: nothing was evicted")
    assert columns == ["method", "2x", "512", "empty", "cut off"]
    by_method = {line[0]: line[1:] for line in cells}
    assert by_method["none"][0] == by_method["none"][1]
    assert by_method["qfilters"][0].startswith("40.0 [")
    assert by_method["knorm"][:2] == ["100.0* [51, 100]", "-"]
    assert by_method["(last rows, read perfectly)"][0] == "25.0"
    for cell in document["rows"]:
        cell["ceiling"] = cell["discriminative"] = None
    assert "ceiling" not in task_tables(document)[0][0]


def test_differences_have_a_table():
    rows = [*ROWS, *arm([0] * 4, method="knorm")]
    ((title, columns, cells),) = difference_tables({"rows": summarise(rows, 100)})
    assert "difference to the full cache" in title and columns == ["method", "2x"]
    by_method = dict(cells)
    assert by_method["qfilters"].startswith("-55.0 [") and by_method["qfilters"].endswith("| 40.0")
    assert by_method.keys() == {"qfilters", "random", "knorm"}
    assert dict(difference_tables({"rows": summarise(ROWS[4:], 100)})[0][2])["random"] == "-"


def test_means_have_a_table():
    document = {"rows": [], "means": means(every_task(1.0), 10), "pairs": []}
    title, columns, cells = mean_table(document)
    assert "mean13 of 13 tasks, RULER-style: " in title
    assert len(columns) == len(cells[0]) and columns[4] == "retrieval"
    assert mean_table({"rows": [], "means": [], "pairs": []}) is None


@pytest.mark.parametrize("turn", [1, -1])
def test_means_are_held_against_qfilters_on_the_same_prompts(turn):
    arms = (("qfilters", {"vt": [0, 1], "cwe": [0, 0]}), ("knorm", {"vt": [1, 1], "cwe": [0, 1]}))
    rows = [
        one
        for method, tasks in arms[::turn]
        for task, scores in tasks.items()
        for one in arm(scores, task=task, method=method)
    ]
    _, columns, cells = mean_table({"means": means(rows, 100), "pairs": pairs(rows, 100)})
    assert columns[3:5] == ["mean", "- qfilters"]
    assert {line[0]: line[4] for line in cells} == {"qfilters": "-", "knorm": "+50.0 [+0, +100]"}


def test_rows_kept_are_kvpress_counts():
    """int(n * (1 - r)) with r, the fraction that kvpress removes, for its usual ratios."""
    for n in range(1, 5000):
        for ratio in (2, 4, 8, 16, 32):
            assert Size(ratio=ratio).rows(n) == int(n * (1 - (1 - 1 / ratio)))
    assert Size(ratio=1.11).label == "1.11x" and Size(budget=64).label == "64"
