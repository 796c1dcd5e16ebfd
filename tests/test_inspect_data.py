"""`qfilters inspect` on a text and against another file: tables, JSON, figures, refusals."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from qfilters import Filters
from qfilters.cli import app
from qfilters.inspection_plots import pictures
from qfilters.inspection_tables import measured_tables

METHODS = ["qfilters", "knorm", "expected_attention(n_future=24)", "random"]
ARTIFACT = "artifacts/filters/tiny.npz"
TEXT = "The keys of a cache are read by every query that comes after them, some more than others. "


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    """A folder with a text that is no calibration text, and filters of the tiny model."""
    place = tmp_path_factory.mktemp("inspect")
    words = np.random.default_rng(0).permuted(np.array((TEXT * 6).split()))
    (place / "text.txt").write_text(" ".join(words))
    here = os.getcwd()
    os.chdir(place)
    try:
        line = ["calibrate", "--model", os.path.relpath(tiny_folder, place), "--config", "smoke"]
        assert CliRunner().invoke(app, line).exit_code == 0
        found = Filters.load(ARTIFACT)
        turned = found.q_filters.copy()
        turned[1, 0] *= -1
        replace(found, q_filters=turned).save("turned.npz")
    finally:
        os.chdir(here)
    return place


@pytest.fixture
def inspect(folder, tiny_folder, monkeypatch):
    """`inspect(words...)` with the tiny model, on two texts of 80 tokens where a text is named."""
    monkeypatch.chdir(folder)

    def run(*words, code=0):
        line = ["inspect", *words, "--model", os.path.relpath(tiny_folder, folder)]
        if "--data-path" in words:
            line += ["--num-samples", "2", "--sequence-length", "80", "--budget", "12,24"]
            line += ["--method", ",".join(METHODS)]
        result = CliRunner().invoke(app, line)
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    return run


@pytest.fixture
def document(inspect):
    return json.loads(inspect("--data-path", "text.txt", "--json", "--no-save").stdout)


def test_the_document_holds_every_table_with_its_numbers_of_samples(document):
    found = document["observations"]
    assert (found["n_texts"], found["n_query_heads"], found["n_queries"]) == (2, 12, 160)
    rows = document["rank_correlation"]
    assert [(r["skipped"], r["method"]) for r in rows] == [(s, m) for s in (0, 4) for m in METHODS]
    assert all((r["n_texts"], r["n_heads"], r["n_rows"]) == (2, 6, 60 - r["skipped"]) for r in rows)
    rows = document["retained_mass"]
    arms = {(r["method"], r["budget"]) for r in rows}
    assert arms == {(m, b) for m in [*METHODS, "oracle"] for b in (12, 24)} and len(rows) == 10
    assert all((r["n_rows"], r["n_queries"]) == (60, 20) for r in rows)
    assert {(r["sinks"], r["recent"]) for r in rows if r["budget"] == 12} == {(4, 3), (0, 0)}
    assert all(0 < r["retained"] < 1 and r["low"] <= r["retained"] <= r["high"] for r in rows)
    assert document["corpus"]["name"] == "text.txt"
    assert {"command", "mlx", "plan", "filters"} <= document["qfilters"].keys()
    assert [row["layer"] for row in document["rows"]] == [0, 1, 2]


def test_the_tables_say_what_the_document_says(inspect, document):
    text = inspect("--data-path", "text.txt", ARTIFACT, "--figures", "none").stdout
    assert "attention from all queries after a row (6 KV heads, 60 rows, 2 texts" in text
    assert "share of later attention on the rows kept (60 rows, 20 tokens after them" in text
    (kept,) = [
        r for r in document["rank_correlation"] if r["method"] == "knorm" and not r["skipped"]
    ]
    assert f"{kept['correlation']:.3f}" in text and f"{kept['right_sign']:.1%}" in text
    for title, columns, cells in measured_tables(document):
        assert title and {len(row) for row in cells} == {len(columns)}
    (saved,) = Path("artifacts/results/tiny").glob("inspect-*/summary.json")
    assert {path.name for path in saved.parent.iterdir()} == {"config.yaml", "summary.json"}
    assert json.loads(saved.read_text())["retained_mass"] == document["retained_mass"]


def test_figures_are_drawn_from_the_document_alone(inspect, document, tmp_path):
    said = inspect(ARTIFACT, "--data-path", "text.txt", "--compare", "turned.npz").stderr
    folder = Path(re.search("^kept in (.*)$", said, re.MULTILINE)[1])
    names = {path.name for path in folder.glob("*.png")}
    maps = {f"correlation_{n}.png" for n in ("qfilters", "knorm", "random")}
    assert names > maps | {"correlation.png", "later.png", "retained.png", "cosine.png"}
    assert names > {"projection.png", "keys.png"}
    assert len(names) == 10 and all(f"drawn {folder / name}" in said for name in names)
    again = [
        picture.write(tmp_path / f"{picture.name}.png") for picture in pictures(document, "tiny")
    ]
    assert len(again) == 9
    for path in again:
        assert path.read_bytes() == (folder / path.name).read_bytes()


def test_figures_are_of_the_kind_asked_for_and_only_of_runs_that_are_kept(inspect):
    words = [ARTIFACT, "--compare", "turned.npz"]
    assert "cosine.svg" in inspect(*words, "--figures", "svg").stderr
    assert "drawn" not in inspect(*words, "--no-save").stderr
    assert "drawn" not in inspect(ARTIFACT).stderr, "nothing was compared or measured"


def test_comparing_needs_no_model(inspect, folder, monkeypatch):
    line = ["inspect", ARTIFACT, "--compare", "turned.npz", "--no-save"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0 and "filters against turned.npz" in result.stdout
    made = json.loads(CliRunner().invoke(app, [*line, "--json"]).stdout)
    assert made["compared_with"] == "turned.npz" and made["cosines"]["opposed"] == 1
    assert made["cosines"]["cosine"][1][0] == pytest.approx(-1)
    assert made["cosines"]["mean_cosine"] == pytest.approx(4 / 6)


def test_filters_that_point_the_wrong_way_are_seen_on_the_text(inspect):
    made = json.loads(
        inspect("turned.npz", "--data-path", "text.txt", "--json", "--no-save").stdout
    )
    right = json.loads(inspect(ARTIFACT, "--data-path", "text.txt", "--json", "--no-save").stdout)
    mine, theirs = (np.array(d["observations"]["projection_by_layer"]) for d in (made, right))
    np.testing.assert_allclose(mine[1, :2], -theirs[1, :2], rtol=1e-5)
    (a, *_), (b, *_) = made["rank_correlation"], right["rank_correlation"]
    assert a["by_layer"][1][0] == pytest.approx(-b["by_layer"][1][0], abs=1e-6)
    assert a["by_layer"][2] == b["by_layer"][2]


def test_without_a_text_nothing_is_measured(inspect):
    made = json.loads(inspect(ARTIFACT, "--json", "--no-save").stdout)
    assert made.keys() == {"rows", "qfilters"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data-path", "text.txt", "--sinks", "12"], "leaves no room for --sinks 12"),
        (["--data-path", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--data-path", "text.txt", "--sinks", "x"], "--sinks"),
        (["--compare", "turned.npz"], "--compare': it needs filters as well"),
        ([ARTIFACT, "--compare", "nowhere.npz"], "no filters at nowhere.npz"),
        ([ARTIFACT, "--figures", "x"], "--figures': 'x': input should be 'png', 'svg' or 'none'"),
    ],
    ids=lambda x: " ".join(x)[:40],
)
def test_bad_usage_is_refused_before_a_model_is_loaded(inspect, words, said, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("qfilters.models.load", never)
    assert said in inspect(*words, code=2).stderr.replace("\n", " ")


@pytest.mark.parametrize("name", ["none", "oracle"])
def test_methods_that_foresee_nothing_are_refused_before_a_model_is_loaded(
    folder, monkeypatch, name
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("qfilters.models.load", None)
    line = ["inspect", "--model", "tiny", "--data-path", "text.txt", "--method", f"knorm,{name}"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2 and f"method {name} does not foresee" in result.stderr


def test_a_text_needs_a_model(folder, monkeypatch):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, ["inspect", ARTIFACT, "--data-path", "text.txt"])
    assert result.exit_code == 2 and "it needs model as well" in result.stderr
