"""One HTML page of runs: no network, no scripts, figures inside as SVG."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from html import escape
from pathlib import Path

from .kinds import pictures_of, tables_of
from .runs import Run
from .tables import Table

STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 84rem; padding: 1rem; }
p { max-width: 64rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 3rem; overflow-wrap: anywhere; }
h2, h3 { line-height: 1.25; } h3 { font-size: 1rem; }
nav ul { columns: 22rem; padding-left: 1.2rem; }
nav li { break-inside: avoid; overflow-wrap: anywhere; }
small { font-weight: normal; opacity: .75; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: right; }
th { vertical-align: bottom; } th, td { white-space: nowrap; }
th:first-child, td:first-child { background: Canvas; left: 0; position: sticky; text-align: left; }
.words th, .words td { text-align: left; vertical-align: top; }
td.long { min-width: 14rem; text-align: left; white-space: normal; }
@media (max-width: 40rem) {
.words thead { display: none; }
.words tr, .words td { display: block; position: static; }
.words tr { border-bottom: 1px solid var(--line); padding: .4rem 0; }
.words td { border: 0; padding: .1rem 0; white-space: normal; }
.words td:first-child { font-weight: bold; }
}
.note, .made { font-size: .85rem; } .made { opacity: .85; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; font-size: .92em; }
figure { margin: 1rem 0; }
figure svg { background: #fff; border-radius: 6px; height: auto; max-width: 100%; }
""".strip()

# Cells above this many characters are broken into lines.
LONG = 45

FACTS = ("qfilters", "mlx", "mlx_lm", "numpy", "python", "platform", "backend", "device", "blas")


def html_page(runs: Iterable[Run], claims: Table | None = None) -> str:
    """The page of these runs in this order, after the claims.

    Raises:
        UsageError: matplotlib is missing.
        QFiltersError: a summary lacks what its kind must have.
    """
    runs = list(runs)
    links = '<li><a href="#claims">Claims, one by one</a></li>\n' if claims else ""
    links += "".join(f'<li><a href="#{_id(run)}">{_title(run)}</a></li>\n' for run in runs)
    judged = ""
    if claims:
        judged = f'<section id="claims">\n<h2>Claims, one by one</h2>\n{_table(claims)}</section>\n'
    with tempfile.TemporaryDirectory() as folder:
        sections = "".join(_section(run, Path(folder)) for run in runs)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>qfilters: results</title>
<style>
{STYLE}
</style>
</head>
<body>
<h1>qfilters: results</h1>
<p>Everything here comes from result files; <code>qfilters report --html FILE</code> made the page.
Brackets are 95 % intervals; n and what was resampled stand beside the numbers.</p>
<nav><ul>
{links}</ul></nav>
<main>
{judged}{sections}</main>
</body>
</html>
"""


def _section(run: Run, folder: Path) -> str:
    if run.summary is None:
        body = f"<p>Not measured yet: <code>{escape(run.commands[0])}</code></p>\n"
    else:
        figures = "".join(
            _figure(picture.title, picture.write(folder / "figure.svg"), f"{_id(run)}-{number}-")
            for number, picture in enumerate(pictures_of(run))
        )
        body = "".join(map(_table, tables_of(run))) + figures + _made(run)
    return f'<section id="{_id(run)}">\n<h2>{_title(run)}</h2>\n{body}</section>\n'


def _title(run: Run) -> str:
    title = run.title or f"qfilters {run.kind.replace('-', ' ')}"
    return f"{escape(title)} <small>{escape(run.name)}</small>"


def _made(run: Run) -> str:
    made = run.summary["qfilters"]
    facts = ", ".join(f"{name} {made[name]}" for name in FACTS if name in made)
    text = made.get("corpus") or run.summary.get("corpus")
    corpus = f"; text {text['name']}, SHA-256 {text['sha256'][:12]}" if text else ""
    commands = "<br>".join(f"<code>{escape(command)}</code>" for command in run.commands)
    facts = escape(f"Model {run.model}; {facts}{corpus}. Made by")
    return f'<p class="made">{facts}<br>{commands}</p>\n'


def _table(table: Table) -> str:
    title = f"<h3>{_text(table.title)}</h3>\n" if table.title else ""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in table.rows)
    kind = ' class="words"' if table.words else ""
    note = f'<p class="note">{_text(table.note)}</p>\n' if table.note else ""
    return (
        f'{title}<div class="wide"><table{kind}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table></div>\n{note}"
    )


def _cell(text: str) -> str:
    kind = ' class="long"' if len(text) > LONG else ""
    return f"<td{kind}>{_text(text)}</td>"


def _text(text: str) -> str:
    """Text of a Markdown cell as HTML: `code` and escaped bars are all the Markdown there is."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text.replace("\\|", "|")))


def _figure(title: str, drawn: Path, prefix: str) -> str:
    """The SVG itself, without its prolog; names inside are unique on the page."""
    svg = drawn.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    label = escape(title)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return f"<figure>\n{svg.rstrip()}\n</figure>\n"


def _id(run: Run) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", run.name)
