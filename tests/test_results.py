import json
import os
import re

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from qfilters import results
from qfilters.config import MethodSpec, PplConfig, resolve
from qfilters.errors import QFiltersError, UsageError
from qfilters.results import (
    PplRow,
    TaskResult,
    atomic_write,
    document,
    dump_json,
    lm_eval_document,
    open_run,
    result_name,
    run_id,
    sanitize,
)

CONFIG = {"model": "org/name", "method": ["none", "knorm"], "budget": [64], "recent": None}


def row(**changes):
    return (
        PplRow(
            method="knorm",
            budget=64,
            sinks=4,
            recent=16,
            perplexity=24.5,
            low=23.0,
            high=26.0,
            n_tokens=2046,
            n_sequences=2,
            nll_sums=[3270.0, 3275.0],
            rows_evicted=960,
            evicted=True,
            tokens_seen=1024,
            tokens_kept=64,
            compression_ratio=16.0,
            kept_fraction=0.0625,
            cache_bytes=1000,
            full_cache_bytes=16000,
            bytes_ratio=16.0,
            seconds=1.5,
            mode="stream",
        )
        | changes
    )


# --- identity and names ---


def test_id_is_pinned_and_does_not_depend_on_key_order():
    # A changed id orphans every stored result: change this line only on purpose.
    assert run_id(CONFIG) == "0d170a67"
    assert run_id(dict(reversed(CONFIG.items()))) == run_id(CONFIG)
    assert run_id(CONFIG | {"budget": (64,)}) == run_id(CONFIG)


def test_id_ignores_where_things_are_and_how_they_are_shown():
    for key, value in [
        ("output", "x.json"),
        ("resume", True),
        ("overwrite", True),
        ("json", True),
        ("save", False),
        ("figures", "svg"),
    ]:
        assert run_id(CONFIG | {key: value}) == run_id(CONFIG)
    one = CONFIG | {"data_path": "/home/a/book.txt", "filters": "f/x.npz", "model": "/m/tiny"}
    other = CONFIG | {"data_path": "book.txt", "filters": "~/x.npz", "model": "./m/tiny/"}
    assert run_id(one) == run_id(other)


@pytest.mark.parametrize(
    "change",
    [
        {"budget": [65]},
        {"recent": 1},
        {"model": "other/name"},
        {"data_path": "other.txt"},
        {"text_sha256": "0"},
    ],
)
def test_id_follows_what_changes_the_numbers(change):
    assert run_id(CONFIG | change) != run_id(CONFIG)


def test_model_names_as_folders(monkeypatch, tmp_path):
    assert sanitize("org/name-1.5_b") == "org__name-1.5_b"
    assert sanitize("/home/someone/models/tiny/") == "tiny"
    assert sanitize("a b:c/d") == "a_b_c__d"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert sanitize(".") == "here"


def test_result_names():
    assert result_name("none", None) == "results_none_full.json"
    assert result_name("qfilters", 128) == "results_qfilters_128.json"
    assert result_name("a b", 1) != result_name("a/b", 1)
    assert result_name("qfilters_keysvd(sign=-1)", 64) == "results_qfilters_keysvd-sign=-1_64.json"


names = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
values = st.booleans() | st.integers(-99, 99) | st.floats(-1e9, 1e9) | names
specs = st.builds(MethodSpec, names, st.dictionaries(names, values, max_size=2))
arms = st.tuples(specs.map(lambda s: s.label) | st.text(max_size=9), st.none() | st.integers(1, 99))


@settings(deadline=None)
@given(st.lists(arms, min_size=2, max_size=2, unique=True))
def test_result_names_are_safe_and_differ(pair):
    one, other = (result_name(*arm) for arm in pair)
    assert one != other
    assert re.fullmatch(r"[\w.=+-]+\.json", one) and one.startswith("results_")


# --- writing ---


