"""Do fused kernels agree with the reference? The checks that decide it, for any back end.

Whatever is chosen or copied must be the same bits. Scores may differ by the order of fp32
additions, so they are held to an error bound around the exact sum.
"""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np

from ..errors import QFiltersError
from ..select import RANK_NAN, rank
from . import reference
from .fused import Fused

DTYPES = (mx.float16, mx.bfloat16, mx.float32)
NAN, INF = float("nan"), float("inf")
SPECIAL = (NAN, -NAN, -INF, INF, 0.0, -0.0, 1.0, 3e38, -3e38, 1e-45)
SIZES = ((64, 96), (80, 80), (96, 128), (128, 128), (192, 128), (256, 256), (160, 128), (67, 66))


class KernelMismatch(QFiltersError):
    """A kernel and the reference disagree."""


def checks() -> Iterator[tuple[str, Callable[[Fused], None]]]:
    """Name and function of every check; a function raises KernelMismatch."""
    for dtype in DTYPES:
        for check in (check_scores, check_copies, check_special_scores):
            yield f"{check.__name__[6:]} {_name(dtype)}", lambda k, c=check, t=dtype: c(k, t)
    for kind in KINDS:
        yield f"selection {kind}", lambda k, kind=kind: check_selection(k, kind)
        yield f"victims {kind}", lambda k, kind=kind: check_victims(k, kind)
    for recent in (0, 1, 8):
        yield f"decode recent={recent}", lambda k, recent=recent: check_decode(k, recent)


def run_checks(kernels: Fused) -> int:
    """Run all checks and return their number.

    Raises:
        KernelMismatch: the first that fails.
    """
    number = 0
    for number, (name, check) in enumerate(checks(), start=1):  # noqa: B007
        try:
            check(kernels)
        except KernelMismatch as error:
            raise KernelMismatch(f"{kernels.name} kernels, check '{name}': {error}") from None
    return number


def _name(dtype) -> str:
    return str(dtype).rsplit(".", 1)[-1]


def same(what: str, got: mx.array, expected: mx.array) -> None:
    """Refuse anything but the same shape, dtype and bits."""
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        raise KernelMismatch(
            f"{what}: {got.shape} {got.dtype}, not {expected.shape} {expected.dtype}"
        )
    plain = mx.uint16 if got.dtype.size == 2 else mx.uint32
    wrong = np.argwhere(np.array(mx.contiguous(got).view(plain) != expected.view(plain)))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise KernelMismatch(
            f"{what}: {len(wrong)} of {got.size} values differ, the first at {list(at)}: "
            f"{got[at].item()}, not {expected[at].item()}"
        )


def normal(rng, shape) -> np.ndarray:
    """Numbers that fill all bits."""
    return rng.normal(size=shape)


def whole(rng, shape) -> np.ndarray:
    """Small whole numbers, whose sums are exact in any order."""
    return rng.integers(-3, 4, shape)


def with_nan(rng, shape) -> np.ndarray:
    """Numbers, some NaN and some -0."""
    made = rng.normal(size=shape)
    made.reshape(-1)[::97], made.reshape(-1)[::89] = NAN, -0.0
    return made


def rows(rng, shape, dtype, layout: str = "plain", draw: Callable = normal) -> mx.array:
    """Random rows `[B, H_kv, S, D]`, contiguous or as one of `LAYOUTS` places them."""
    batch, heads, count, size = shape

    def values(*stored):
        return mx.array(draw(rng, stored).astype(np.float32)).astype(dtype)

    # Views are made of finished arrays: arithmetic on a view would make it contiguous.
    if layout == "plain":
        return values(*shape)
    if layout == "shifted":
        return values(batch, heads, count, size + 4)[..., 2 : 2 + size]
    if layout == "transposed":
        return values(batch, count + 7, heads, size).swapaxes(1, 2)[:, :, 3 : 3 + count]
    # Gaps between batch rows, heads, rows or elements, of 2 elements: no multiple of four.
    steps, step = [0, 0, 0, 1], 2 if layout == "elements apart" else 1
    for axis, name in ((3, "elements"), (2, "rows"), (1, "heads"), (0, "batch rows")):
        steps[axis] = step + (2 if layout == f"{name} apart" and axis < 3 else 0)
        step = steps[axis] * shape[axis]
    return mx.as_strided(values(step), shape, steps)


