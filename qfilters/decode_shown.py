"""What `bench decode` is shown as: a table, and speed and memory against the context."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from .figures import curves
from .pictures import Picture


def decode_pictures(rows: list[Mapping[str, Any]]) -> Iterator[Picture]:
    """Tokens/s with its range over rounds, and bytes held, of every way to keep a cache.

    Args:
        rows: as `bench_decode.bench_decode` makes them.
    """
    speed, memory = defaultdict(list), defaultdict(list)
    for row in rows:
        name = row["path"] if row["budget"] is None else f"{row['path']} {row['budget']}"
        speed[name].append((row["context"], row["tps"], row["tps_min"], row["tps_max"]))
        memory[name].append((row["context"], row["held_mb"], None, None))
    what = f"{len(rows[0]['tps_rounds'])} rounds of {rows[0]['generated']} tokens"
    for name, title, unit, series in (
        ("speed", f"Decoding speed, median and range of {what}", "tokens/s", speed),
        ("memory", "Memory that the caches hold after decoding", "MB", memory),
    ):
        data = {"series": series, "x": "context (tokens)", "y": unit, "log_x": True}
        yield Picture(name, title, curves, data)


def decode_cells(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of the table for a person."""
    columns = ["cache", "context", "budget", "TTFT s", "tokens/s", "min - max", "rounds", "peak MB"]
    columns += ["held MB", "x first", "x rotating"]
    cells = []
    for row in rows:
        cells.append(
            [
                row["path"],
                str(row["context"]),
                "-" if row["budget"] is None else str(row["budget"]),
                f"{row['ttft_s']:.2f}",
                f"{row['tps']:.2f}",
                f"{row['tps_min']:.2f} - {row['tps_max']:.2f}",
                str(len(row["tps_rounds"])),
                f"{row['peak_mb']:.1f}",
                f"{row['held_mb']:.1f}",
                _interval(row, "x_first"),
                _interval(row, "x_rotating"),
            ]
        )
    return columns, cells


def _interval(row, name):
    if name not in row:
        return "-"
    return f"{row[name]:.2f} [{row[name + '_low']:.2f}, {row[name + '_high']:.2f}]"
