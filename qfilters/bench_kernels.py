"""How fast rows are scored, chosen, copied and replaced: reference, fused kernels, mlx-lm's caches.

Every round runs all contenders once, so that a busy machine disturbs them alike; figures are of
rounds, never of a best of one against a mean of another. Nothing is timed before the kernels have
been found equal to the reference.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, RotatingKVCache

from .cache import EvictingKVCache
from .errors import UsageError
from .kernels import Fused, choose_kernels, kernel_name, reference
from .kernels.checks import run_checks
from .methods import Layer, make_method
from .platform import default_dtype, on_cpu, provenance
from .results import document, open_run

HEADS, SIZE, ROWS, BUDGET = 8, 128, 4096, 512
CHUNKS = (4096, 1024, 256, 64, 16)
BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
STEPS = 32
DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}

Work = Callable[[], object]


def bench_kernels(
    dtype: str | None = None, repeats: int = 20, watch: Callable[[str], None] | None = None
) -> tuple[list[dict], int]:
    """Check the kernels of this machine, then time them.

    Args:
        dtype: of keys and values: a name of `DTYPES`; None means float32 on a Linux CPU, else
            float16.
        repeats: rounds, >= 3.
        watch: told what is timed next.

    Returns:
        Rows, and the number of equality checks that passed (0 where there are no kernels). A row:
        `what`, `path` (reference, metal, cuda, or a class of mlx-lm), `rows`, `budget`, `dtype`,
        `min_ms`, `median_ms`, `max_ms`, and where they make sense `mb` (least bytes to move),
        `gb_s`, `of_copy` (achieved bandwidth over that of a copy), `times_copy` with `_min` and
        `_max` (time over that of a copy of the kept K and V rows, by round), `speedup` over the
        reference.

    Raises:
        UsageError: bad dtype or repeats.
        KernelMismatch: a kernel disagrees with the reference; nothing is timed then.
    """
    if dtype is None:
        dtype = "float32" if default_dtype() == mx.float32 else "float16"
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    if repeats < 3:
        raise UsageError(f"repeats {repeats} is below 3: no spread could be seen")
    kernels = choose_kernels()
    passed = 0 if kernels is None else run_checks(kernels)
    rows = []
    for part in (_parts, _prefill, _decode):
        for made in part(kernels, DTYPES[dtype], repeats, watch or (lambda what: None)):
            rows.append({**made, "dtype": dtype})
    return rows, passed


def bench_cells(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of the table for a person."""
    columns = ["what", "path", "rows", "ms", "min", "max", "GB/s", "of copy", "x copy", "speed-up"]
    formats = {
        "median_ms": "{:.3f}",
        "min_ms": "{:.3f}",
        "max_ms": "{:.3f}",
        "gb_s": "{:.1f}",
        "of_copy": "{:.0%}",
        "times_copy": "{:.2f}",
        "speedup": "{:.2f}",
    }
    cells = [
        [row["what"], row["path"], str(row["rows"])]
        + [f.format(row[name]) if name in row else "-" for name, f in formats.items()]
        for row in rows
    ]
    return columns, cells


def keep_bench(rows: list[dict], passed: int, root: str | Path, command: list[str]) -> Path:
    """Write the rows where `qfilters report` finds them; returns the folder.

    Args:
        rows, passed: as `bench_kernels` returns them.
        root: folder of all results.
        command: the words of the command line, for the record.
    """
    facts = provenance()
    config = {"dtype": rows[0]["dtype"], "device": facts["device"], "backend": facts["backend"]}
    place = f"{facts['backend']} {facts['device']}"
    run = open_run(root, place, "bench_kernels", config, overwrite=True)
    run.write_json(
        "summary.json", document(rows, {**facts, "command": command, "checks_passed": passed})
    )
    return run.path


def interleaved(works: Mapping[str, Work], repeats: int, inner: int = 1) -> dict[str, list[float]]:
    """Seconds of every round of every work; `inner` calls are evaluated together and divided."""
    times = {name: [] for name in works}
    for turn in range(repeats + 2):
        for name, work in works.items():
            mx.synchronize()
            start = time.perf_counter()
            mx.eval([work() for _ in range(inner)])
            mx.synchronize()
            if turn >= 2:  # the first rounds compile and fill caches
                times[name].append((time.perf_counter() - start) / inner)
    return times


def _row(what, path, times, rows, budget, **more):
    low, middle, high = (f(times[path]) * 1e3 for f in (min, statistics.median, max))
    row = {"what": what, "path": path, "rows": rows, "budget": budget}
    row |= {"min_ms": low, "median_ms": middle, "max_ms": high, **more}
    if path != "reference" and "reference" in times and path not in ("KVCache", "RotatingKVCache"):
        row["speedup"] = statistics.median(_ratios(times["reference"], times[path]))
    return row


def _ratios(above, below):
    return sorted(a / b for a, b in zip(above, below, strict=True))


def _paths(kernels: Fused | None) -> dict:
    return {"reference": reference} | ({} if kernels is None else {kernels.name: kernels})


def _random_rows(dtype, rows):
    shape = (1, HEADS, rows, SIZE)
    made = [mx.random.normal(shape).astype(dtype) for _ in "kv"]
    mx.eval(made)
    return made


