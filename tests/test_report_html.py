"""The HTML page: whole, self-contained, well-formed, the same every time."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import result_rows as made
from typer.testing import CliRunner

from qfilters.cli import app
from qfilters.report import report_page
from qfilters.report.kinds import pictures_of
from qfilters.report.runs import read_runs

VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Ids, references, text of cells, and whether tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.targets, self.tags, self.cells = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        for name in ("href", "xlink:href", "src"):
            self.targets += [found[name]] if name in found else []
        for value in found.values():
            self.targets += [f"#{name}" for name in re.findall(r"url\(#(.*?)\)", value or "")]
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    made.write_all(root)
    return root


@pytest.fixture(scope="module")
def page(results):
    return report_page(results)


def test_every_run_its_numbers_and_its_figures_are_there(results, page):
    parsed = Page(page)
    runs = read_runs(results)
    assert {run.name for run in runs} <= set(parsed.ids)
    drawn = [found["aria-label"] for tag, found in parsed.tags if tag == "svg"]
    assert sorted(drawn) == sorted(p.title for run in runs for p in pictures_of(run))
    for cell in ("4.00 [3.00, 5.00]", "60.0 [40, 80]", "qfilters", "0 of 32", "1.5"):
        assert cell in parsed.cells
    assert page.count("qfilters do it") == len(runs) and "a &lt;machine&gt;" in page
    assert "book.txt, SHA-256 abababababab" in page


def test_the_text_that_was_inspected_is_named(tmp_path):
    name = made.write(tmp_path, "inspect", [], **made.INSPECTED)
    file = tmp_path / "org__name" / name / "summary.json"
    summary = json.loads(file.read_text())
    del summary["qfilters"]["corpus"]
    file.write_text(json.dumps(summary))
    page = report_page(tmp_path)
    assert "held-out.txt, SHA-256 cdcdcdcdcdcd" in page
    assert "[0.400, 0.600]" in page and "texts of held-out.txt, sinks counted" in page


def test_nothing_comes_from_elsewhere(page):
    parsed = Page(page)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    outside = [t for t in parsed.targets if not t.startswith(("#", "data:"))]
    assert outside == []


def test_names_are_unique_and_every_reference_has_a_target(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {t[1:] for t in parsed.targets if t.startswith("#")} <= set(parsed.ids)


def test_same_files_same_bytes(results, page):
    assert report_page(results) == page


def test_text_from_files_is_escaped(tmp_path):
    rows = [{"text": "<b>&`x|y`"}]
    made.write(tmp_path, "generate", rows, command=["qfilters", "<i>"])
    page = report_page(tmp_path)
    assert "<td>&lt;b&gt;&amp;<code>x|y</code></td>" in page and "&lt;i&gt;" in page


def test_command_writes_page_and_figures(results, page, tmp_path):
    words = ["report", "--results", str(results), "--html", str(tmp_path / "sub" / "page.html")]
    result = CliRunner().invoke(app, [*words, "--figures", str(tmp_path / "figures")])
    assert result.exit_code == 0 and result.stdout == ""
    assert (tmp_path / "sub" / "page.html").read_text() == page
    assert len(list((tmp_path / "figures").glob("*.svg"))) == page.count("<svg")


# Many file systems list files by name whatever the order they came in, so glob is turned as well.
TWICE = """
import pathlib, sys
from qfilters.cli import app
glob, backwards = pathlib.Path.glob, sys.argv[3] == "2"
pathlib.Path.glob = lambda *words: sorted(glob(*words), reverse=backwards)
words = ["report", "--results", sys.argv[1]]
app(words, standalone_mode=False)
app([*words, "--html", sys.argv[2]], standalone_mode=False)
"""


def test_same_bytes_whatever_the_order_of_files_and_of_hashes(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    names = made.write_all(first)
    runs = {"a": f"org__name/{names['ppl']}"}
    made.plan(first, **{"ppl-1024": (["a"], runs), "later": (["a", "b"], runs)})
    for path in sorted(first.rglob("*.*"), reverse=True):
        copy = second / path.relative_to(first)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    texts, pages = [], []
    for results, seed in ((first, "1"), (second, "2")):
        page = results.with_suffix(".html")
        line = [sys.executable, "-c", TWICE, str(results), str(page), seed]
        env = os.environ | {"PYTHONHASHSEED": seed}
        texts.append(subprocess.run(line, env=env, stdout=subprocess.PIPE, check=True).stdout)
        pages.append(page.read_bytes())
    assert texts[0] == texts[1] and b"Not measured yet" in texts[0]
    assert pages[0] == pages[1] and pages[0].count(b"<svg") > 10
