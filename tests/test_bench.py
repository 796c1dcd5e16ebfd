"""The kernel benchmark: what it times, what it writes, and that it refuses unequal kernels."""

import json

import pytest
from emulated import fused, needs_emulator
from mslemu import Emulator
from typer.testing import CliRunner

from qfilters import bench_kernels as bench
from qfilters.cli import app
from qfilters.kernels import checks, texts
from qfilters.kernels.checks import KernelMismatch
from qfilters.kernels.fused import Fused
from qfilters.report import tables


@pytest.fixture
def small(monkeypatch):
    for name, value in {
        "HEADS": 2,
        "SIZE": 16,
        "ROWS": 64,
        "BUDGET": 16,
        "CHUNKS": (64, 16),
        "BUDGETS": (16,),
        "STEPS": 2,
    }.items():
        monkeypatch.setattr(bench, name, value)


@pytest.fixture
def on(monkeypatch):
    return lambda kernels: monkeypatch.setattr(bench, "choose_kernels", lambda: kernels)


def test_the_reference_alone_is_timed_without_a_gpu(small, on):
    on(None)
    rows, passed = bench.bench_kernels(repeats=3)
    assert passed == 0
    assert {row["path"] for row in rows} == {"reference", "KVCache", "RotatingKVCache"}
    assert not any("speedup" in row for row in rows)
    for row in rows:
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
    [block] = [row for row in rows if row["what"] == "evict a block"]
    assert block["times_copy_min"] <= block["times_copy"] <= block["times_copy_max"]


@needs_emulator
def test_kernels_are_checked_first_and_then_compared(small, on, monkeypatch):
    kernels, done = fused(), []
    on(kernels)
    monkeypatch.setattr(bench, "run_checks", lambda k: done.append("checks") or 24)
    rows, passed = bench.bench_kernels("float16", repeats=3, watch=done.append)
    assert passed == 24 and done[:2] == ["checks", "score"]
    ours = [row for row in rows if row["path"] == kernels.name]
    assert {row["what"] for row in ours} >= {"score", "select", "compact", "replace", "decode"}
    assert all(row["speedup"] > 0 for row in ours)
    with_bytes = {row["what"]: row for row in rows if "mb" in row}
    assert with_bytes["compact"]["mb"] == pytest.approx(2 * 16 * (4 * 32 + 20) / 1e6)


@needs_emulator
def test_no_speed_up_of_kernels_that_disagree(small, on, monkeypatch, tmp_path):
    def broken(name):
        text = texts.metal(name)
        return {**text, "header": text["header"].replace("rank < other_rank", "rank > other_rank")}

    on(Fused("broken", Emulator().metal_kernel, broken))
    monkeypatch.setattr(checks, "DTYPES", ())
    with pytest.raises(KernelMismatch, match=r"broken kernels, check 'victims \w+'"):
        bench.bench_kernels("float16", repeats=3)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", "kernels", "--repeats", "3"])
    assert result.exit_code == 1
    assert "speed-up" not in result.stdout and "broken kernels, check" in result.stderr
    assert not list(tmp_path.iterdir())


def test_results_are_kept_where_report_finds_them(small, on, monkeypatch, tmp_path):
    on(None)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", "kernels", "--repeats", "3", "--json"])
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert made["qfilters"]["checks_passed"] == 0
    assert made["rows"][0]["what"] == "score"
    [[name, table]] = tables(tmp_path / "artifacts" / "results").items()
    assert name.startswith("bench_kernels-")
    assert "| evict a block | reference |" in table


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--dtype", "int8"], "none of float16"), (["--repeats", "2"], "below 3")],
)
def test_bad_values_are_one_line(words, why):
    result = CliRunner().invoke(app, ["bench", "kernels", *words])
    assert result.exit_code == 2 and why in result.stderr
