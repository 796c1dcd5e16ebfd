"""What a Markdown file shows of results: blocks that are filled from them, figures it links to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import UsageError

_OPEN = re.compile(r"\s*<!-- results:(\S+) -->\s*")
_CLOSE = re.compile(r"\s*<!-- /results -->\s*")
_SVG = re.compile(r"""(?:\]\(<?|src=["']|^\[[^\]]+\]:\s*<?)([^()\s"'<>]+\.svg)""", re.MULTILINE)


def update_readme(text: str, tables: Mapping[str, str]) -> str:
    """Replace what stands between `<!-- results:NAME -->` and `<!-- /results -->` lines.

    The rest of the text stays.
    Raises UsageError for a NAME that `tables` lacks, and for a marker without its partner.
    """
    lines: list[str] = []
    opened: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        start = _OPEN.fullmatch(line)
        if start and opened:
            raise UsageError(
                f"line {number}: results:{opened[1]} of line {opened[0]} is not closed"
            )
        if start:
            opened = (number, start[1])
            if start[1] not in tables:
                known = ", ".join(sorted(tables)) or "none"
                raise UsageError(f"line {number}: no results {start[1]!r}; there are: {known}")
            lines.append(line)
        elif _CLOSE.fullmatch(line):
            if not opened:
                raise UsageError(f"line {number}: <!-- /results --> closes nothing")
            lines += [tables[opened[1]].rstrip("\n"), "\n", line]
            opened = None
        elif not opened:
            lines.append(line)
    if opened:
        raise UsageError(
            f"line {opened[0]}: results:{opened[1]} is not closed by <!-- /results -->"
        )
    return "".join(lines)


def linked_figures(page: Path, folder: Path) -> Iterator[str]:
    """The names of the `.svg` files in `folder` that the page links to, relative to itself."""
    for target in _SVG.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target
        if path.parent.resolve() == folder.resolve():
            yield path.name
