import copy

import mlx.core as mx
import numpy as np
import pytest

from qfilters.kernels import project, put_row, take_rows
from qfilters.rows import RowStore

B, H = 2, 3


def block(n, *tail, dtype=mx.float32):
    return mx.random.normal((B, H, n, *tail)).astype(dtype)


def filled(n=10, **options):
    store = RowStore()
    return store, store.append([block(n, 4), block(n)], **options)


@pytest.mark.parametrize("step", [1, 4, 256])
def test_append_returns_all_rows_in_order(monkeypatch, step):
    monkeypatch.setattr(RowStore, "step", step)
    store, whole = RowStore(), [block(23, 4, dtype=mx.bfloat16), block(23)]
    done = 0
    for n in (1, 5, 1, 1, 9, 6):
        rows = store.append([x[:, :, done : done + n] for x in whole])
        done += n
        assert store.count == done
        for x, expected in zip(rows, whole, strict=True):
            assert x.dtype == expected.dtype and mx.array_equal(x, expected[:, :, :done])
        [slots] = {x.shape[2] for x in store.buffers}
        assert done <= slots < done + step, "grows by steps, not more"


def test_append_never_grows_beyond_most():
    store, _ = filled(10, most=12)
    assert store.buffers[0].shape[2] == 12
    rows = store.append([block(2, 4), block(2)], most=12)
    assert rows[0].shape[2] == store.buffers[0].shape[2] == 12


def test_put_writes_one_row_per_head_and_keeps_the_others():
    store, rows = filled(6, most=6)
    before = [np.array(x) for x in rows]
    slot = mx.array([[[0], [5], [2]], [[3], [3], [1]]], dtype=mx.int32)
    new = [block(1, 4), block(1)]
    after = store.put(slot, new)
    for x, old, row in zip(after, before, new, strict=True):
        for b, h in np.ndindex(B, H):
            old[b, h, slot[b, h, 0].item()] = np.array(row)[b, h, 0]
        np.testing.assert_array_equal(np.array(x), old)


def test_put_keeps_the_dtypes_of_the_store():
    store = RowStore()
    store.append([block(4, 4, dtype=mx.float16), block(4, dtype=mx.bfloat16)], most=4)
    after = store.put(mx.zeros((B, H, 1), dtype=mx.int32), [block(1, 4), block(1)])
    assert [x.dtype for x in after] == [mx.float16, mx.bfloat16]


def test_keep_copies_the_rows_asked_for_in_that_order():
    store, rows = filled(6)
    index = mx.array(np.random.default_rng(0).integers(0, 6, (B, H, 4)), dtype=mx.int32)
    before = [np.array(x) for x in rows]
    taken = store.take(index)
    store.keep([take_rows(x, index) for x in rows])
    assert store.count == 4 and store.in_order
    for x, y, old in zip(store.rows(), taken, before, strict=True):
        at = np.array(index).reshape(B, H, 4, *[1] * (old.ndim - 3))
        np.testing.assert_array_equal(np.array(x), np.take_along_axis(old, at, axis=2))
        assert mx.array_equal(x, y)
    store.put(index[:, :, :1], [block(1, 4), block(1)])
    assert not store.in_order


def test_rows_of_views_are_taken_and_put_rightly():
    whole = mx.random.normal((B, 9, H, 4)).transpose(0, 2, 1, 3)
    view, at = whole[:, :, 2:7], mx.full((B, H, 1), 3, dtype=mx.int32)
    assert mx.array_equal(take_rows(view, at), view[:, :, 3:4])
    assert mx.array_equal(put_row(view, at, view[:, :, :1])[:, :, 3], view[:, :, 0])


@pytest.mark.parametrize("make", [copy.deepcopy, lambda s: RowStore(s.buffers, s.count)])
def test_a_copy_and_its_origin_do_not_write_into_each_other(make):
    store, _ = filled(5)
    other = make(store)
    mine, theirs = ([block(1, 4), block(1)] for _ in range(2))
    store.append(mine)
    other.append(theirs)
    assert mx.array_equal(store.rows()[0][:, :, 5:], mine[0])
    assert mx.array_equal(other.rows()[0][:, :, 5:], theirs[0])
    slot = mx.zeros((B, H, 1), dtype=mx.int32)
    store.put(slot, theirs)
    assert not mx.array_equal(other.rows()[0][:, :, :1], theirs[0])


def test_nbytes_are_those_of_the_buffers():
    store, _ = filled(10, most=12)
    assert RowStore().nbytes == 0
    assert store.nbytes == B * H * 12 * (4 + 1) * 4


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("size", [1, 3, 16, 80, 128])
def test_a_projection_does_not_depend_on_the_rows_beside_it(dtype, size):
    keys = mx.random.normal((2, 37, 3, size)).astype(dtype)
    directions = mx.random.normal((3, size))
    whole = project(keys.transpose(0, 2, 1, 3), directions)
    assert whole.dtype == mx.float32
    exact = np.einsum(
        "bthd,hd->bht", np.array(keys.astype(mx.float32), np.float64), np.array(directions)
    )
    np.testing.assert_allclose(np.array(whole), exact, atol=1e-4)
    for start, stop in ((0, 1), (5, 6), (3, 20), (36, 37)):
        piece = keys[:, start:stop].transpose(0, 2, 1, 3)
        assert mx.array_equal(project(piece, directions), whole[:, :, start:stop])
        compact = mx.contiguous(piece)
        assert mx.array_equal(project(compact, directions), whole[:, :, start:stop])
