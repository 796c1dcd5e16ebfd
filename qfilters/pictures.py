"""A figure that can be drawn later: everything that goes into it, and who draws it."""

from __future__ import annotations

import hashlib
import json
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
        data: what `draw` takes besides path, title and description.
    """

    name: str
    title: str
    draw: Callable[..., Path]
    data: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change with title and data: what is drawn, not how."""
        # Keys keep their order, for the order of series is that of their colours.
        text = json.dumps([self.title, self.data], default=list, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def write(self, path: str | Path) -> Path:
        """Draw it into a `.png` or `.svg` file, with the fingerprint in the file's metadata.

        Raises:
            UsageError: matplotlib is missing, or another suffix.
        """
        return self.draw(path, title=self.title, description=self.fingerprint, **self.data)

    def drawn_in(self, path: str | Path) -> bool:
        """Whether `path` is a file that was written from the same title and data."""
        path = Path(path)
        return path.is_file() and self.fingerprint.encode() in path.read_bytes()
