"""Figures show the data they were given, fit on their page, and are the same every time."""

import builtins
import json
import math
import re

import pytest

from qfilters.errors import UsageError
from qfilters.figures import (
    _draw_bars,
    _draw_curves,
    _draw_heat_map,
    _style,
    bars,
    curves,
    heat_map,
)
from qfilters.pictures import Picture

CELLS = [[0.5, None, -1.0], [0.25, 1.0, 0.0]]
MAP = {
    "title": "A map of two rows and three columns with a title that is too long for a single line",
    "x": "layer",
    "y": "head",
    "x_ticks": [0, 1, 2],
    "y_ticks": ["a", "b"],
    "unit": "correlation",
}
SERIES = {
    "one": [(64, 1.0, 0.5, 1.5), (128, None, None, None), (256, 3.0, None, None)],
    "two": [(64, 2.0, 1.5, 2.5), (256, 4.0, 3.0, 5.0)],
}
LINES = {"title": "curves", "x": "budget", "y": "mass"}
BARS = {"good": (0.8, 0.7, 0.9), "bad": (-0.2, None, None), "none": (None, None, None)}


def write_all(folder, kind):
    return [
        heat_map(folder / f"map{kind}", CELLS, centre=0, **MAP),
        curves(folder / f"curves{kind}", SERIES, log_x=True, reference=("all", 5), **LINES),
        bars(folder / f"bars{kind}", BARS, title="bars", x="correlation"),
    ]


@pytest.fixture(scope="module")
def drawn():
    """A map, curves and bars as figures."""
    with _style():
        ticks = (MAP["x_ticks"], MAP["y_ticks"], MAP["unit"])
        yield (
            _draw_heat_map(CELLS, MAP["title"], "x", "y", *ticks, None, 0),
            _draw_curves(SERIES, "curves", "budget", "mass", True, ("all", 5)),
            _draw_bars(BARS, "bars", "correlation"),
        )


@pytest.mark.parametrize("kind", [".png", ".svg"])
def test_twice_the_same_bytes_whatever_the_user_likes(tmp_path, kind):
    import matplotlib

    first = [path.read_bytes() for path in write_all(tmp_path / "a", kind)]
    with matplotlib.rc_context({"font.size": 20, "savefig.dpi": 30, "svg.hashsalt": None}):
        assert first == [path.read_bytes() for path in write_all(tmp_path / "b", kind)]
        assert matplotlib.rcParams["font.size"] == 20
    assert not any(b"<dc:date>" in data or b"matplotlib.org" in data for data in first)


def test_a_png_opens_and_has_its_size(tmp_path):
    from matplotlib.image import imread

    sizes = [imread(path).shape[:2] for path in write_all(tmp_path, ".png")]
    assert sizes[1] == (600, 1050)
    assert sizes[0] == (360, 675)
    assert sizes[2] == (math.floor((0.32 * 3 + 1.2) * 150), 900)


def test_a_heat_map_holds_its_cells(drawn):
    axes, bar = drawn[0].axes
    image = axes.images[0]
    assert image.get_array().tolist() == CELLS
    assert image.get_clim() == (-1, 1)
    written = {t.get_position(): t.get_text() for t in axes.texts}
    assert written == {
        (0, 0): "0.50",
        (2, 0): "-1.00",
        (0, 1): "0.25",
        (1, 1): "1.00",
        (2, 1): "0.00",
    }
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b"]
    assert bar.get_ylabel() == "correlation"
    assert axes.patch.get_hatch()


def test_large_maps_have_no_numbers_and_fewer_ticks():
    with _style():
        cells = [[float(i + j) for j in range(100)] for i in range(8)]
        figure = _draw_heat_map(cells, "", "x", "y", range(100), range(8), "u", None, None)
    axes = figure.axes[0]
    assert not axes.texts and axes.images[0].get_clim() == (0, 106)
    assert len(axes.get_xticks()) <= 40 and list(axes.get_yticks()) == list(range(8))


def test_limits_and_empty_maps():
    with _style():
        for limits, centre, wanted in [
            ((0, 9), None, (0, 9)),
            ((0, 9), 3, (-3, 9)),
            (None, 1, (0, 2)),
        ]:
            figure = _draw_heat_map([[None]], "", "x", "y", [0], [0], "u", limits, centre)
            assert figure.axes[0].images[0].get_clim() == wanted


