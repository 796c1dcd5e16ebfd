"""The pages in docs/: blocks and figures are those of the result files."""

import json
import re
from pathlib import Path

import pytest
import result_rows
from typer.testing import CliRunner

from qfilters.cli import app
from qfilters.report import pictures, shown, tables, update_readme

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "artifacts" / "results"
PAGES = sorted((ROOT / "docs").glob("*.md"))
FIGURES = ROOT / "docs" / "figures"
DRAWN = {  # of every item that has figures, what its kind draws on the embedded model
    "inspect": {"projection", "keys", "correlation_qfilters", "later", "retained"},
    "geometry": {"retained_drift_64", "retained_isotropic_64"},
    "stability": {"stability"},
    "chunks": {"overlap"},
    "ppl-1024": {"perplexity"},
    "niah-1024": {"needles_1024"},
}


@pytest.fixture(scope="module")
def made():
    return tables(RESULTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_blocks_are_up_to_date(page, made):
    text = page.read_text()
    assert update_readme(text, made) == text, (
        f"stale: run qfilters report --readme docs/{page.name}"
    )


def test_every_item_of_evidence_is_shown_somewhere(made):
    text = "".join(page.read_text() for page in PAGES)
    shown_names = set(re.findall(r"<!-- results:(\S+) -->", text))
    assert {item.name for item in shown(RESULTS)[0]} | {"claims"} <= shown_names


def images(page):
    return re.findall(r"!\[[^\]]+\]\(figures/(.*?)\.svg\)", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_figures_have_names_that_their_kind_draws(page):
    for name in images(page):
        item, figure = name.rsplit("-", 1)
        assert figure in DRAWN[item]


def test_figures_are_of_the_result_files_and_none_is_left_over():
    linked = pictures(RESULTS, FIGURES, [*PAGES, ROOT / "README.md"])
    stale = [path.name for path, picture in linked.items() if not picture.drawn_in(path)]
    assert not stale, "run make readme"
    assert set(FIGURES.glob("*.svg")) == linked.keys(), "no page links to it: delete it"


def test_pages_have_figures_and_links_that_exist():
    assert sum(len(images(page)) for page in PAGES) >= 8
    for page in PAGES:
        for target in re.findall(r"\]\(([\w./-]+\.md)\)", page.read_text()):
            assert (page.parent / target).is_file(), (page, target)
        for path in re.findall(
            r"`((?:configs|qfilters|benchmarks)/[\w./-]+\.\w+)`", page.read_text()
        ):
            assert (ROOT / path).is_file(), (page, path)


@pytest.fixture
def site(tmp_path):
    """Results with more figures than the page links to: of one item, one of it still to come."""
    runs = {"": f"org__name/{result_rows.write(tmp_path, 'ppl', result_rows.PPL)}"}
    result_rows.write(tmp_path, "inspect", [], **result_rows.INSPECTED)
    result_rows.plan(tmp_path, short=([""], runs), **{"short-later": ([""], {})})
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(
        "![a](figures/short-perplexity.svg) and ![b](../docs/figures/short-later-perplexity.svg), "
        "not [c](elsewhere/short-nothing.svg)\n"
    )
    return page


def report(page, *more, figures="figures"):
    folder = page.parent / figures
    words = ["report", "--results", str(page.parents[1]), "--figures", str(folder), *more]
    return CliRunner().invoke(app, words)


def contents(page):
    return {path: path.read_bytes() for path in page.parents[1].rglob("*.*") if path.is_file()}


def test_pages_get_the_figures_they_link_to(site):
    assert report(site, "--readme", str(site)).exit_code == 0
    assert [path.name for path in (site.parent / "figures").iterdir()] == ["short-perplexity.svg"]
    assert report(site, figures="all").exit_code == 0
    assert len(list((site.parent / "all").iterdir())) == 7


@pytest.mark.parametrize(
    "link",
    [
        '![a](figures/short-perplexity.svg "title")',
        "![a](<figures/short-perplexity.svg>)",
        '<img src="figures/short-perplexity.svg">',
        "![a][b]\n\n[b]: figures/short-perplexity.svg",
    ],
)
def test_every_form_of_a_link_counts(site, link):
    site.write_text(f"{link}\n")
    assert report(site, "--readme", str(site)).exit_code == 0
    assert [path.name for path in (site.parent / "figures").iterdir()] == ["short-perplexity.svg"]


def test_a_page_without_links_into_the_folder_is_no_success(site):
    for more in ([], ["--check"]):
        result = report(site, "--readme", str(site), *more, figures="figure")
        assert result.exit_code == 2 and "no page links to a figure in" in result.stderr
    both = report(site, "--readme", str(site), "--check", "--html", str(site.parent / "x.html"))
    assert both.exit_code == 2 and "leave out one" in both.stderr
    site.write_bytes(b"\xff")
    words = ["report", "--results", str(site.parents[1]), "--readme", str(site)]
    assert "is not UTF-8" in CliRunner().invoke(app, words).stderr


def test_a_stale_figure_is_found_without_drawing(site, monkeypatch):
    assert report(site, "--readme", str(site)).exit_code == 0
    [summary] = site.parents[1].glob("*/ppl-*/summary.json")
    made = json.loads(summary.read_text())
    monkeypatch.setattr("qfilters.pictures.Picture.write", None)
    assert report(site, "--readme", str(site), "--check").exit_code == 0
    made["rows"][1]["perplexity"] += 0.001
    summary.write_text(json.dumps(made))
    before = contents(site)
    result = report(site, "--readme", str(site), "--check")
    assert result.exit_code == 1 and "short-perplexity.svg is stale" in result.stderr
    assert contents(site) == before


def test_a_link_to_no_figure_names_page_and_figure(site):
    site.write_text("![a](figures/short-perplexity.svg) ![b](figures/short-overlap.svg)\n")
    result = report(site, "--readme", str(site))
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert f"{site} links to {site.parent}/figures/short-overlap.svg: no" in result.stderr
    assert not (site.parent / "figures").exists()
