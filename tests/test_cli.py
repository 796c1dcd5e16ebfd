"""The command line on a tiny model: exit codes, streams, files, and what is said when it fails."""

import json
import os

import pytest
from typer.testing import CliRunner

from qfilters.cli import app


@pytest.fixture
def cli(tiny_folder, tmp_path, monkeypatch):
    """`cli(words...)` runs qfilters in an empty folder with the tiny model and the smoke config."""
    monkeypatch.chdir(tmp_path)
    model = os.path.relpath(tiny_folder, tmp_path)

    def run(*words, code=0, config="smoke", model=model):
        line = list(words)
        line += ["--model", model] if model else []
        line += ["--config", config] if config else []
        result = CliRunner().invoke(app, line)
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    return run


@pytest.fixture
def artifact(cli):
    cli("calibrate")
    return "artifacts/filters/tiny.npz"


BAD_USAGE = [
    (["ppl", "--budget", "64", "--recent", "64"], "needs at least 69"),
    (["ppl", "--budget", "x"], "'x' is not a whole number"),
    (["ppl", "--compression-ratio", "0.5"], "is --compression-ratio 2"),
    (["ppl", "--budget", "64", "--compression-ratio", "2"], "exclude each other"),
    (["ppl", "--method", "nope"], "unknown method 'nope'. Known: none, qfilters"),
    (["ppl", "--method", "random(sed=1)"], "no option 'sed': it has seed"),
    (["ppl", "--method", "qfilters_keysvd(sign=2)"], "sign=2 is not valid: 1 or -1"),
    (["ppl", "--method", "knorm("], "unbalanced parentheses"),
    (["ppl", "--dtype", "int8"], "--dtype"),
    (["ppl", "--data-path", "nowhere.txt"], "there is no file nowhere.txt"),
    (["ppl", "--filters", "nowhere.npz"], "no filters at nowhere.npz"),
    (["ppl", "--kv-bits", "8"], "No such option"),
    (["generate", "--prompt", " "], "the prompt is empty"),
    (["generate", "--prompt", "x", "--prompt-file", "y"], "exclude each other"),
    (["generate", "--max-tokens", "0"], "--max-tokens"),
    (["calibrate", "--num-samples", "0"], "--num-samples"),
    (["inspect", "nowhere.npz"], "no filters at nowhere.npz"),
]


