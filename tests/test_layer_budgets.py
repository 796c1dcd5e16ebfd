"""Layers with budgets of their own: pyramidkv's rows, and where they are refused."""

import functools

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import llama as llama_file
from mlx_lm.models.base import create_attention_mask
from recorded import llama, run, small, tokens

from qfilters.errors import ModelError
from qfilters.fork import Arm, prefill
from qfilters.methods import make_method
from qfilters.prompt_cache import make_prompt_cache


@given(
    st.integers(1, 3000),
    st.integers(1, 80),
    st.integers(0, 20),
    st.none() | st.integers(1, 5000),
    st.integers(1, 64),
    st.sampled_from([1, 2, 3, 7, 20, 1.5]),
)
def test_pyramid_budgets_sum_exactly(budget, layers, sinks, length, window, beta):
    method = make_method("pyramidkv", {"window": window, "beta": beta})
    rows = method.layer_budgets(budget, layers, sinks, length)
    assert len(rows) == layers and sum(rows) == budget * layers
    assert rows == sorted(rows, reverse=True)
    if len(set(rows)) > 1:
        assert rows[-1] >= sinks + window and rows[0] <= 2 * budget
        steps = -np.diff(rows)
        assert steps.max() - steps.min() <= 1, "as straight as whole numbers allow"
        if length is not None:
            assert rows[0] <= length - window


@pytest.mark.parametrize(
    ("window", "length", "budget", "first", "last"),
    [  # 30 layers, as kvpress gives them
        (32, 300, 150, 268, 32),
        (32, 700, 175, 175, 175),
        (8, 300, 150, 292, 8),
        (8, 700, 175, 341, 9),
        (4, 300, 90, 176, 4),
        (2, 300, 60, 117, 3),
        (32, None, 150, 150, 150),
        (32, None, 700, 1365, 35),
        (32, 20, 64, 64, 64),
    ],
)
def test_pyramid_budgets_are_those_of_the_peers(window, length, budget, first, last):
    method = make_method("pyramidkv", {"window": window})
    rows = method.layer_budgets(budget, 30, 0, length)
    assert (rows[0], rows[-1]) == (first, last)


@pytest.mark.parametrize(("sinks", "recent"), [(2, None), (2, 15), (0, 0), (0, None)])
def test_narrow_layers_keep_their_newest_rows(sinks, recent):
    """Recent rows meant for the mean budget do not fit into the last layer's."""
    model, ids = llama("GQA"), tokens(90)
    caches = make_prompt_cache(model, small("pyramidkv"), 18, sinks, recent)
    assert [c.budget for c in caches] == [30, 18, 6]
    for seen in run(model, caches, ids, [50, *[1] * 20, 20]):
        for cache in caches:
            kept = np.array(cache.positions)
            assert kept.shape[-1] == cache.budget
            np.testing.assert_array_equal(
                kept[..., -3:] - seen, np.broadcast_to([-3, -2, -1], kept[..., -3:].shape)
            )
            assert (kept[..., :sinks] == np.arange(sinks)).all()
    done = prefill(model, ids[0].tolist(), [small("pyramidkv")])
    for rows in done.kept(Arm(small("pyramidkv"), 18, sinks, recent)):
        assert (np.array(rows)[..., -3:] == [87, 88, 89]).all()


def with_array_masks(monkeypatch):
    returning = functools.partial(create_attention_mask, return_array=True)
    monkeypatch.setattr(llama_file, "create_attention_mask", returning)


def test_layers_that_share_an_array_mask_cannot_have_budgets_of_their_own(monkeypatch):
    with_array_masks(monkeypatch)
    model = llama("GQA")
    for make in (
        lambda: make_prompt_cache(model, "pyramidkv", 64),
        lambda: prefill(model, [1, 2, 3], [make_method("pyramidkv")]),
    ):
        with pytest.raises(
            ModelError, match=r"pyramidkv gives layers different budgets.*array mask"
        ):
            make()
    with pytest.raises(ModelError, match="no layer of this model can serve pyramidkv"):
        make_prompt_cache(tiny.make("gemma2"), "pyramidkv", 64)


@pytest.mark.parametrize("name", ["h2o", "snapkv"])
def test_array_masks_change_nothing(name, monkeypatch):
    ids, kept = tokens(60, 2), []
    for patch in (lambda: None, lambda: with_array_masks(monkeypatch)):
        patch()
        model = llama("GQA")
        caches = make_prompt_cache(model, small(name), 16, 2, 4)
        for _ in run(model, caches, ids, [11, 1, 20, 1, 1, 26]):
            pass
        kept.append([np.array(c.positions) for c in caches])
    np.testing.assert_array_equal(kept[0], kept[1])