def _parts(kernels, dtype, repeats, watch) -> Iterator[dict]:
    """Each kernel by itself, and one eviction without the score, at the shape of one long block."""
    keys, values = _random_rows(dtype, ROWS)
    directions = mx.random.normal((HEADS, SIZE))
    ranks = (mx.random.normal((1, HEADS, ROWS)) * 1e8).astype(mx.int32)
    positions = mx.contiguous(mx.broadcast_to(mx.arange(ROWS, dtype=mx.int32), ranks.shape))
    how = ranks, positions, 4, ROWS - BUDGET // 4, BUDGET
    kept = reference.select(*how, BUDGET)
    held = reference.compact(keys, values, ranks, positions, reference.select(*how, BUDGET + 1))
    slot = mx.full((1, HEADS, 1), BUDGET, dtype=mx.int32)
    now = *held[2:], slot, ROWS, 4, ROWS + 1 - BUDGET // 4
    mx.eval(directions, kept, held, slot, positions)
    new, row_bytes = keys[:, :, :1], SIZE * dtype.size
    jobs = {
        "score": (lambda k: k.project(keys, directions), ROWS * (row_bytes + 4)),
        "select": (lambda k: k.select(*how, BUDGET), ROWS * 8 + BUDGET * 4),
        "compact": (
            lambda k: k.compact(keys, values, ranks, positions, kept),
            BUDGET * (4 * row_bytes + 20),
        ),
        "replace": (lambda k: k.replace(new, directions, *now), (BUDGET + 1) * 8 + row_bytes),
        "evict a block": (
            lambda k: k.compact(keys, values, ranks, positions, k.select(*how, BUDGET)),
            ROWS * 8 + BUDGET * (4 * row_bytes + 24),
        ),
    }
    copy_bytes = HEADS * BUDGET * 4 * row_bytes
    inner = 1 if on_cpu() else 20
    for what, (job, least) in jobs.items():
        watch(what)
        works = {name: lambda job=job, k=k: job(k) for name, k in _paths(kernels).items()}
        works["copy"] = lambda: [mx.contiguous(x[:, :, :BUDGET]) for x in (keys, values)]
        times = interleaved(works, repeats, inner)
        copied = copy_bytes / statistics.median(times["copy"])
        for path in _paths(kernels):
            row = _row(what, path, times, ROWS, BUDGET)
            speed = HEADS * least / (row["median_ms"] / 1e3)
            row |= {"mb": HEADS * least / 1e6, "gb_s": speed / 1e9, "of_copy": speed / copied}
            if what == "evict a block":
                ratios = _ratios(times[path], times["copy"])
                row |= {
                    "times_copy": statistics.median(ratios),
                    "times_copy_min": ratios[0],
                    "times_copy_max": ratios[-1],
                }
            yield row


def _caches(kernels, budget) -> dict[str, Callable]:
    """Makers of the caches to compare, by path."""
    layer = Layer(0, HEADS, SIZE, q_filters=mx.random.normal((HEADS, SIZE)))
    mx.eval(layer.q_filters)

    def evicting(chosen):
        recent = budget // 4
        return EvictingKVCache(make_method("qfilters"), layer, budget, 4, recent, chosen)

    made = {"reference": lambda: evicting(None)}
    if kernels is not None:
        made[kernel_name(kernels)] = lambda: evicting(kernels)
    made["KVCache"] = KVCache
    made["RotatingKVCache"] = lambda: RotatingKVCache(max_size=budget, keep=4)
    return made


def _own_state(cache) -> list:
    """What must be evaluated besides what attention reads."""
    return [x for _, x in tree_flatten(cache.state)] if hasattr(cache, "budget") else []


def _prefill(kernels, dtype, repeats, watch) -> Iterator[dict]:
    """A whole prompt through a cache, score included, in chunks of several sizes."""
    keys, values = _random_rows(dtype, ROWS)

    def feed(make, size):
        cache = make()
        for start in range(0, ROWS, size):
            chunk = (x[:, :, start : start + size] for x in (keys, values))
            mx.eval(cache.update_and_fetch(*chunk), _own_state(cache))
        return []

    for size in CHUNKS:
        what = f"prefill in chunks of {size}"
        watch(what)
        makers = _caches(kernels, BUDGET)
        works = {n: lambda make=make, size=size: feed(make, size) for n, make in makers.items()}
        times = interleaved(works, max(3, repeats // 4))
        for path in works:
            yield _row(what, path, times, ROWS, BUDGET)


def _decode(kernels, dtype, repeats, watch) -> Iterator[dict]:
    """One token into a full cache; the mean of `STEPS`, each evaluated before the next."""
    for budget in BUDGETS:
        watch(f"decode at budget {budget}")
        caches = {n: make() for n, make in _caches(kernels, budget).items()}
        filled = _random_rows(dtype, budget + 1)
        for cache in caches.values():
            mx.eval(cache.update_and_fetch(*filled), _own_state(cache))
        token = [mx.contiguous(x[:, :, :1]) for x in filled]
        mx.eval(token)

        def steps(cache, token=token):
            for _ in range(STEPS):
                mx.eval(cache.update_and_fetch(*token), _own_state(cache))
            return []

        works = {n: lambda cache=cache: steps(cache) for n, cache in caches.items()}
        times = interleaved(works, max(3, repeats // 4))
        times = {n: [t / STEPS for t in seconds] for n, seconds in times.items()}
        for path in works:
            yield _row("decode", path, times, budget, budget)
