import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import qfilters
from qfilters.config import (
    COMMANDS,
    GenerateConfig,
    InspectConfig,
    PplConfig,
    find_config,
    resolve,
)
from qfilters.errors import UsageError

NEEDED = {"generate": {"prompt": "x"}, "inspect": {"filters": "f.npz"}}
each_command = pytest.mark.parametrize("model", COMMANDS.values(), ids=COMMANDS)


def from_text(tmp_path, text, model=PplConfig, **flags):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return resolve(model, path, flags)


# --- where values come from ---


@each_command
def test_shipped_file_holds_every_key_commented_with_the_default(model):
    text = find_config(model.command).read_text()
    needed = NEEDED.get(model.command, {})
    defaults = model(**needed).as_dict()
    assert resolve(model, None, needed).as_dict() == defaults
    assert yaml.safe_load(text).keys() == defaults.keys() - needed.keys()
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if line and line[0] not in "# "]
    assert all(lines[i - 1].startswith("# ") for i in keys)


@each_command
def test_smoke_has_a_section_for_every_command(model):
    assert resolve(model, "smoke", NEEDED.get(model.command, {})).dtype == "float32"


def test_flag_beats_file_beats_default(tmp_path):
    got = from_text(tmp_path, "sinks: 2\nseed: 9\n", sinks=1, recent=None)
    assert (got.sinks, got.seed, got.recent, got.step_size) == (1, 9, None, 32)
    assert {"sinks", "seed"}.isdisjoint(got.defaulted())
    assert got.defaulted()["step_size"] == 32 and got.defaulted()["recent"] is None


def test_values_of_the_shipped_file_count_as_defaulted():
    got = resolve(PplConfig, None, {"budget": "256", "recent": 64})
    assert got.budget == (256,)
    assert got.defaulted().keys() == got.as_dict().keys() - {"budget", "recent"}
    assert got.defaulted()["method"] == ["none", "qfilters", "knorm", "streaming_llm", "random"]


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        PplConfig().sinks = 3


def test_written_settings_read_back(tmp_path):
    flags = {"method": "random, qfilters_keysvd(sign=-1, calib_tokens=64)", "budget": "64,99"}
    first = resolve(PplConfig, None, flags | {"json": True})
    again = from_text(tmp_path, yaml.safe_dump(first.as_dict()))
    assert again.as_dict() == first.as_dict() and again.method == first.method


def test_shipped_files_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = find_config("ppl")
    assert wanted.is_absolute()
    assert find_config("ppl.yaml") == find_config("configs/ppl.yaml") == wanted
    (tmp_path / "ppl").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ppl.yaml").write_text("sinks: 1")
    assert find_config("ppl") == wanted
    assert resolve(PplConfig, None, {}).sinks == 4  # a stranger's file is used only when named
    assert resolve(PplConfig, "configs/ppl.yaml", {}).sinks == 1


def test_shipped_files_are_found_inside_an_installed_package(tmp_path):
    package = Path(qfilters.__file__).parent
    shutil.copytree(package, tmp_path / "qfilters", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(find_config("ppl").parent, tmp_path / "qfilters" / "configs")
    code = "from qfilters.config import find_config; print(find_config('smoke'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "qfilters" / "configs" / "smoke.yaml")


def test_no_mlx_and_nothing_heavy_is_imported():
    code = (
        "import sys, qfilters.config, qfilters.text, qfilters.stats, qfilters.results, "
        "qfilters.report; "
        "bad = {'mlx.core', 'mlx_lm', 'scipy', 'datasets', 'pyarrow'} & sys.modules.keys(); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- files that are wrong ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- sinks\n", "holds a list"),
        ("sinks\n", "holds a str"),
        ("sinks: [\n", "line 2 is not YAML"),
        ("sinks: 1\nsinks: 2\n", "line 2 is not YAML: key 'sinks' occurs twice"),
        ("bugdet: 3\n", "bugdet: unknown key for ppl; did you mean 'budget'"),
        ("prompt: x\n", "prompt: unknown key for ppl; known: json, model, "),
        ("no: 3\n", "False: unknown key"),
        ("sinks: x\n", "sinks: 'x': input should be a valid integer"),
        ("sinks: 1.5\n", "sinks: 1.5: input should be a valid integer"),
        ("sinks: -1\n", "sinks: -1: input should be greater than or equal to 0"),
        ("sinks: no\n", "sinks: False is not a number .YAML reads a bare yes or no"),
        ("model: no\n", "model: False: input should be a valid string"),
        ("model:\n", "model: None: input should be a valid string"),
        ("dtype: int8\n", "dtype: 'int8': input should be 'auto'"),
        ("num_samples: 0\n", r"num_samples: 0 is neither at least 1 nor -1 \(all\)"),
        ("budget: [128, 1.5]\n", "budget: 1.5 is not a whole number"),
        ("budget: [yes]\n", "budget: True is not a whole number"),
        ("budget: []\n", "budget: the list is empty"),
        ("method: []\n", r"method: \[\] is not a list of methods"),
        ("method: [knorm, {a: 1}]\n", "method: {'a': 1} is neither"),
        ("method: ['knorm,random']\n", "method: 'knorm,random' names 2 methods"),
        ("sinks: 1\ncompression_ratio: .inf\n", "compression_ratio: inf: .*finite"),
        ("budget: 64\ncompression_ratio: 4\n", "budget: --budget and --compression-ratio exclude"),
        ("ppl: {}\nsinks: 3\n", "has sections, but sinks is none"),
        ("calibrate: {}\n", "has no section 'ppl', only calibrate"),
        ("ppl: 3\n", "section 'ppl' should hold"),
        ("common: {prompt: x}\nppl: {}\n", "prompt: unknown key for ppl"),
    ],
)
def test_wrong_files_are_refused_naming_file_and_key(tmp_path, text, message):
    with pytest.raises(UsageError, match=rf"my\.yaml.*{message}") as caught:
        from_text(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(UsageError, match=r"no configuration file .*gone/x\.yaml"):
        resolve(PplConfig, tmp_path / "gone/x.yaml", {})
    with pytest.raises(UsageError, match=r"no configuration file nothing\.yaml"):
        resolve(PplConfig, "nothing", {})
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"cannot read .*a\.yaml"):
        resolve(PplConfig, tmp_path / "a.yaml", {})


