"""Figures from plain data: heat maps, curves, bars; PNG or SVG by the file's suffix.

The same data give the same bytes: fixed sizes, no dates, none of the user's own matplotlib style.
Series differ in marker and line as well as in colour. Knows nothing of methods or results.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError
from .files import atomic_write

Point = tuple[float, float | None, float | None, float | None]

# Okabe and Ito's colours, the yellow left out: it is too light on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX*<>"
LINES = ("-", "--", "-.", ":")
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "figure.titlesize": 10,
    "font.size": 9,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "hatch.color": "#999999",
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "qfilters",
}
# Above this many cells no numbers are written, above this many points an interval is a band.
FEW_CELLS, FEW_POINTS = 130, 12


def heat_map(
    path: str | Path,
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    x: str,
    y: str,
    x_ticks: Sequence,
    y_ticks: Sequence,
    unit: str,
    limits: tuple[float, float] | None = None,
    centre: float | None = None,
    description: str | None = None,
) -> Path:
    """Draw a table of numbers as coloured cells.

    Args:
        path: `.png` or `.svg`.
        values: rows from top to bottom, one per `y_ticks`, columns as `x_ticks`; None is a cell
            that was not measured, grey and hatched.
        title, x, y: words over the figure and beside its axes.
        x_ticks, y_ticks: what columns and rows stand for.
        unit: what the numbers are, beside the colour bar.
        limits: of the colours; None means those of the data.
        centre: the value of the neutral colour where the sign matters; the colours then reach
            equally far to both sides.
        description: kept in the file's metadata.

    Raises:
        UsageError: matplotlib is missing, another suffix, or ticks that do not fit the values.
    """
    if len(values) != len(y_ticks) or {len(row) for row in values} != {len(x_ticks)}:
        raise UsageError(
            f"{len(y_ticks)} x {len(x_ticks)} ticks for {len(values)} rows of "
            f"{sorted({len(row) for row in values})} values"
        )
    with _style():
        drawn = _draw_heat_map(values, title, x, y, x_ticks, y_ticks, unit, limits, centre)
        return _save(drawn, path, description)


def curves(
    path: str | Path,
    series: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    reference: tuple[str, float] | None = None,
    description: str | None = None,
) -> Path:
    """Draw one line with markers per series.

    Args:
        path: `.png` or `.svg`.
        series: name -> points (x, y, low, high); y None breaks the line, low and high None mean
            that there is no interval. It is shown as bars, as a band where points are many.
        title, x, y: words over the figure and beside its axes.
        log_x: x in powers of two.
        reference: name and height of a horizontal line.
        description: kept in the file's metadata.

    Raises:
        UsageError: matplotlib is missing, another suffix, or nothing to draw.
    """
    if not any(series.values()):
        raise UsageError(f"the figure {title!r} has no points")
    with _style():
        return _save(_draw_curves(series, title, x, y, log_x, reference), path, description)


def bars(
    path: str | Path,
    values: Mapping[str, tuple[float | None, float | None, float | None]],
    *,
    title: str,
    x: str,
    description: str | None = None,
) -> Path:
    """Draw one horizontal bar per name, from zero, with its number and its interval.

    Args:
        path: `.png` or `.svg`.
        values: name -> (value, low, high), from top to bottom; None where there is none.
        title, x: words over the figure and under its axis.
        description: kept in the file's metadata.

    Raises:
        UsageError: matplotlib is missing, another suffix, or nothing to draw.
    """
    if not values:
        raise UsageError(f"the figure {title!r} has no bars")
    with _style():
        return _save(_draw_bars(values, title, x), path, description)


@contextmanager
def _style() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError:
        raise UsageError("figures need matplotlib: pip install 'qfilters-mlx[plot]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _save(figure, path: str | Path, description: str | None) -> Path:
    kind = Path(path).suffix
    nameless = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
    if kind not in nameless:
        raise UsageError(f"{path} is neither a .png nor a .svg file")
    buffer = io.BytesIO()
    metadata = {**nameless[kind], "Description": description}
    figure.savefig(buffer, format=kind[1:], metadata=metadata)
    return atomic_write(path, buffer.getvalue())


def _figure(width: float, height: float, title: str):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.subplots()
    axes.set_axisbelow(True)
    figure.suptitle("\n".join(textwrap.wrap(title, int(width * 12))), x=0.01, ha="left")
    return figure, axes


def _draw_heat_map(values, title, x, y, x_ticks, y_ticks, unit, limits, centre):
    import numpy as np

    cells = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=float)
    known = cells[np.isfinite(cells)]
    low, high = limits or ((known.min(), known.max()) if known.size else (0.0, 1.0))
    if centre is not None:
        half = max(abs(low - centre), abs(high - centre)) or 1.0
        low, high = centre - half, centre + half
    rows, columns = cells.shape
    few = cells.size <= FEW_CELLS
    size = 0.5 if few else 0.27
    width = min(max(size * columns + 2.4, 4.5), 14.0)
    height = min(max(0.3 * rows + 1.4, 2.4), 10.0)
    figure, axes = _figure(width, height, title)
    axes.grid(False)
    axes.set_facecolor("#E8E8E8")
    axes.patch.set_hatch("///")
    colours = "cividis" if centre is None else "RdBu"
    shown = np.ma.masked_invalid(cells)
    image = axes.imshow(shown, cmap=colours, vmin=low, vmax=high, aspect="auto")
    figure.colorbar(image, ax=axes, label=unit, pad=0.02)
    for axis, ticks in ((axes.xaxis, x_ticks), (axes.yaxis, y_ticks)):
        shown_ticks = range(0, len(ticks), 1 + len(ticks) // 40)
        axis.set_ticks(shown_ticks, [str(ticks[i]) for i in shown_ticks])
    axes.set(xlabel=x, ylabel=y)
    if few:
        decimals = _decimals(high - low)
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                _write(axes, column, row, value, image, decimals)
    return figure


def _decimals(span: float) -> int:
    return 2 if span <= 4 else 1 if span <= 40 else 0


def _write(axes, column, row, value, image, decimals) -> None:
    red, green, blue, _ = image.cmap(image.norm(value))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    colour = "white" if dark else "black"
    axes.text(
        column, row, f"{value:.{decimals}f}", ha="center", va="center", color=colour, size=7.5
    )


def _draw_curves(series, title, x, y, log_x, reference):
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    figure, axes = _figure(7.0, 4.0, title)
    places = sorted({point[0] for points in series.values() for point in points})
    for index, (name, points) in enumerate(series.items()):
        xs, ys, lows, highs = zip(*points, strict=True)
        ys, lows, highs = ([float("nan") if v is None else v for v in z] for z in (ys, lows, highs))
        colour = COLOURS[index % len(COLOURS)]
        many = len(xs) > FEW_POINTS
        style = {"color": colour, "ls": LINES[index % len(LINES)], "lw": 1.4, "label": name}
        marks = {"marker": MARKERS[index % len(MARKERS)], "ms": 5, "markevery": 1 + len(xs) // 16}
        axes.plot(xs, ys, **style, **marks, zorder=3)
        if many:
            axes.fill_between(xs, lows, highs, color=colour, alpha=0.15, lw=0)
        else:
            axes.vlines(xs, lows, highs, color=colour, lw=1.0, alpha=0.7)
    if reference:
        label, height = reference
        axes.axhline(height, color="#555555", lw=1.0, ls=(0, (1, 1)), label=label)
    if log_x:
        axes.set_xscale("log", base=2)
    if len(places) <= FEW_POINTS:
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set(xlabel=x, ylabel=y)
    if len(series) + bool(reference) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), handlelength=3.5)
    return figure


def _draw_bars(values, title, x):
    import numpy as np

    figure, axes = _figure(6.0, 0.32 * len(values) + 1.2, title)
    axes.grid(False, axis="y")
    names = list(values)
    found = np.array([[np.nan if v is None else v for v in values[n]] for n in names], dtype=float)
    middle, low, high = found.T
    places = np.arange(len(names))
    axes.barh(places, middle, color=COLOURS[0], height=0.65)
    axes.hlines(places, low, high, color="black", lw=1.2, zorder=3)
    axes.axvline(0, color="black", lw=0.8)
    decimals = _decimals(np.nanmax(np.abs(middle), initial=0))
    for place, (value, *ends) in zip(places, found, strict=True):
        if np.isfinite(value):
            end = np.nanmax([value, 0.0, *ends])
            text = f"{value:.{decimals}f}"
            axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel(x)
    axes.margins(x=0.12)
    return figure