# Views: as attention passes keys, and with strides that vector loads must not be used on.
LAYOUTS = (
    *("transposed", "shifted", "batch rows apart", "heads apart"),
    *("rows apart", "elements apart"),
)


# How scores are distributed: what a selection has to cope with.
KINDS: dict[str, Callable] = {
    "normal": normal,
    "few": lambda rng, shape: rng.integers(-2, 3, shape) * 0.5,
    "equal": lambda rng, shape: np.full(shape, -3.25),
    "zeros": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
    "tiny": lambda rng, shape: rng.normal(size=shape) * 1e-42,
    "special": lambda rng, shape: rng.choice(SPECIAL, shape),
}


def ranks_of(kind: str, rng, shape) -> mx.array:
    """int32 ranks of random scores."""
    return rank(mx.array(KINDS[kind](rng, shape).astype(np.float32)))


def check_scores(kernels: Fused, dtype) -> None:
    """Scores stay within the rounding error of a sum; a row's bits do not depend on its place."""
    rng = np.random.default_rng(1)
    for i, (size, _) in enumerate(SIZES):
        layout = LAYOUTS[i % len(LAYOUTS)]
        for batch, heads, count in ((1, 3, 9), (2, 2, 34)):
            keys = rows(rng, (batch, heads, count, size), dtype, layout if batch > 1 else "plain")
            own = (batch, heads, size) if batch > 1 else (heads, size)
            directions = mx.array(rng.normal(size=own).astype(np.float32))
            scores = kernels.project(keys, directions)
            exact = np.array(keys.astype(mx.float32), np.float64)
            exact = exact * np.array(directions, np.float64)[..., None, :]
            bound = (size + 32) * 2.0**-24 * np.abs(exact).sum(-1)
            error = np.abs(np.array(scores, np.float64) - exact.sum(-1))
            if not (error <= bound).all():
                raise KernelMismatch(f"a score of {size} elements is off by {error.max():.3g}")
            same("contiguous", kernels.project(mx.contiguous(keys), directions), scores)
            same("a chunk", kernels.project(keys[:, :, 2:7], directions), scores[:, :, 2:7])
            alone = kernels.project(keys[:, :, 5:6], directions)
            same("a row alone", alone, scores[:, :, 5:6])
            now = _held(rng, (batch, heads), 40)
            new, following = kernels.replace(keys[:, :, 5:6], directions, *now)
            same("the rank of a decoded row", new, rank(alone))
            same("the victim after it", following, reference.next_victim(new, *now))


def _held(rng, heads, count, kind="few", sinks=0, recent=0):
    """Rows in slots of any order, a free slot, and the time: what `next_victim` is given."""
    ranks = ranks_of(kind, rng, (*heads, count))
    places = rng.permuted(np.tile(np.arange(2 * count), (*heads, 1)), axis=-1)[..., :count]
    slot = mx.array(rng.integers(0, count, (*heads, 1)).astype(np.int32))
    limit = 2 * count + 1 - recent
    return ranks, mx.array(places.astype(np.int32)), slot, 2 * count, sinks, limit


def check_special_scores(kernels: Fused, dtype) -> None:
    """Infinities and NaN in keys come out as the reference has them."""
    keys = mx.ones((1, 1, 6, 64), dtype=dtype)
    for row, value in enumerate((-INF, NAN, INF, -0.0, 0.0), start=1):
        keys[0, 0, row, row * 11] = value
    keys[0, 0, 5] = -keys[0, 0, 5] * 0.0
    directions = mx.ones((1, 64))
    expected = rank(reference.project(keys, directions))
    same("ranks", rank(kernels.project(keys, directions)), expected)
    now = _held(np.random.default_rng(6), (1, 1), 9)
    for row in range(6):
        new, _ = kernels.replace(keys[:, :, row : row + 1], directions, *now)
        same("the rank of a decoded row", new, expected[..., row : row + 1])