def test_atomic_write_replaces_whole_files(tmp_path):
    path = tmp_path / "deep" / "a.json"
    atomic_write(path, "one ü\n")
    assert path.read_bytes() == b"one \xc3\xbc\n"
    with path.open() as reader:
        atomic_write(path, b"two")
        assert reader.read() == "one ü\n"  # who reads sees the old file or the new one
    assert path.read_bytes() == b"two" and os.listdir(path.parent) == ["a.json"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = atomic_write(tmp_path / "a.json", "old")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(results.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.json"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QFiltersError, match=r"cannot write .*file/a\.json: ") as caught:
        atomic_write(tmp_path / "file" / "a.json", "x")
    assert "\n" not in str(caught.value)
    with pytest.raises(QFiltersError, match="cannot write"):
        open_run(tmp_path / "file", "m", "ppl", CONFIG)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_numbers_that_are_not_finite_are_errors_that_name_the_key(bad):
    with pytest.raises(QFiltersError, match=r"rows\[1\]\.perplexity is (nan|-?inf)"):
        dump_json(document([row(), row(perplexity=bad)], {}))


def test_json_takes_numpy_and_null():
    text = dump_json({"a": np.int64(3), "b": np.float32(0.5), "c": np.arange(2), "low": None})
    assert json.loads(text) == {"a": 3, "b": 0.5, "c": [0, 1], "low": None}
    assert text.endswith("}\n")


def test_document_is_rows_and_one_block():
    made = document([row()], {"mlx": "0.32.4", "command": ["qfilters", "ppl"]})
    assert made["rows"] == [row()]
    assert made["qfilters"]["schema_version"] == 1 and made["qfilters"]["mlx"] == "0.32.4"


# --- run folders ---


def test_config_is_written_first_and_reads_back(tmp_path):
    config = resolve(PplConfig, None, {"budget": "64", "overwrite": True, "output": "x.json"})
    run = open_run(tmp_path, "org/name", "ppl", config.as_dict(), {"text_sha256": "abc"})
    assert run.path == tmp_path / "org__name" / f"ppl-{run.id}"
    assert os.listdir(run.path) == ["config.yaml"] and not run.finished
    assert (run.path / "config.yaml").read_text().startswith("# text_sha256: abc\nmodel: ")
    again = resolve(PplConfig, run.path / "config.yaml", {})
    assert again.budget == (64,) and not again.overwrite
    assert run_id(again.as_dict() | {"text_sha256": "abc"}) == run.id
    assert run_id(again.as_dict()) != run.id


def test_an_existing_folder_is_refused_naming_both_ways_out(tmp_path):
    run = open_run(tmp_path, "m", "ppl", CONFIG)
    with pytest.raises(QFiltersError, match=r"interrupted.*--resume.*--overwrite"):
        open_run(tmp_path, "m", "ppl", CONFIG)
    run.write_json("summary.json", document([row()], {}))
    assert run.finished
    with pytest.raises(QFiltersError, match=r"a finished run.*--resume.*--overwrite"):
        open_run(tmp_path, "m", "ppl", CONFIG)
    with pytest.raises(UsageError, match="exclude each other"):
        open_run(tmp_path, "m", "ppl", CONFIG, resume=True, overwrite=True)
    assert run.read_json("summary.json")["rows"] == [row()]
    assert open_run(tmp_path, "m", "ppl", CONFIG | {"budget": [9]}).path != run.path
    assert open_run(tmp_path, "m", "inspect", CONFIG).path != run.path


def test_overwrite_starts_afresh(tmp_path):
    run = open_run(tmp_path, "m", "ppl", CONFIG)
    run.write_json("summary.json", {})
    again = open_run(tmp_path, "m", "ppl", CONFIG, overwrite=True)
    assert again == run and os.listdir(run.path) == ["config.yaml"]
    assert open_run(tmp_path, "new", "ppl", CONFIG, overwrite=True).path.is_dir()


def test_resume_keeps_what_is_done_and_drops_a_torn_line(tmp_path):
    run = open_run(tmp_path, "m", "ppl", CONFIG, resume=True)
    run.write_json("results_none_full.json", {"a": 1})
    run.append_jsonl("samples.jsonl", {"text": "a\u2028b"})
    with (run.path / "samples.jsonl").open("a") as file:
        file.write('{"text": "c')
    (run.path / "config.yaml").unlink()  # interrupted between mkdir and the first file
    again = open_run(tmp_path, "m", "ppl", CONFIG, resume=True)
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG
    assert again.read_json("results_none_full.json") == {"a": 1}
    assert again.read_json("results_knorm_64.json") is None
    again.append_jsonl("samples.jsonl", {"text": "d"})
    assert again.read_jsonl("samples.jsonl") == [{"text": "a\u2028b"}, {"text": "d"}]
    assert again.read_jsonl("other.jsonl") == []


# --- lm-eval's document ---


def ppl_document():
    task = TaskResult(
        name="perplexity_1024",
        metrics={"perplexity": 24.5, "nll": 3.2},
        higher_is_better={"perplexity": False, "nll": False},
        n_original=38,
        n_effective=2,
        settings={"sequence_length": 1024},
        intervals={"perplexity": {"low": 23.0, "high": 26.0, "level": 0.95}},
    )
    config = CONFIG | {"num_samples": 2, "seed": 123, "bootstrap_iters": 100, "dtype": "auto"}
    where = {"mlx": "0.32.4", "device": "cpu"}
    return lm_eval_document("org/name", [task], row(), config, where, date=1.0)


def test_lm_eval_document_has_its_keys_and_one_block_of_ours():
    made = json.loads(dump_json(ppl_document()))
    assert made["results"]["perplexity_1024"]["perplexity,none"] == 24.5
    assert made["higher_is_better"]["perplexity_1024"]["perplexity"] is False
    assert made["n-samples"]["perplexity_1024"] == {"original": 38, "effective": 2}
    assert made["config"]["limit"] == 2 and made["config"]["random_seed"] == 123
    assert isinstance(made["total_evaluation_time_seconds"], str)
    ours = made["qfilters"]
    assert (
        ours["eviction"] == row() and ours["interval"]["perplexity_1024"]["perplexity"]["low"] == 23
    )
    assert not any("low" in key for key in made["results"]["perplexity_1024"])


def test_lm_eval_prints_the_table():
    make_table = pytest.importorskip("lm_eval.utils").make_table
    table = make_table(ppl_document())
    assert "24.5" in table and "↓" in table and "perplexity_1024" in table
