"""Every figure of every kind of run: it draws what the files hold."""

import math

import pytest
import result_rows as made

from qfilters import inspection_plots
from qfilters.errors import QFiltersError
from qfilters.figures import heat_map
from qfilters.report import draw_figures
from qfilters.report.kinds import KINDS, pictures_of, tables_of
from qfilters.report.runs import read_runs


@pytest.fixture
def runs(tmp_path):
    names = made.write_all(tmp_path)
    by_name = {run.name: run for run in read_runs(tmp_path)}
    return {kind: by_name[name] for kind, name in names.items()}


def data_of(run):
    return {picture.name: picture.data for picture in pictures_of(run)}


def test_perplexity(runs):
    [data] = data_of(runs["ppl"]).values()
    assert data["series"] == {
        "qfilters": [(64, 4.0, 3.0, 5.0), (128, 3.0, None, None)],
        "knorm": [(64, 6.0, None, None)],
    }
    assert data["reference"] == ("full cache", 2.0)


def test_perplexity_at_one_budget_is_no_curve(tmp_path):
    made.write(tmp_path, "ppl", made.PPL[:2])
    assert pictures_of(*read_runs(tmp_path)) == []


def test_ruler(runs):
    data = data_of(runs["ruler"])
    assert data["accuracy_vt_64"]["series"] == {
        "knorm": [(2.0, 60.0, 40.0, 80.0), (4.0, 20.0, 10.0, 30.0)]
    }
    assert data["accuracy_vt_64"]["reference"] == ("full cache", 90.0)
    needles = data["needles_64"]
    assert needles["values"] == [[50.0, None, 75.0, 0.0, 25.0]], "mean over tasks, empty bins apart"
    assert needles["y_ticks"] == ["knorm 2x"]
    assert needles["x_ticks"] == ["0-20", "20-40", "40-60", "60-80", "80-100"]


def test_ruler_at_several_lengths(tmp_path):
    cells = [made.RULER[3] | {"length": n, "by_depth": [n, None, 0, 0, 0]} for n in (64, 128)]
    made.write(tmp_path, "ruler", cells, means=[], pairs=[])
    data = data_of(*read_runs(tmp_path))["needles_knorm_2x"]
    assert data["x_ticks"] == [64, 128]
    assert data["values"] == [(64, 128), (None, None), (0, 0), (0, 0), (0, 0)]


def test_decode(runs):
    data = data_of(runs["bench-decode"])
    assert data["speed"]["series"] == {
        "none": [(40, 5.0, 4.0, 6.0), (80, 5.0, 4.0, 6.0)],
        "knorm 16": [(40, 6.0, 5.0, 7.0), (80, 6.0, 5.0, 7.0)],
    }
    assert data["memory"]["series"]["none"] == [(40, 4.0, None, None), (80, 8.0, None, None)]
    [table] = tables_of(runs["bench-decode"])
    assert table.rows[1][:3] == ["knorm", "40", "16"] and "1.00 [0.90, 1.10]" in table.rows[1]


def test_inspect(runs):
    data = data_of(runs["inspect"])
    names = {"projection", "keys", "correlation_knorm", "correlation", "later", "retained"}
    assert data.keys() == names
    assert data["keys"]["values"] == [(-1.0, 1.0)]
    assert data["later"]["values"] == {"knorm": (0.45, 0.35, 0.55)}
    assert data["projection"]["values"] == [(1.0, 3.0), (2.0, 4.0)], "heads down, layers across"
    assert data["correlation_knorm"]["values"] == [(0.5, None)]
    assert data["correlation"]["values"] == {"knorm": (0.5, 0.4, 0.6)}
    assert data["retained"]["series"] == {"knorm": [(10, 0.1, 0.1, 0.3), (20, 0.2, 0.1, 0.3)]}


def test_studies(runs):
    [chunks] = data_of(runs["study-chunks"]).values()
    assert chunks["series"] == {"qfilters, 8": [(0, 1.0, None, None), (1, 0.5, None, None)]}
    geometry = data_of(runs["study-geometry"])
    assert geometry.keys() == {"retained_drift_64", "retained_isotropic_64"}
    assert geometry["retained_drift_64"]["series"] == {
        "knorm": [(256, 0.5, 0.4, 0.6), (512, 0.5, 0.4, 0.6)]
    }
    [stability] = data_of(runs["study-stability"]).values()
    assert stability["series"] == {
        "mean over KV heads": [(512, 0.9, None, None)],
        "least": [(512, 0.1, None, None)],
    }, "the most against itself says nothing"
    [table] = tables_of(runs["study-stability"])
    assert [row[:3] for row in table.rows] == [
        ["less text", "512", "1024 tokens"],
        ["other.txt", "1024", "as many tokens"],
    ]
    assert data_of(runs["study-budget"]) == data_of(runs["bench_kernels"]) == {}


