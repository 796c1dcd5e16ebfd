"""The decode benchmark: what it compares, what it counts, and where results are kept."""

import json

import numpy as np
import pytest
import tiny
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from typer.testing import CliRunner

from qfilters import bench_decode as bench
from qfilters.arms import split_methods
from qfilters.cache import EvictingKVCache
from qfilters.cli import app
from qfilters.errors import UsageError
from qfilters.report import tables
from qfilters.stats import median_interval

PROMPTS = [list(range(n)) for n in (20, 245)]


@pytest.fixture(scope="module")
def model():
    return tiny.make("llama", hidden_size=256, num_hidden_layers=2)


@pytest.fixture(scope="module")
def rows(model):
    specs = split_methods("none,rotating,quantized(bits=4),knorm,h2o")
    ways = bench.contenders(model, specs, [16, 24])
    return bench.bench_decode(model, ways, PROMPTS, generated=6, rounds=3)


def test_every_way_runs_at_every_length(rows):
    ways = [("none", None), ("rotating", 16), ("rotating", 24), ("quantized(bits=4)", None)]
    ways += [(name, budget) for name in ("knorm", "h2o") for budget in (16, 24)]
    found = [(row["context"], row["path"], row["budget"]) for row in rows]
    assert found == [(len(prompt), *way) for prompt in PROMPTS for way in ways]


def test_figures_are_of_the_rounds(rows):
    none = rows[0]
    for row in rows[:8]:
        assert len(row["tps_rounds"]) == 3
        assert row["tps_min"] <= row["tps"] <= row["tps_max"]
        ratios = np.divide(row["tps_rounds"], none["tps_rounds"])
        assert row["x_first"] == pytest.approx(np.median(ratios))
        low, high = row["x_first_low"], row["x_first_high"]
        assert ratios.min() - 1e-9 <= low <= row["x_first"] <= high <= ratios.max() + 1e-9
        assert row["ttft_s"] > 0 and row["peak_mb"] > 0
        assert ("x_rotating" in row) == (row["budget"] is not None)
    small, wide = rows[1], rows[2]
    assert small["x_rotating"] == wide["x_rotating"] == 1
    ratios = np.divide(rows[4]["tps_rounds"], small["tps_rounds"])
    assert rows[4]["x_rotating"] == pytest.approx(np.median(ratios)), "at the same budget"


def test_bytes_held_are_those_of_the_rows(rows):
    """Two layers, 2 heads of 64, float32; 256 slots, which three rounds in a row would overflow."""
    row_bytes = 2 * 2 * 2 * 64 * 4
    by_way = {(row["context"], row["path"], row["budget"]): row["held_mb"] for row in rows}
    assert by_way[245, "none", None] == pytest.approx(256 * row_bytes / 1e6)
    assert by_way[245, "rotating", 16] == pytest.approx(16 * row_bytes / 1e6)
    more = 2 * 2 * (17 * 8 + 4) + 2 * 4
    assert by_way[245, "knorm", 16] == pytest.approx((17 * row_bytes + more) / 1e6)
    assert by_way[245, "quantized(bits=4)", None] < by_way[245, "none", None] / 4


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_other_layers_keep_the_models_own_caches(kind):
    model = tiny.make(kind)
    specs = split_methods("none,rotating,quantized(group_size=32),knorm")
    model.args.head_dim = 16
    with pytest.raises(UsageError, match="heads of 16"):
        bench.contenders(model, specs, [16])
    own, rotating, ours = (
        [type(cache) for cache in way.make()]
        for way in bench.contenders(model, [*specs[:2], specs[3]], [16])
    )
    for theirs, turning, evicting in zip(own, rotating, ours, strict=True):
        if theirs is KVCache:
            assert (turning, evicting) == (RotatingKVCache, EvictingKVCache)
        else:
            assert theirs is turning is evicting
    assert QuantizedKVCache not in own


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--method", "none,fancy"], "unknown method 'fancy'"),
        (["--method", "quantized(bats=4)"], "quantized has no option 'bats'"),
        (["--method", "rotating(keep=4)"], "rotating has no option 'keep'"),
        (["--num-trials", "2"], "--num-trials"),
        (["--prompt-tokens", "1"], "--prompt-tokens"),
        (["--method", "knorm", "--budget", "4"], "leaves no room"),
    ],
)
def test_bad_values_are_one_line(words, why, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--model", str(tiny_folder), "--method", "none", *words]
    result = CliRunner().invoke(app, ["bench", "decode", *words])
    assert result.exit_code == 2 and why in result.stderr
    assert not list(tmp_path.iterdir())


def test_results_are_kept_where_report_finds_them(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["bench", "decode", "--model", str(tiny_folder), "--config", "smoke", "--json"]
    words += ["--method", "none,rotating,knorm"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    made = json.loads(result.stdout)
    assert [row["context"] for row in made["rows"]] == [24] * 3 + [40] * 3
    [[name, table]] = tables(tmp_path / "artifacts" / "results").items()
    assert name.startswith("bench-decode-")
    assert "| knorm | 40 | 16 |" in table and "tps_rounds" not in table
    again = CliRunner().invoke(app, [*words[:5], "smoke", "--method", "none,rotating,knorm"])
    assert "x rotating" in again.stdout


def test_the_interval_of_a_median():
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 5.0]
    middle, low, high = median_interval(values)
    assert middle == 1.025 and 0.9 <= low < middle < high <= 5
    assert median_interval([2.0] * 4) == (2, 2, 2)
