"""Configurations of the evidence and of other models, and the script that measures the former."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from qfilters.bench_decode import check_contenders
from qfilters.config import COMMANDS, resolve
from qfilters.report import tables
from qfilters.ruler.sweep import check
from qfilters.session import check_methods
from qfilters.study import STUDIES

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "evidence.py"
MODELS = sorted((ROOT / "configs" / "models").glob("*.yaml"))


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """The script as a module, in an empty checkout with small settings for geometry."""
    spec = importlib.util.spec_from_file_location("evidence", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / module.CONFIGS
    folder.mkdir(parents=True)
    for path in (ROOT / module.CONFIGS).glob("*.yaml"):
        (folder / path.name).write_text(path.read_text())
    (folder / "geometry.yaml").write_text("length: 64\nbudget: 16\nseeds: 2\n")
    return module


def checked(name, path, flags):
    """Resolve as the command would, and check what it checks before a model is loaded."""
    if name.startswith("study "):
        settings = resolve(STUDIES[name.removeprefix("study ")].config, path, flags)
        settings.check()
        return settings
    settings = resolve(COMMANDS[name], path, flags)
    if name == "ruler":
        check(settings)
    elif name == "bench":
        check_contenders(settings.method)
    elif hasattr(settings, "method"):
        check_methods([settings.method] if name == "generate" else settings.method)
    return settings


def test_every_item_has_settings_that_resolve_and_every_file_is_an_item(evidence):
    assert {item.name for item in evidence.ITEMS} == {
        path.stem for path in (ROOT / evidence.CONFIGS).glob("*.yaml")
    }
    for item in evidence.ITEMS:
        for variant in item.variants:
            words = variant.split()
            flags = dict([words[0].strip("-").replace("-", "_"), value] for value in words[1:])
            path = ROOT / evidence.CONFIGS / f"{item.name}.yaml"
            checked(item.command, path, flags)
            assert yaml.safe_load(path.read_text()), path


def test_all_of_it_takes_at_most_an_hour_and_a_half_on_two_cores(evidence):
    assert evidence.total_minutes(evidence.ITEMS, speed=100, jobs=2) < 90


def test_timed_items_run_alone_and_the_longest_of_the_others_first(evidence, monkeypatch):
    running, order = set(), []

    def measure(item, variant):
        running.add(item.name)
        order.append(item.name)
        assert not item.timed or running == {item.name}
        assert len(running) <= 2
        time.sleep(0.01)
        running.discard(item.name)
        return f"m/{item.name}"

    monkeypatch.setattr(evidence, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["evidence.py"])
    evidence.main()
    assert order[0] == "chunks" and set(order[1:3]) == {"niah-2048", "ppl-1024"}
    assert len(order) == sum(len(item.variants) for item in evidence.ITEMS)
    plan = json.loads(evidence.PLAN.read_text())
    assert all(set(plan[item.name]["runs"]) == set(item.variants) for item in evidence.ITEMS)


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_model_has_a_section_for_every_command(path, command):
    settings = checked(command, path, {})
    assert settings.model.startswith("mlx-community/")


def test_the_models_of_port_and_paper_are_there():
    assert {p.stem for p in MODELS} == {
        *("llama-3.2-1b", "llama-3.2-3b", "qwen2.5-7b", "llama-3.1-8b")
    }


def test_an_item_is_measured_once_and_again_when_its_settings_change(evidence, monkeypatch, capfd):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["evidence.py", *words])
        evidence.main()
        return json.loads(evidence.PLAN.read_text()), capfd.readouterr().out

    plan, said = run("geometry")
    [place] = plan["geometry"]["runs"].values()
    assert place.startswith("synthetic/study-geometry-") and "== geometry done" in said
    assert (
        "Not measured yet: `python benchmarks/evidence.py recent`"
        in (tables(evidence.RESULTS)["recent"])
    )
    assert "attention retained" in tables(evidence.RESULTS)["geometry"]
    assert run("geometry") == (plan, "about 0 min\nall 0 done in 0.0 min\n")

    (evidence.CONFIGS / "geometry.yaml").write_text("length: 64\nbudget: 16\nseeds: 3\n")
    again, said = run("geometry")
    assert again["geometry"]["runs"] != plan["geometry"]["runs"] and "== geometry done" in said

    (evidence.RESULTS / again["geometry"]["runs"][""] / "summary.json").unlink()
    assert "== geometry done" in run("geometry")[1], "an interrupted run is continued"


def test_a_command_that_fails_ends_the_script(evidence):
    (evidence.CONFIGS / "geometry.yaml").write_text("length: 64\nbudget: 16\nseeds: 0\n")
    item = next(item for item in evidence.ITEMS if item.name == "geometry")
    with pytest.raises(SystemExit, match=r"study geometry .* failed \(exit 2\)"):
        evidence.measure(item, "")


def test_a_second_one_and_bad_numbers_are_refused(evidence, monkeypatch):
    monkeypatch.setattr(evidence, "measure", lambda item, variant: "m/x")
    folder = evidence.hold()
    monkeypatch.setattr(sys, "argv", ["evidence.py", "geometry"])
    with pytest.raises(SystemExit, match=r"is being filled by another evidence\.py"):
        evidence.main()
    os.close(folder)
    evidence.main()
    for words in (["--jobs", "0"], ["--speed", "0"], ["--speed", "nan"]):
        monkeypatch.setattr(sys, "argv", ["evidence.py", *words])
        with pytest.raises(SystemExit, match="2"):
            evidence.main()
    evidence.PLAN.write_text('{"geometry": null}')
    with pytest.raises(SystemExit, match=r"evidence\.json is damaged"):
        evidence.read_plan()


def test_nothing_more_is_started_after_a_failure(evidence, monkeypatch):
    started = []

    def measure(item, variant):
        started.append(item.name)
        raise SystemExit("failed")

    monkeypatch.setattr(evidence, "measure", measure)
    monkeypatch.setattr(
        sys, "argv", ["evidence.py", "--jobs", "1", "budget", "recent", "niah-1024"]
    )
    with pytest.raises(SystemExit, match="failed"):
        evidence.main()
    assert len(started) == 1


def test_an_item_with_some_of_its_runs_is_not_done(evidence):
    item = next(item for item in evidence.ITEMS if item.name == "recent")
    plan = evidence.read_plan()
    plan["recent"]["runs"] = dict.fromkeys(item.variants[:2], "m/ppl-0")
    assert not evidence.done(item, plan)
    plan["recent"]["runs"] = dict.fromkeys(item.variants, "m/ppl-0")
    assert evidence.done(item, plan)


def test_list_needs_nothing_but_the_checkout(evidence):
    line = [sys.executable, str(SCRIPT), "--list"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count(" min") == len(evidence.ITEMS) + 1 and "ppl-1024" in done.stdout