def test_all_figures_can_be_drawn_and_every_kind_is_here(runs, tmp_path):
    assert KINDS.keys() <= runs.keys()
    paths = list(draw_figures(tmp_path, tmp_path / "figures"))
    assert len(paths) == len(set(paths)) == sum(len(pictures_of(run)) for run in runs.values())
    assert all("<svg" in path.read_text() for path in paths)
    assert {p.name for p in paths} >= {f"{runs['ppl'].name}-perplexity.svg"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_is_named(kind, tmp_path):
    name = made.write(tmp_path, kind, [{"method": "knorm"}], rank_correlation=[{"skipped": 0}])
    with pytest.raises(
        QFiltersError, match=f"summary.json of org__name/{name} is of another version"
    ):
        for run in read_runs(tmp_path):
            pictures_of(run)
            tables_of(run)


def test_study_tables(runs):
    [chunks] = tables_of(runs["study-chunks"])
    assert chunks.rows[1][:8] == [
        *("`qfilters`", "8", "1.25 / 1.50 / 2.00", "2 of 2"),
        *("1.000", "0.750", "0.500", "-0.25 (0.50)"),
    ]
    assert chunks.rows[1][8:] == ["4.00 [3.00, 5.00]", "2 x 10"]
    [budget] = tables_of(runs["study-budget"])
    assert budget.title == "20 tokens and 10 one by one, budget 8, 2 layers"
    assert budget.rows == [
        ["`knorm`", "8", "30", "0", "0 of 32", "1.0e-07"],
        ["`pyramidkv`", "6 to 8", "30", "3", "0 of 32", "1.0e-07"],
    ]
    drift, isotropic = tables_of(runs["study-geometry"])
    cell = "0.500 [0.400, 0.600] (1.25)"
    assert drift.rows == [["knorm", cell, cell, "0.75"]]
    assert drift.columns == ["attention retained", "64 of 256", "64 of 512", "cosine to axis"]
    assert isotropic.rows[0][-1] == "-" and "n 5 random seeds x 8 heads" in isotropic.title


def test_ratio_and_gap_are_paired(tmp_path):
    """Ten tokens a sequence; the difference to the full cache is the same in both sequences."""
    rows = [
        made.arm("none", None, math.exp(1.5), 10.0, 20.0),
        made.arm("qfilters", 64, math.exp(1.7), 12.0, 22.0),
        made.arm("qfilters_keysvd", 64, math.exp(2.0), 15.0, 25.0),
        made.arm("qfilters_keysvd(sign=-1)", 64, math.exp(1.9), 14.0, 24.0),
    ]
    made.write(tmp_path, "ppl", rows)
    [table] = tables_of(*read_runs(tmp_path))
    assert table.columns == ["method", "perplexity", "/ full", "NLL - `qfilters`", "gap closed"]
    assert table.title == "budget 64, n 2 x 10"
    cells = {row[0]: [row[2], row[4]] for row in table.rows}
    ratio = f"{math.exp(0.2):.3f}"
    assert cells["`qfilters`"][0] == ratio, "no spread between sequences, so no interval"
    share = (math.exp(2.0) - math.exp(1.7)) / (math.exp(2.0) - math.exp(1.5))
    assert cells["`qfilters`"][1].startswith(f"{share:.0%} [{share:.0%}, ")
    assert cells["`none`"] == ["1", "100%"] and cells["`qfilters_keysvd`"][1] == "0%"
    better = [row for name, row in cells.items() if "known afterwards" in name]
    assert better == [cells["`qfilters_keysvd(sign=-1)`"]]


def test_no_gap_where_the_fallback_is_not_worse(tmp_path):
    rows = [
        made.arm("none", None, 4.0, 10.0, 20.0),
        made.arm("qfilters_keysvd", 64, 4.0, 10.0, 20.0),
    ]
    made.write(tmp_path, "ppl", rows)
    [table] = tables_of(*read_runs(tmp_path))
    assert table.rows[1][3] == "no gap"


def test_cosines_of_two_filter_files():
    """Only some layers have filters; one of them has a KV head less."""
    found = {"layers": [1, 4, 5], "cosine": [[1.0, 0.5], [-0.25, 0.0], [0.75]]}
    document = {"cosines": found, "compared_with": "other.npz"}
    [picture] = inspection_plots.pictures(document, "tiny")
    assert (picture.name, picture.draw) == ("cosine", heat_map)
    assert picture.title == "Cosine of the filters of tiny to those of other.npz"
    assert picture.data == {
        "values": [(1.0, -0.25, 0.75), (0.5, 0.0, None)],
        "x": "layer",
        "y": "KV head",
        "x_ticks": [1, 4, 5],
        "y_ticks": range(2),
        "unit": "cosine",
        "limits": (-1, 1),
        "centre": 0.0,
    }
