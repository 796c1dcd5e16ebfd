"""The synthetic heads: what drift makes of the arms, and what no drift leaves of them."""

from types import SimpleNamespace

import numpy as np
import pytest

from qfilters.errors import UsageError
from qfilters.study.geometry import ALONG_KEYS, BEST, GeometryConfig, _text, measure_geometry


def test_geometry_without_anything_to_evict_is_refused():
    for sizes in ({"length": [64], "budget": [64]}, {"length": [256, 64], "budget": [16, 100]}):
        with pytest.raises(UsageError, match="nothing would be evicted"):
            GeometryConfig(**sizes).check()


@pytest.fixture(scope="module")
def geometry():
    settings = GeometryConfig(length=[256, 512], budget=64, seeds=2)
    rows = measure_geometry(SimpleNamespace(settings=settings), [])
    return {(r["keys"], r["length"], r["method"]): r for r in rows}


@pytest.mark.parametrize("length", [256, 512])
def test_drift_makes_the_filter_and_its_sign_matter(geometry, length):
    def retained(arm):
        return geometry["drift", length, arm]["retained"]

    assert retained("qfilters") > retained("h2o") > 2 * retained("random") > 0
    assert retained(BEST) > 0.95 * retained("qfilters")
    assert max(retained("keysvd +1"), retained("keysvd -1")) < 0.8 * retained(BEST), "no sign wins"
    assert geometry["drift", length, "qfilters"]["cosine"] > 0.98
    assert geometry["drift", length, "keysvd +1"]["cosine"] > 0.95
    errors = [geometry["drift", length, arm]["output_error"] for arm in ("qfilters", "random")]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("length", [256, 512])
def test_without_geometry_nothing_beats_chance(geometry, length):
    chance = 64 / length
    for arm in ("qfilters", "keysvd +1", "keysvd -1", "h2o", "random"):
        row = geometry["isotropic", length, arm]
        assert row["retained"] == pytest.approx(chance, rel=0.05) and row["cosine"] is None
    assert geometry["isotropic", length, BEST]["retained"] > chance, "the best of two is above it"


def test_the_planted_axis_is_what_the_keys_say():
    text = _text("drift", 2048, 0)
    along = (np.array(text["keys"])[0] * text["axis"][:, None]).sum(axis=-1)
    assert (along > ALONG_KEYS / 2).mean() == pytest.approx(0.1, abs=0.02)
    assert text["weights"].sum(axis=-1) == pytest.approx(1)