def check_copies(kernels: Fused, dtype) -> None:
    """Rows are copied bit for bit, whatever their sizes, strides and contents."""
    rng = np.random.default_rng(2)
    layouts = ["plain", *LAYOUTS]
    for i, (size, value_size) in enumerate(SIZES):
        shape, count = (2, 2), 70
        keys = rows(rng, (*shape, count, size), dtype, layouts[i % 7], with_nan)
        values = rows(rng, (*shape, count, value_size), dtype, layouts[-1 - i % 7], with_nan)
        ranks = ranks_of("few", rng, (*shape, count))
        positions = mx.array(np.cumsum(rng.integers(1, 3, (*shape, count)), -1).astype(np.int32))
        for kept in (1, 38, 70):
            chosen = np.sort(
                rng.permuted(np.tile(np.arange(count), (*shape, 1)), axis=-1)[..., :kept]
            )
            arrays = keys, values, ranks, positions, mx.array(chosen.astype(np.int32))
            names = ("keys", "values", "ranks", "positions")
            for name, *pair in zip(
                names, kernels.compact(*arrays), reference.compact(*arrays), strict=True
            ):
                same(f"{name} of {size} and {value_size} elements", *pair)


def check_selection(kernels: Fused, kind: str) -> None:
    """The kept indices of one block are those of the reference."""
    rng = np.random.default_rng(3)
    for count in (2, 31, 33, 256, 257, 1100, 8200):
        shape = (1, 1, count) if count > 2000 else (2, 2, count)
        if count > 2000 and kind != "few":
            continue
        ranks = ranks_of(kind, rng, shape)
        # What is left after evictions: other positions in every head.
        places = np.cumsum(rng.integers(1, 3, shape), axis=-1)
        positions = mx.array(places.astype(np.int32))
        end, third = int(places.max()) + 1, count // 3
        for budget, sinks, recent in {
            (1, 0, 0),
            (count - 1, 0, 0),
            (third + 1, min(4, third), third // 2),
            (third + 1, 0, end),  # everything is protected
            (count // 2, count // 4, 0),
        }:
            if budget < 1:
                continue
            how = ranks, positions, 2 * sinks, end - 2 * recent, budget
            for slots in (budget, budget + 1):
                what = f"{budget} of {count} rows, {sinks} sinks, {recent} recent"
                same(what, kernels.select(*how, slots), reference.select(*how, slots))


def check_victims(kernels: Fused, kind: str) -> None:
    """The next victim is that of the reference, wherever the new row goes and however it ranks."""
    rng = np.random.default_rng(4)
    for count in (3, 33, 300):
        for new in (ranks_of(kind, rng, (2, 2, 1)), mx.full((2, 2, 1), RANK_NAN, mx.int32)):
            for sinks, recent in ((0, 0), (0, 1), (count // 2, count // 2), (3 * count, 0)):
                now = _held(rng, (2, 2), count, kind, sinks, recent)
                what = f"victim of {count}, {sinks} sinks, {recent} recent"
                same(what, kernels.next_victim(new, *now), reference.next_victim(new, *now))


def check_decode(kernels: Fused, recent: int, steps: int = 60) -> None:
    """A block and then many single tokens with many ties keep what one block over all would."""
    budget, sinks, size, heads = 24, 3, 64, 2
    count = budget + 9 + steps
    rng = np.random.default_rng(5)
    # With exact sums, kernel and reference scores are equal.
    stream = rows(rng, (1, heads, count, size), mx.float16, draw=whole)
    directions = mx.zeros((heads, size))
    directions[:, :3] = 1.0
    ranks = rank(reference.project(stream, directions))
    positions = mx.broadcast_to(mx.arange(count, dtype=mx.int32), ranks.shape)

    seen = count - steps
    block = [x[:, :, :seen] for x in (stream, stream, ranks, positions)]
    kept = kernels.select(*block[2:], sinks, seen - recent, budget, budget + 1)
    held = kernels.compact(*block, kept)
    slot = mx.full((1, heads, 1), budget, dtype=mx.int32)
    for offset in range(seen, count):
        new = stream[:, :, offset : offset + 1]
        now = held[2], held[3], slot, offset, sinks, offset + 1 - recent
        new_rank, following = kernels.replace(new, directions, *now)
        same("next victim", kernels.next_victim(new_rank, *now), following)
        written = (new, new, new_rank, mx.full(new_rank.shape, offset, dtype=mx.int32))
        held = [reference.put_row(x, slot, row) for x, row in zip(held, written, strict=True)]
        slot = following
        so_far = ranks[..., : offset + 1], positions[..., : offset + 1]
        stay = reference.select(*so_far, sinks, offset + 1 - recent, budget, budget)
        live = np.arange(budget + 1) != np.array(slot)
        found = np.sort(np.array(held[3])[live].reshape(1, heads, budget))
        same(f"positions after token {offset}", mx.array(found), stay)
        for h in range(heads):
            at = held[3][0, h]
            same("rows", held[0][0, h], stream[0, h][at])
