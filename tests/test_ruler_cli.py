"""`qfilters ruler` on a tiny model: files, resume, refusals before anything is loaded."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from qfilters.cli import app
from qfilters.config import RulerConfig, find_config, resolve
from qfilters.errors import UsageError
from qfilters.ruler import TASKS
from qfilters.ruler.sweep import check

QUICK = ["--num-samples", "2", "--max-tokens", "4", "--figures", "none"]
# A byte is a token here.
NEEDLE = ["--task", "niah_single_1", "--length", "1024", *QUICK]


def qfilters(*words, code=0):
    result = CliRunner().invoke(app, ["ruler", *map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def model(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return ["--model", tiny_folder]


def folder(tmp_path):
    (found,) = (tmp_path / "artifacts/results/tiny").iterdir()
    return found


def timeless(text):
    rows = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_a_run_leaves_prompts_answers_and_scores(model, tmp_path):
    result = qfilters(*model, *NEEDLE, "--method", "knorm", "--budget", "256,512")
    run = folder(tmp_path)
    rows = timeless((run / "samples_niah_single_1.jsonl").read_text())
    arms = [("none", "full"), *((m, b) for m in ("knorm", "random") for b in ("256", "512"))]
    assert [(r["method"], r["size"]) for r in rows] == arms * 2
    for row in rows:
        kept = row["n_context"] if row["size"] == "full" else int(row["size"])
        assert row["n_kept"] == kept and row["n_new"] <= 4
        assert row["n_context"] + row["n_rest"] + row["max_new_tokens"] + row["slack"] == 1024
        assert row["compression_ratio"] == row["n_context"] / kept
        assert row["fraction_removed"] == pytest.approx(1 - kept / row["n_context"])
    names = {f"results_{m}_{b}.json" for m, b in arms}
    assert names < {p.name for p in run.iterdir()}
    summary = json.loads((run / "summary.json").read_text())
    assert len(summary["rows"]) == 5 and summary["means"] == []
    assert "niah_single_1, 1024 tokens, n 2: ceiling" in result.stdout
    one = json.loads((run / "results_knorm_256.json").read_text())
    assert one["results"]["ruler_niah_single_1_1024"]["score,none"] == summary["rows"][1]["score"]


def test_a_killed_run_resumes_to_the_same_file(model, tmp_path, monkeypatch):
    words = [*model, *NEEDLE, "--method", "knorm", "--budget", "256"]
    qfilters(*words)
    path = folder(tmp_path) / "samples_niah_single_1.jsonl"
    whole, summary = path.read_text(), (path.parent / "summary.json").read_text()
    cuts = [0, len(whole) // 2, len(whole) - 2]
    for cut in cuts:
        path.write_text(whole[:cut])
        (path.parent / "summary.json").unlink()
        qfilters(*words, "--resume")
        assert timeless(path.read_text()) == timeless(whole)
        again = json.loads((path.parent / "summary.json").read_text())
        for new, old in zip(again["rows"], json.loads(summary)["rows"], strict=True):
            assert new | {"seconds": 0} == old | {"seconds": 0}
    assert "--resume" in qfilters(*words, code=1).stderr
    monkeypatch.delattr("qfilters.ruler.run.prefill")
    (path.parent / "summary.json").unlink()
    qfilters(*words, "--resume")
    assert timeless(path.read_text()) == timeless(whole)


def test_a_haystack_is_known_by_its_content(model, tmp_path):
    """Another text under the same name is another run; an unreadable or empty one is refused."""
    words = [*model, *QUICK, "--task", "niah_single_2", "--length", "1024", "--budget", "256"]
    words += ["--method", "knorm", "--haystack", "book.txt"]
    for start in ("Once", "Twice"):
        text = " ".join(
            f"{start} there stood house {chr(97 + i % 26)} on a hill." for i in range(99)
        )
        (tmp_path / "book.txt").write_text(text)
        qfilters(*words)
    runs = sorted((tmp_path / "artifacts/results/tiny").iterdir())
    assert len(runs) == 2
    row = timeless((runs[0] / "samples_niah_single_2.jsonl").read_text())[0]
    assert row["source"]["haystack"] == "file" and len(row["haystack_sha"]) == 64
    (tmp_path / "book.txt").write_text("x" * 999)
    assert "hardly any blanks" in qfilters(*words, code=2).stderr


def test_a_budget_that_holds_the_context_is_not_run(model, tmp_path):
    result = qfilters(*model, *NEEDLE, "--method", "knorm", "--budget", "256,4096")
    run = folder(tmp_path)
    rows = timeless((run / "samples_niah_single_1.jsonl").read_text())
    assert {(r["size"], r["evicted"]) for r in rows} == {
        ("full", False),
        ("256", True),
        ("4096", False),
    }
    said = {(r["id"], r["method"], r["size"]): r["predicted_answer"] for r in rows}
    for (sample, method, size), text in said.items():
        if size == "4096":
            assert text == said[sample, "none", "full"], method
    cells = json.loads((run / "summary.json").read_text())["rows"]
    assert [c["evicted"] for c in cells if c["size"] == "4096"] == [0, 0]
    assert "*" in result.stdout


def test_a_cell_holds_every_sample_although_some_keep_everything(model, tmp_path):
    """A budget between the lengths of two contexts."""
    words = [*model, "--task", "niah_single_2", "--length", "1024", *QUICK, "--method", "knorm"]
    qfilters(*words, "--dump-prompts", "p.jsonl")
    shorter, longer = sorted(r["n_context"] for r in timeless((tmp_path / "p.jsonl").read_text()))
    assert shorter < longer
    found = []
    for budget in (longer, longer - 1, shorter - 1):
        qfilters(*words, "--budget", budget)
        runs = sorted(
            (tmp_path / "artifacts/results/tiny").iterdir(), key=lambda p: p.stat().st_mtime
        )
        cells = json.loads((runs[-1] / "summary.json").read_text())["rows"]
        assert {c["n"] for c in cells} == {2}
        found.append([c["evicted"] for c in cells])
    assert found == [[0, 0, 0], [0, 1, 1], [0, 2, 2]]


def test_stream_mode_runs_every_arm_under_its_budget(model, tmp_path):
    words = ["--mode", "stream", "--method", "tova", "--compression-ratio", "4"]
    qfilters(*model, *NEEDLE, *words, "--prefill-step-size", "128")
    rows = timeless((folder(tmp_path) / "samples_niah_single_1.jsonl").read_text())
    for row in rows:
        wanted = (
            row["n_context"] // 4 if row["size"] == "4x" else row["n_context"] + row["n_rest"] - 1
        )
        assert row["n_kept"] == wanted and row["mode"] == "stream"
        assert row["compression_ratio"] == (row["n_context"] + row["n_rest"] - 1) / wanted


def test_prompts_are_written_without_weights(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_folder, tmp_path / "bare")
    (tmp_path / "bare/model.safetensors").unlink()
    qfilters("--model", "bare", *NEEDLE, "--dump-prompts", "p.jsonl", "--task", "niah_single_1,fwe")
    rows = timeless((tmp_path / "p.jsonl").read_text())
    assert [r["id"] for r in rows] == [
        f"{task}/1024/42/{i}" for task in ("niah_single_1", "fwe") for i in (0, 1)
    ]
    for row in rows:
        assert row["n_context"] + row["n_rest"] == row["n_tokens"]
        assert {
            "context",
            "question",
            "answer_prefix",
            "answer",
            "task",
            "max_new_tokens",
        } <= row.keys()
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "200"], "vt at length 200"),
        (["--task", "niah_sinlge_1"], "did you mean 'niah_single_1'"),
        (["--task", ""], "no task"),
        (["--compression-ratio", "0.5"], "below 1"),
        (["--compression-ratio", "900"], "leaves no room"),
        (["--budget", "4"], "leaves no room"),
        (["--budget", "64", "--compression-ratio", "2"], "exclude each other"),
        (["--num-samples", "0"], "num-samples"),
        (["--depth", "101"], "depth"),
        (["--method", "nothing"], "nothing"),
        (["--protocol", "both"], "protocol"),
        (["--mode", "stream", "--skip-layers", "2"], "skip"),
        (["--mode", "stream", "--method", "oracle"], "after_prefill"),
        (["--source", "files"], "--haystack"),
        (["--haystack", "no-such-file.txt"], "no-such-file.txt"),
        (["--method", "random(seed=0),random"], "random is there twice"),
        (["--compression-ratio", "1.333333,1.3333334"], "1.33333x is there twice"),
        (["--kernel", "on"], "stream"),
        (["--mode", "stream", "--kernel", "on"], "kernel"),
        (["--source", "hub", "--depth", "50"], "--depth"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_looked_for(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = qfilters("--model", "no-such-model", *words, code=2)
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["paper-table1", "paper-niah", "leaderboard", "seed-table"])
def test_presets_are_valid(name):
    settings = resolve(RulerConfig, find_config(name), {"compression_ratio": "2"})
    tasks, contest = check(resolve(RulerConfig, find_config(name), {}))
    assert set(tasks) <= set(TASKS) and settings.budget is None
    assert {"none", "random", "qfilters"} <= {m.name for m in contest.methods}


def test_ceiling_and_control_ride_along():
    _, contest = check(resolve(RulerConfig, None, {"method": "qfilters"}))
    assert [m.name for m in contest.methods] == ["none", "qfilters", "random"]
    assert [s.label for s in contest.sizes] == ["1.11x", "2x"]


def test_a_control_is_the_plain_one():
    _, contest = check(resolve(RulerConfig, None, {"method": "none,random(seed=3)"}))
    assert [str(m) for m in contest.methods] == ["none", "random(seed=3)", "random"]


def test_a_ratio_without_room_is_refused_before_anything_is_asked(model, tmp_path):
    result = qfilters(*model, *NEEDLE, "--compression-ratio", "185", code=2)
    assert "185x of " in result.stderr and not (tmp_path / "artifacts/results").exists()


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--task", "vt", "--depth", "50"], "--depth is for needles"),
        (["--task", "niah_single_1", "--depth", "0,50,100"], "do not share 3 depths evenly"),
        (["--task", "vt", "--haystack", "book.txt"], "--haystack is for needles in prose"),
        (["--task", "fwe", "--vt-chains", "2"], "--vt-chains is for vt"),
    ],
)
def test_options_without_effect_are_named(words, note, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("Some words of a book. " * 99)
    result = qfilters("--model", "no-such-model", *words, code=1)
    assert note in result.stderr


def test_prompts_go_to_standard_output(model):
    rows = timeless(qfilters(*model, *NEEDLE, "--dump-prompts", "-").stdout)
    assert len(rows) == 2


def test_a_damaged_line_is_named(model, tmp_path):
    words = [*model, *NEEDLE, "--method", "knorm", "--budget", "256"]
    qfilters(*words)
    path = folder(tmp_path) / "samples_niah_single_1.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "{oops\n", *lines[1:]]))
    (path.parent / "summary.json").unlink()
    assert "line 2, is damaged" in qfilters(*words, "--resume", code=1).stderr
    path.write_text("".join([*lines, *lines]))
    qfilters(*words, "--resume")
    cells = json.loads((path.parent / "summary.json").read_text())["rows"]
    assert {c["n"] for c in cells} == {2}


def test_special_tokens_in_a_haystack_are_refused(model, tmp_path):
    (tmp_path / "book.txt").write_text("Once there was a house <end> on a hill. " * 50)
    words = ["--task", "niah_single_2", "--length", "1024", "--haystack", "book.txt"]
    assert "'<end>'" in qfilters(*model, *QUICK, *words, code=2).stderr


def test_one_size_has_one_spelling():
    with pytest.raises(UsageError, match="twice"):
        resolve(RulerConfig, None, {"compression_ratio": "2,2.0"})
