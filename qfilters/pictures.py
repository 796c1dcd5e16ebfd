"""A figure that can be drawn later: everything that goes into it, and who draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Picture:
    """One call of figures.py.

    Attributes:
        name: unique in its run, fit for a file's name.
        title: what it shows, in words.
        draw: `heat_map`, `curves` or `bars`.
        data: what `draw` takes besides path and title.
    """

    name: str
    title: str
    draw: Callable[..., Path]
    data: Mapping[str, Any]

    def write(self, path: str | Path) -> Path:
        """Draw it into a `.png` or `.svg` file.

        Raises:
            UsageError: matplotlib is missing, or another suffix.
        """
        return self.draw(path, title=self.title, **self.data)
