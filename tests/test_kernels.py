"""The fused kernels equal the reference: the MSL that MLX generates, executed under emulation."""

import mlx.core as mx
import numpy as np
import pytest
from emulated import bits, check_traffic, fused, needs_emulator
from mslemu import lint
from obvious import stay

from qfilters.kernels import checks, reference, texts
from qfilters.select import rank

pytestmark = needs_emulator

ALL = dict(checks.checks())


@pytest.fixture(scope="module")
def kernels():
    """Checked, lanes in a random order, memory that was not written holds junk."""
    return fused(order="random")


@pytest.mark.parametrize("name", ALL)
def test_kernels_agree_with_the_reference(kernels, name):
    ALL[name](kernels)


@pytest.fixture(scope="module")
def cuda_kernels():
    return fused(cuda=True, order="random")


# One dtype of 16 bits is enough: the arithmetic is in common.metal.
FOR_CUDA = [n for n in ALL if n.endswith((" float16", "normal", "few", "special", "recent=8"))]


@pytest.mark.parametrize("name", FOR_CUDA)
def test_the_text_for_cuda_agrees_too(cuda_kernels, name):
    ALL[name](cuda_kernels)


@pytest.mark.parametrize("name", texts.KERNELS)
def test_the_texts_are_msl(name):
    assert lint(texts.read(f"{name}.metal")) == lint(texts.read("common.metal")) == []


# --- the whole of one block and one token, in several ways ---


def everything(kernels, rows=600, budget=333, size=80, dtype=mx.bfloat16):
    """The results of all five kernels on one random case, as bits."""
    rng = np.random.default_rng(7)
    keys = checks.rows(rng, (2, 2, rows, size), dtype, "transposed")
    values = checks.rows(rng, (2, 2, rows, 64), dtype)
    directions = mx.array(rng.normal(size=(2, size)).astype(np.float32))
    ranks = checks.ranks_of("few", rng, (2, 2, rows))
    positions = mx.broadcast_to(mx.arange(rows, dtype=mx.int32), ranks.shape)
    made = [kernels.project(keys, directions)]
    made.append(kernels.select(ranks, positions, 4, rows - 32, budget, budget + 1))
    made += kernels.compact(keys, values, ranks, positions, made[-1])
    slot = mx.full((2, 2, 1), budget, dtype=mx.int32)
    now = *made[-2:], slot, rows, 4, rows + 1 - 32
    made += kernels.replace(keys[:, :, :1], directions, *now)
    made.append(kernels.next_victim(made[-2], *now))
    return [bits(x) for x in made]


@pytest.fixture(scope="module")
def forward():
    return everything(fused())