def test_curves_hold_their_points_and_differ_without_colour(drawn):
    axes = drawn[1].axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["one", "two", "all"]
    assert lines["one"].get_xdata().tolist() == [64, 128, 256]
    assert [y for y in lines["one"].get_ydata() if y == y] == [1, 3]
    assert lines["two"].get_ydata().tolist() == [2, 4]
    assert lines["one"].get_marker() != lines["two"].get_marker()
    assert lines["one"].get_linestyle() != lines["two"].get_linestyle()
    assert list(lines["all"].get_ydata()) == [5, 5]
    bars_of_two = axes.collections[1].get_segments()
    assert [segment[:, 1].tolist() for segment in bars_of_two] == [[1.5, 2.5], [3, 5]]
    assert axes.get_xscale() == "log"
    assert [t.get_text() for t in axes.get_xticklabels()] == ["64", "128", "256"]


def test_a_band_where_points_are_many():
    with _style():
        points = [(i, float(i), i - 1.0, i + 1.0) for i in range(1, 41)]
        axes = _draw_curves({"a": points}, "", "x", "y", False, None).axes[0]
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().y1 == 41
    assert axes.get_legend() is None


def test_bars_hold_their_values(drawn):
    axes = drawn[2].axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[:2] == [0.8, -0.2] and math.isnan(widths[2])
    assert [t.get_text() for t in axes.get_yticklabels()] == ["good", "bad", "none"]
    assert [t.get_text() for t in axes.texts] == ["0.80", "-0.20"]
    assert axes.yaxis_inverted()


def test_nothing_is_cut_off_and_the_title_stands_apart(drawn):
    for figure in drawn:
        figure.draw_without_rendering()
        box, title = figure.get_tightbbox(), figure._suptitle.get_window_extent()
        width, height = figure.get_size_inches()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
        for below in (*figure.axes, *legends):
            assert below.get_tightbbox().y1 <= title.y0
    assert legends == [] and drawn[1].axes[0].get_legend()


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"is neither a \.png nor a \.svg file"):
        bars(tmp_path / "x.pdf", BARS, title="", x="")
    with pytest.raises(UsageError, match=r"2 x 3 ticks for 1 rows of \[3\] values"):
        heat_map(tmp_path / "x.png", CELLS[:1], **MAP)
    with pytest.raises(UsageError, match="has no points"):
        curves(tmp_path / "x.png", {"a": []}, **LINES)
    with pytest.raises(UsageError, match="has no bars"):
        bars(tmp_path / "x.png", {}, title="", x="")
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"matplotlib: pip install 'qfilters-mlx\[plot\]'"):
        bars(tmp_path / "x.png", BARS, title="", x="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [".png", ".svg"])
def test_a_file_tells_whether_it_is_of_the_same_numbers(tmp_path, kind):
    def picture(title="bars", **values):
        return Picture("name", title, bars, {"values": BARS | values, "x": "correlation"})

    path = picture().write(tmp_path / f"bars{kind}")
    assert picture().drawn_in(path)
    assert not picture(title="other").drawn_in(path)
    assert not picture(good=(0.8, 0.7, 0.95)).drawn_in(path)
    assert not picture().drawn_in(tmp_path / f"nowhere{kind}")


def test_the_fingerprint_stands_in_the_metadata_and_is_that_of_the_json(tmp_path):
    data = {"values": CELLS, **MAP, "x_ticks": range(3)}
    title = data.pop("title")
    mine = Picture("map", title, heat_map, data)
    svg = mine.write(tmp_path / "map.svg").read_text()
    [metadata] = re.findall("<metadata>.*?</metadata>", svg, re.DOTALL)
    assert f"<dc:description>{mine.fingerprint}</dc:description>" in metadata
    assert re.fullmatch("[0-9a-f]{16}", mine.fingerprint)
    read = json.loads(json.dumps(data, default=list))
    assert Picture("map", title, heat_map, read).fingerprint == mine.fingerprint


def test_the_order_of_series_counts_for_it_gives_the_colours():
    one, other = (
        Picture("c", "curves", curves, {"series": dict(series), "x": "x", "y": "y"})
        for series in (SERIES.items(), reversed(SERIES.items()))
    )
    assert one.fingerprint != other.fingerprint