@pytest.mark.parametrize(("words", "said"), BAD_USAGE, ids=lambda x: " ".join(x)[:40])
def test_bad_usage_is_refused_before_a_model_is_loaded(cli, words, said, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("qfilters.models.load", never)
    result = cli(*words, code=2)
    assert said in result.stderr.replace("\n", " ")
    assert result.stdout == ""


def test_no_arguments_prints_help():
    result = CliRunner().invoke(app, [])
    assert "calibrate" in result.output


def test_unknown_model_is_one_line(cli):
    result = cli("ppl", "--no-save", model="./nothing", code=1)
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.output


def test_unknown_yaml_key_is_refused(cli, tmp_path):
    (tmp_path / "c.yaml").write_text("budgets: 12\n")
    assert "did you mean 'budget'" in cli("ppl", config="c.yaml", code=2).stderr


def test_calibrate_writes_an_artifact_and_refuses_to_replace_it(cli, tmp_path):
    result = cli("calibrate", "--overwrite")
    assert result.stdout.startswith("artifacts/filters/tiny.npz  sha256 ")
    first = (tmp_path / "artifacts/filters/tiny.npz").read_bytes()
    cli("calibrate", "--overwrite")
    assert (tmp_path / "artifacts/filters/tiny.npz").read_bytes() == first
    (tmp_path / "flat.yaml").write_text("num_samples: 1\nsequence_length: 32\n")
    refused = cli("calibrate", config="flat.yaml", code=1)
    assert "--overwrite" in refused.stderr


def test_inspect_prints_and_keeps(cli, artifact, tmp_path):
    text = cli("inspect", artifact)
    assert "score = k . filter, higher = keep" in text.stdout
    assert "evicts: layers 0-2 (KVCache)" in text.stdout
    assert list(tmp_path.glob("artifacts/results/tiny/inspect-*/summary.json"))
    made = json.loads(cli("inspect", artifact, "--json", "--no-save").stdout)
    assert [row["layer"] for row in made["rows"]] == [0, 1, 2]
    assert made["qfilters"]["plan"][0]["evicts"] is True


def test_inspect_flags_a_filter_that_points_the_wrong_way(cli, artifact):
    from dataclasses import replace

    from qfilters import Filters

    good = Filters.load(artifact)
    turned = good.q_filters.copy()
    turned[1, 0] *= -1
    replace(good, q_filters=turned).save("turned.npz")
    assert "WRONG WAY ROUND" not in cli("inspect", artifact).stdout
    assert "WRONG WAY ROUND (layer, KV head): [(1, 0)]" in cli("inspect", "turned.npz").stdout


def test_generate_streams_text_and_says_what_happened(cli, artifact, tmp_path):
    result = cli("generate")
    assert len(result.stdout.strip("\n")) > 0
    for said in ("TTFT", "tokens/s", "24/", "all rows would fill", "kept in"):
        assert said in result.stderr
    (row,) = json.loads(cli("generate", "--json").stdout)["rows"]
    assert row["text"] == result.stdout.removesuffix("\n")
    assert row["tokens_seen"] == row["prompt_tokens"] + row["generated_tokens"]
    assert row["tokens_kept"] == row["budget"] == 24
    assert (row["sinks"], row["recent"]) == (4, 6)
    kept = json.loads(next(tmp_path.glob("artifacts/results/tiny/generate-*/*.json")).read_text())
    assert kept["rows"][0]["text"] == row["text"]


def test_generate_reads_standard_input_and_files(cli, artifact, tmp_path):
    (tmp_path / "p.txt").write_text("a long enough prompt")
    from_file = cli("generate", "--prompt-file", "p.txt", "--no-save").stdout
    typed = cli("generate", "--prompt", "a long enough prompt", "--no-save").stdout
    assert from_file == typed


def test_generate_under_a_huge_budget_says_that_nothing_was_evicted(cli, artifact):
    assert "Nothing was evicted" in cli("generate", "--budget", "5000", "--no-save").stderr


def test_recent_zero_is_noted(cli, artifact):
    assert "note: recent 0" in cli("generate", "--recent", "0", "--no-save").stderr


def test_ppl_table_json_and_files_agree(cli, artifact, tmp_path):
    result = cli("ppl", "--json")
    made = json.loads(result.stdout)
    rows = made["rows"]
    assert [(r["method"], r["budget"]) for r in rows] == [
        ("none", None),
        *[(m, b) for m in ("qfilters", "knorm", "streaming_llm", "random") for b in (24, 32)],
    ]
    for row in rows[1:]:
        assert row["tokens_kept"] == row["budget"]
        assert row["tokens_seen"] == 95
        assert row["rows_evicted"] == 95 - row["budget"]
        assert row["low"] <= row["perplexity"] <= row["high"]
        assert (row["n_tokens"], row["n_sequences"]) == (190, 2)
    (folder,) = tmp_path.glob("artifacts/results/tiny/ppl-*")
    assert json.loads((folder / "summary.json").read_text()) == made
    assert len(list(folder.glob("results_*.json"))) == len(rows)
    assert str(tmp_path) not in (folder / "summary.json").read_text()


def test_ppl_refuses_to_replace_and_resumes(cli, artifact, tmp_path):
    first = json.loads(cli("ppl", "--json").stdout)
    (tmp_path / "again.yaml").write_text(
        next(tmp_path.glob("artifacts/results/tiny/ppl-*/config.yaml")).read_text()
    )
    refused = cli("ppl", config="again.yaml", code=1)
    assert "--resume" in refused.stderr and "--overwrite" in refused.stderr
    (folder,) = tmp_path.glob("artifacts/results/tiny/ppl-*")
    (folder / "summary.json").unlink()
    (folder / "results_knorm_24.json").unlink()
    again = json.loads(cli("ppl", "--resume", "--json", config="again.yaml").stdout)
    for old, new in zip(first["rows"], again["rows"], strict=True):
        if (old["method"], old["budget"]) != ("knorm", 24):
            assert old == new
        # Rounding differs with the arms that share the passes, and equal norms are near ties.
        assert new["perplexity"] == pytest.approx(old["perplexity"], rel=1e-3)


def test_arms_share_passes_unless_told_not_to(cli, artifact, tmp_path):
    """The numbers are the same, so both ways have one folder; who shared is in the rows."""
    batched = json.loads(cli("ppl", "--json").stdout)["rows"]
    (folder,) = tmp_path.glob("artifacts/results/tiny/ppl-*")
    single = json.loads(cli("ppl", "--json", "--no-batch-arms", "--overwrite").stdout)["rows"]
    assert [folder] == list(tmp_path.glob("artifacts/results/tiny/ppl-*"))
    assert [row["arms"] for row in batched] == [1, *[4] * 8]
    assert {row["arms"] for row in single} == {1}
    for one, other in zip(batched, single, strict=True):
        assert one["perplexity"] == pytest.approx(other["perplexity"], rel=1e-3)
        same = ("method", "budget", "sinks", "recent", "tokens_kept", "cache_bytes", "bytes_ratio")
        assert [one[name] for name in same] == [other[name] for name in same]
    (folder / "results_random_32.json").unlink()
    (tmp_path / "again.yaml").write_text((folder / "config.yaml").read_text())
    again = json.loads(cli("ppl", "--json", "--resume", config="again.yaml").stdout)["rows"]
    assert again[:-1] == single[:-1]
    written = json.loads((folder / "results_random_32.json").read_text())
    assert written["qfilters"]["config"]["batch_arms"] is True


def test_ppl_marks_rows_where_nothing_was_evicted(cli, artifact):
    words = ["ppl", "--method", "none,qfilters", "--budget", "95,94", "--no-save"]
    rows = json.loads(cli(*words, "--json").stdout)["rows"]
    assert [r["evicted"] for r in rows] == [False, False, True]
    assert rows[1]["perplexity"] == rows[0]["perplexity"]
    assert "nothing evicted" in cli(*words).stdout


def test_missing_filters_are_calibrated_with_a_note(cli, tmp_path):
    words = ["ppl", "--method", "qfilters", "--budget", "24", "--no-save"]
    refused = cli(*words, "--no-auto-calibrate", code=2)
    assert "qfilters calibrate" in refused.stderr
    assert "note: no filters for tiny" in cli(*words).stderr
    assert (tmp_path / "artifacts/filters/tiny.npz").exists()
    assert "note: no filters" not in cli(*words).stderr


@pytest.mark.parametrize(
    "words",
    [
        ["ppl", "--num-samples", "2", "--method", "qfilters", "--budget", "24"],
        ["inspect", "--num-samples", "2", "--data-path", "builtin", "--budget", "24"],
        ["ruler", "--num-samples", "1", "--task", "niah_single_1", "--length", "512"],
        ["generate", "--max-tokens", "64"],
    ],
    ids=lambda words: words[0],
)
def test_texts_longer_than_those_of_the_filters_are_noted(cli, words):
    cli("calibrate", "--sequence-length", "64", "--overwrite")
    said = "note: the filters were made from sequences of up to 64 tokens, this goes to "
    length = ["--sequence-length", "65"] if words[0] in ("ppl", "inspect") else []
    assert said in " ".join(cli(*words, *length, "--no-save").stderr.split())
    if length:
        same = cli(*words, "--sequence-length", "64", "--no-save")
        assert "made from sequences" not in " ".join(same.stderr.split())


def test_filters_of_another_model_are_refused(cli, artifact, tmp_path):
    import mlx.core as mx
    import tiny
    from mlx.utils import tree_flatten

    tiny.write_folder(tmp_path / "other")
    weights = dict(tree_flatten(tiny.make(seed=1).parameters()))
    mx.save_safetensors(str(tmp_path / "other" / "model.safetensors"), weights)
    result = cli("generate", "--filters", artifact, model="./other", code=2)
    assert "fingerprint" in result.stderr and "qfilters calibrate" in result.stderr


def test_report_prints_and_checks_a_readme(cli, artifact, tmp_path):
    cli("ppl")
    name = next(tmp_path.glob("artifacts/results/tiny/ppl-*")).name
    shown = CliRunner().invoke(app, ["report"])
    assert f"### {name}" in shown.stdout
    readme = tmp_path / "README.md"
    readme.write_text(f"# x\n\n<!-- results:{name} -->\n<!-- /results -->\n")
    options = ["report", "--readme", "README.md"]
    assert CliRunner().invoke(app, [*options, "--check"]).exit_code == 1
    assert CliRunner().invoke(app, options).exit_code == 0
    assert CliRunner().invoke(app, [*options, "--check"]).exit_code == 0
    readme.write_text(readme.read_text().replace("| 24 |", "| 25 |", 1).replace("2 x 95", "3 x 95"))
    assert CliRunner().invoke(app, [*options, "--check"]).exit_code == 1


def test_doctor_answers():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    for said in ("mlx", "matrix products", "GFLOP/s", "kernels", "cache folder"):
        assert said in result.stdout
