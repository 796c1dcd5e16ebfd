"""The README's commands and code run, and its numbers are those of the result files.

The embedded model is replaced by the tiny one, in the place where the cache folder has it: what is
shown here is that every line works as written, not what it prints on the real model.
"""

import re
import shlex
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from qfilters.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("qfilters ")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """An empty folder that the README's lines share, as a reader's would be."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "book.txt").write_text(" ".join(f"Sentence {i} of a long book." for i in range(2000)))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    tiny.write_folder(folder / "models" / "smollm2-135m", merges=3000)
    return folder


@pytest.fixture(autouse=True)
def as_a_reader(workplace, cache, monkeypatch):
    monkeypatch.setenv("QFILTERS_CACHE", str(cache))
    monkeypatch.chdir(workplace)


def test_the_two_commands_come_first():
    assert README.index("make demo") < README.index("qfilters calibrate")
    assert "make test" in README


@pytest.mark.parametrize("line", commands())
def test_every_command_runs(line):
    words = shlex.split(line, comments=True)[1:]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (result.stderr, result.exception)


@pytest.mark.parametrize("code", blocks("python"))
def test_every_python_block_runs(code):
    exec(compile(code, "README.md", "exec"), {})


def test_every_subcommand_is_shown():
    shown = {shlex.split(line)[1] for line in commands()}
    assert {"calibrate", "inspect", "generate", "ppl", "report", "doctor", "methods"} <= shown


def test_numbers_are_those_of_the_result_files():
    from qfilters.report import tables, update_readme

    made = update_readme(README, tables(ROOT / "artifacts" / "results"))
    assert made == README, "stale: run make readme"


def test_a_stale_number_is_noticed():
    from qfilters.report import tables, update_readme

    shown = re.search(r"<!-- results:\S+ -->\n(.*?)<!-- /results -->", README, re.DOTALL)[1]
    stale = README.replace(shown, re.sub(r"\d\.\d", "9.9", shown, count=1))
    assert stale != README
    assert update_readme(stale, tables(ROOT / "artifacts" / "results")) == README
