"""chunkkv: rows live and die by the chunk, so that phrases stay whole."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from .base import require
from .snapkv import SnapKV


@dataclass(frozen=True)
class ChunkKV(SnapKV):
    """SnapKV's scores averaged over chunks of `chunk` positions and over KV heads.

    arXiv 2502.00299. Chunk = position // chunk, averaged over the rows it has left before the
    window, so all rows of a chunk rank alike and whole chunks stay, the same in every KV head. The
    last chunk admitted is cut at the budget, its first rows stay (kvpress keeps a number of whole
    chunks instead). `stream`, cost per step and path as snapkv.

    Options:
        window, pooling: as snapkv.
        chunk: positions per chunk, >= 1.
    """

    name: ClassVar[str] = "chunkkv"
    paper: ClassVar[str] = "2502.00299"

    chunk: int = 20

    def __post_init__(self):
        super().__post_init__()
        require(type(self.chunk) is int and self.chunk >= 1, "chunk", self.chunk, ">= 1")

    def rank_by(self, statistic: mx.array, positions: mx.array, end: int) -> mx.array:
        """`[B, H_kv, S]`: one value per chunk, the same in every head."""
        before = positions < end - self.window
        scores = mx.where(before, super().rank_by(statistic, positions, end), 0.0)
        batch = scores.shape[0]
        chunks = positions // self.chunk
        b = mx.arange(batch)[:, None, None]
        empty = mx.zeros((batch, end // self.chunk + 1))
        total = empty.at[b, chunks].add(scores)
        count = empty.at[b, chunks].add(before.astype(mx.float32))
        mean = total / mx.maximum(count, 1)
        flat = chunks.reshape(batch, -1)
        return mx.take_along_axis(mean, flat, axis=1).reshape(scores.shape)
