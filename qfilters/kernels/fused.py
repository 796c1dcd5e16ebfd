"""The fused kernels: what they are launched with. Definitions: reference.py; texts: msl/.

Given ranks they choose the same rows as the reference, bit for bit. Scores differ from those of
the reference by the order of fp32 additions, but a row's score has the same bits alone, in any
chunk and in `replace`.
"""

from collections.abc import Callable

import mlx.core as mx

from ..errors import UsageError
from . import reference, texts

_DTYPES = (mx.float16, mx.bfloat16, mx.float32)
_CONSTANT = 8  # arrays below this size are handed over in another address space
_ROWS = 4  # of one simdgroup in score.metal
_THREADS, _MORE_THREADS, _MANY_ROWS = 256, 512, 8192


class Fused:
    """Kernels built by `mx.fast.metal_kernel`, `mx.fast.cuda_kernel` or the tests' emulator.

    Args:
        name: the back end, as results call it.
        build: makes a kernel; called when it is first used.
        text: header and source of a kernel: `texts.metal` or `texts.cuda`.
        strict: raise UsageError for arrays the kernels do not take, instead of leaving them to
            the reference.
    """

    def __init__(
        self, name: str, build: Callable, text: Callable[[str], dict], strict: bool = False
    ):
        self.name, self._build, self._text, self._strict = name, build, text, strict
        self._kernels = {}

    def __deepcopy__(self, memo):
        return self

    def project(self, keys: mx.array, directions: mx.array) -> mx.array:
        """As `reference.project`."""
        if not self._takes(keys):
            return reference.project(keys, directions)
        batch, heads, rows, _ = keys.shape
        return self._run(
            "score",
            [keys, _for_each_batch_row(directions, keys)],
            [((batch, heads, rows), mx.float32)],
            template=[("T", keys.dtype)],
            grid=(32, -(-rows // _ROWS), batch * heads),
            threadgroup=(32, 8, 1),
        )[0]

    def select(self, ranks, positions, sinks: int, limit: int, budget: int, slots: int) -> mx.array:
        """As `reference.select`."""
        batch, heads, rows = ranks.shape
        threads = _THREADS if rows < _MANY_ROWS else _MORE_THREADS
        return self._run(
            "select",
            [ranks, positions, mx.array([sinks, limit, budget, slots], dtype=mx.int32)],
            [((batch, heads, slots), mx.int32)],
            grid=(batch * heads * threads, 1, 1),
            threadgroup=(threads, 1, 1),
        )[0]

    def compact(self, keys, values, ranks, positions, kept) -> list[mx.array]:
        """As `reference.compact`."""
        if not self._takes(keys, values):
            return reference.compact(keys, values, ranks, positions, kept)
        shape = kept.shape
        quarters = -(-max(keys.shape[3], values.shape[3]) // 4)
        return self._run(
            "compact",
            [keys, values, ranks, positions, kept],
            [
                ((*shape, keys.shape[3]), keys.dtype),
                ((*shape, values.shape[3]), values.dtype),
                (shape, mx.int32),
                (shape, mx.int32),
            ],
            template=[("T", keys.dtype), ("U", values.dtype)],
            grid=(quarters, shape[2], shape[0] * shape[1]),
            threadgroup=(min(quarters, 32), 8, 1),
        )

    def replace(
        self, keys, directions, ranks, positions, slot, offset: int, sinks: int, limit: int
    ) -> tuple[mx.array, mx.array]:
        """As `reference.replace`."""
        if not self._takes(keys):
            return reference.replace(keys, directions, ranks, positions, slot, offset, sinks, limit)
        heads = (*ranks.shape[:2], 1)
        new_ranks, victim = self._run(
            "replace",
            [
                keys,
                _for_each_batch_row(directions, keys),
                *(ranks, positions, slot, mx.array([offset, sinks, limit], dtype=mx.int32)),
            ],
            [(heads, mx.int32), (heads, mx.int32)],
            template=[("T", keys.dtype)],
            grid=(heads[0] * heads[1] * _THREADS, 1, 1),
            threadgroup=(_THREADS, 1, 1),
        )
        return new_ranks, victim

    def next_victim(
        self, new_ranks, ranks, positions, slot, offset: int, sinks: int, limit: int
    ) -> mx.array:
        """As `reference.next_victim`."""
        heads = (*ranks.shape[:2], 1)
        now = mx.array([offset, sinks, limit], dtype=mx.int32)
        return self._run(
            "next_victim",
            [new_ranks, ranks, positions, slot, now],
            [(heads, mx.int32)],
            grid=(heads[0] * heads[1] * _THREADS, 1, 1),
            threadgroup=(_THREADS, 1, 1),
        )[0]

    def _takes(self, *rows: mx.array) -> bool:
        refused = [x for x in rows if x.dtype not in _DTYPES or x.size < _CONSTANT]
        if refused and self._strict:
            x = refused[0]
            raise UsageError(
                f"the {self.name} kernels do not take {x.dtype} rows of shape {x.shape}: "
                "use_kernel=None leaves such rows to the reference"
            )
        return not refused

    def _run(self, name, inputs, outputs, **launch):
        if name not in self._kernels:
            declared = texts.KERNELS[name]
            self._kernels[name] = self._build(
                name=f"qfilters_{name}",
                input_names=declared.inputs,
                output_names=declared.outputs,
                ensure_row_contiguous=False,
                **self._text(name),
            )
        shapes, dtypes = zip(*outputs, strict=True)
        return self._kernels[name](
            inputs=inputs, output_shapes=list(shapes), output_dtypes=list(dtypes), **launch
        )


def _for_each_batch_row(directions, keys):
    batch, heads, _, size = keys.shape
    return mx.broadcast_to(directions, (batch, heads, size))
