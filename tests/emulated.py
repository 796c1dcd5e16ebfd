"""The fused kernels on the emulator, and what tests of them share."""

import mlx.core as mx
import numpy as np
import pytest
from mslemu import Emulator, why_missing

from qfilters.kernels import checks, texts
from qfilters.kernels.fused import Fused

needs_emulator = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))


def fused(emulator: Emulator | None = None, cuda: bool = False, **options) -> Fused:
    """Kernels whose host side is the real one. Checked unless `check=False`."""
    emulator = emulator or Emulator(**options)
    if cuda:
        return Fused("cuda, emulated", emulator.cuda_kernel, texts.cuda)
    return Fused("metal, emulated", emulator.metal_kernel, texts.metal)


def bits(x: mx.array) -> np.ndarray:
    """An array as comparable numbers: NaN equals itself, -0 differs from +0."""
    return np.array(x.view(mx.uint16 if x.dtype.size == 2 else mx.uint32))


def check_traffic() -> None:
    """Every byte is moved once, four elements of a row at a time, except what is shared.

    Raises AssertionError.
    """
    heads, rows, size, budget = 8, 256, 128, 64
    emulator = Emulator()
    kernels = fused(emulator)
    rng = np.random.default_rng(9)
    keys, values = (checks.rows(rng, (1, heads, rows, size), mx.float16) for _ in "kv")
    directions = mx.ones((heads, size))
    ranks = checks.ranks_of("normal", rng, (1, heads, rows))
    positions = mx.contiguous(mx.broadcast_to(mx.arange(rows, dtype=mx.int32), ranks.shape))
    kernels.project(keys, directions)
    kept = kernels.select(ranks, positions, 4, rows - 16, budget, budget)
    held = kernels.compact(keys, values, ranks, positions, kept)
    slot = mx.zeros((1, heads, 1), dtype=mx.int32)
    now = *held[2:], slot, rows, 4, rows + 1 - 16
    new_ranks, _ = kernels.replace(keys[:, :, :1], directions, *now)
    kernels.next_victim(new_ranks, *now)
    # Bytes per head: every input that matters read once, every output written once.
    least = {
        "score": rows * size * 2 + size * 4 + rows * 4,
        "select": rows * 8 + budget * 4,
        "compact": budget * (4 + 2 * (2 * size * 2 + 8)),
        "replace": size * 2 + size * 4 + budget * 8 + 4 + 8,
        "next_victim": 4 + budget * 8 + 4 + 4,
    }
    quarters = heads * size // 4
    expected = {
        ("score", "keys", "loads"): rows * quarters,
        ("compact", "keys", "loads"): budget * quarters,
        ("compact", "keys_out", "stores"): budget * quarters,
        ("compact", "values", "loads"): budget * quarters,
        ("compact", "values_out", "stores"): budget * quarters,
        ("compact", "ranks", "loads"): budget * heads,
        ("replace", "keys", "loads"): quarters,
    }
    for launch in emulator.launches:
        name = launch.kernel.removeprefix("qfilters_")
        assert launch.unique_bytes <= 1.05 * heads * least.pop(name), f"bytes of {name}"
        assert launch.threadgroup_bytes <= 2048, name
        for (kernel, array, kind), number in expected.items():
            if kernel == name:
                assert launch.stats[array][kind] == number, f"{kind} of {array} by {name}"
    assert not least