def test_several_problems_in_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"sinks: 'x'.*; .*seed: 'y'"):
        from_text(tmp_path, "sinks: x\nseed: y\n")


def test_yaml_reads_small_numbers_as_text_and_we_do_not(tmp_path):
    got = from_text(
        tmp_path, "temp: 1e-5\nprompt: x\nmethod: {m: {a: 1e-5, b: no}}", GenerateConfig
    )
    assert got.temp == 1e-5 and got.method == ("m", {"a": 1e-5, "b": False})


# --- budgets ---


def refused(model=PplConfig, **flags):
    with pytest.raises(UsageError) as caught:
        resolve(model, None, flags)
    return str(caught.value)


def test_messages_of_the_budget_flags():
    assert refused(budget="64", recent=64) == (
        "Invalid value for '--budget': 64 leaves no room for --sinks 4 + --recent 64 "
        "(needs at least 69)."
    )
    assert refused(compression_ratio=0.5) == (
        "Invalid value for '--compression-ratio': 0.5 is below 1. Here the ratio is full/kept "
        "(2 keeps half); kvpress's 0.5 (fraction removed) is --compression-ratio 2."
    )
    assert "exclude each other" in refused(budget="64", compression_ratio=2.0)
    assert "1024 tokens / --compression-ratio 400: 2 leaves no room" in refused(
        compression_ratio=400.0
    )
    assert "128 is listed twice" in refused(budget="128, 128")
    assert "exclude each other" in refused(resume=True, overwrite=True)
    assert "Missing value for '--prompt'" in refused(GenerateConfig)
    assert "is not JSON" in refused(GenerateConfig, prompt="x", chat_template_config="{")
    assert "give a filter file, --model, or both" in refused(InspectConfig)


def test_the_stronger_source_decides_between_budget_and_ratio(tmp_path):
    assert resolve(PplConfig, None, {"compression_ratio": 4}).budgets_for(1000) == (250,)
    assert from_text(tmp_path, "budget: 64", compression_ratio=8).budgets_for(1024) == (128,)
    assert from_text(tmp_path, "compression_ratio: 8", budget="64").budgets_for(1024) == (64,)
    assert from_text(tmp_path, "compression_ratio: 8").budget is None
    generate = resolve(GenerateConfig, None, {"prompt": "x", "compression_ratio": 2})
    assert generate.budgets_for(301) == (150,)
    with pytest.raises(UsageError, match="8 tokens / --compression-ratio 2: 4 leaves no room"):
        generate.budgets_for(8)


def test_none_ignores_the_budget():
    assert resolve(PplConfig, None, {"method": "none", "budget": "2", "recent": 9}).budget == (2,)
    assert "leaves no room" in refused(method="none,knorm", budget="2")


def test_ratio_is_full_over_kept():
    for ratio in (1, 1.5, 3, 7.8125):
        config = PplConfig(compression_ratio=ratio, method="none")
        assert config.budgets_for(1000) == (math.floor(1000 / ratio),)
