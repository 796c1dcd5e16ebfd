"""Score keys and copy rows. Selection itself goes through the order of `select`."""

from .reference import project, put_row, take_rows

__all__ = ["project", "put_row", "take_rows"]