@pytest.mark.parametrize(
    "options",
    [
        {"order": "reverse", "reverse_groups": True},
        {"order": "random", "seed": 2},
        {"order": "random", "seed": 3, "reverse_groups": True},
        {"rounded_grid": True},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_no_result_depends_on_the_order_of_lanes_or_on_old_memory(forward, options):
    for a, b in zip(forward, everything(fused(**options)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_spare_threads_of_a_rounded_grid_do_nothing(rows):
    rng = np.random.default_rng(rows)
    keys = checks.rows(rng, (1, 3, rows, 80), mx.float16)
    directions = mx.ones((3, 80))
    index = mx.broadcast_to(mx.arange(rows, dtype=mx.int32), (1, 3, rows))
    plain, rounded = fused(), fused(rounded_grid=True)
    checks.same("scores", rounded.project(keys, directions), plain.project(keys, directions))
    for x in rounded.compact(keys, keys, index, index, index)[:2]:
        checks.same("rows", x, keys)


@pytest.mark.parametrize("seed", range(12))
def test_shapes_nobody_thought_of(kernels, seed):
    rng = np.random.default_rng(seed)
    batch, heads, count = (int(rng.integers(1, top)) for top in (4, 6, 400))
    count, dtype = count + 8, checks.DTYPES[seed % 3]
    size, value_size = (int(rng.integers(1, 300)) for _ in "kv")
    layouts = ["plain", *checks.LAYOUTS]
    shape, layout = (batch, heads, count, size), rng.choice(layouts)
    keys = checks.rows(rng, shape, dtype, layout, checks.whole)
    values = checks.rows(rng, (*shape[:3], value_size), dtype, rng.choice(layouts))
    directions = mx.array(checks.whole(rng, (heads, size)).astype(np.float32))
    scores = kernels.project(keys, directions)
    expected = reference.project(keys, directions)
    np.testing.assert_array_equal(np.array(scores), np.array(expected))

    ranks = rank(expected)
    positions = mx.broadcast_to(mx.arange(count, dtype=mx.int32), ranks.shape)
    budget = int(rng.integers(1, count))
    sinks, recent = (int(rng.integers(0, count)) for _ in "sr")
    how = ranks, positions, sinks, count - recent, budget, budget + 1
    kept = reference.select(*how)
    checks.same("kept", kernels.select(*how), kept)
    arrays = keys, values, ranks, positions, kept
    held = reference.compact(*arrays)
    for got, row in zip(kernels.compact(*arrays), held, strict=True):
        checks.same("rows", got, row)
    slot = mx.full((batch, heads, 1), budget, dtype=mx.int32)
    now = *held[2:], slot, count, sinks, count + 1 - recent
    token = keys[:, :, -1:]
    if token.size >= 8:
        for got, row in zip(
            kernels.replace(token, directions, *now),
            reference.replace(token, directions, *now),
            strict=True,
        ):
            checks.same("decode", got, row)


def test_many_rows_and_a_large_budget():
    rng = np.random.default_rng(8)
    rows, budget = 70_001, 66_000
    ranks = checks.ranks_of("few", rng, (1, 1, rows))  # more ties than 16 bits can count
    positions = mx.arange(rows, dtype=mx.int32)[None, None]
    how = ranks, positions, 4, rows - 1000, budget, budget + 1
    checks.same("kept", fused(check=False).select(*how), reference.select(*how))


def test_no_kernel_moves_more_bytes_than_it_must_and_all_load_wide():
    check_traffic()


# --- the definitions themselves, against sorting everything ---


@pytest.mark.parametrize("kind", checks.KINDS)
@pytest.mark.parametrize("recent", [0, 1, 8])
def test_the_reference_keeps_what_a_full_sort_keeps(kind, recent):
    rng = np.random.default_rng(10)
    scores = checks.KINDS[kind](rng, (2, 3, 41)).astype(np.float32)
    ranks = rank(mx.array(scores))
    positions = mx.broadcast_to(mx.arange(41, dtype=mx.int32), ranks.shape)
    kept = np.array(reference.select(ranks, positions, 2, 41 - recent, 20, 22))
    np.testing.assert_array_equal(kept[..., :20], stay(scores, 20, 2, recent))
    assert (kept[..., 20:] == kept[..., 19:20]).all()

    # 40 rows shuffled in 41 slots, the free one among them; the 41st row is new.
    order = rng.permuted(np.tile(np.arange(41), (2, 3, 1)), axis=-1)
    slot = np.argwhere(order == 40)[:, 2].reshape(2, 3, 1).astype(np.int32)
    junk = np.where(order == 40, 7, order)
    held = np.take_along_axis(np.array(ranks), junk, axis=-1)
    now = mx.array(held), mx.array(junk.astype(np.int32)), mx.array(slot), 40, 2, 41 - recent
    victim = reference.next_victim(ranks[..., 40:], *now)
    gone = np.take_along_axis(order, np.array(victim), axis=-1)
    survivors = stay(scores, 40, 2, recent)
    for b, h in np.ndindex(2, 3):
        assert sorted([*survivors[b, h], gone[b, h, 0]]) == list(range(41))
