"""The pages in docs/: blocks are those of the result files, figures are those that can be drawn."""

import re
from pathlib import Path

import pytest

from qfilters.report import shown, tables, update_readme
from qfilters.report.kinds import pictures_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "artifacts" / "results"
PAGES = sorted((ROOT / "docs").glob("*.md"))
DRAWN = {  # of every item that has figures, what its kind draws on the embedded model
    "inspect": {"projection", "correlation", "correlation_qfilters", "retained"},
    "geometry": {"retained_drift_64", "retained_isotropic_64"},
    "stability": {"stability"},
    "chunks": {"overlap"},
    "ppl-1024": {"perplexity"},
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
def test_figures_exist_once_their_item_was_measured(page):
    items = {item.name: item for item in shown(RESULTS)[0]}
    for name in images(page):
        item, figure = name.rsplit("-", 1)
        assert figure in DRAWN[item]
        if items[item].summary is not None:
            assert figure in {picture.name for picture in pictures_of(items[item])}
            assert (ROOT / "docs" / "figures" / f"{name}.svg").is_file(), "draw it: --figures"


def test_pages_have_figures_and_links_that_exist():
    assert sum(len(images(page)) for page in PAGES) >= 8
    for page in PAGES:
        for target in re.findall(r"\]\(([\w./-]+\.md)\)", page.read_text()):
            assert (page.parent / target).is_file(), (page, target)
        for path in re.findall(
            r"`((?:configs|qfilters|benchmarks)/[\w./-]+\.\w+)`", page.read_text()
        ):
            assert (ROOT / path).is_file(), (page, path)
