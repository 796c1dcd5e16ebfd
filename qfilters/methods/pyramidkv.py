"""pyramidkv: SnapKV with wide budgets in the first layers and narrow ones in the last."""

from dataclasses import dataclass
from typing import ClassVar

from .base import require
from .snapkv import SnapKV


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """SnapKV's scores under budgets that fall linearly from the first to the last layer.

    arXiv 2406.02069 as kvpress defines it, the window inside the budget. With T = budget and L
    layers: `low = T / beta`, `high = 2 T - low`; after a prefill of n tokens `high` is at most
    n - window; uniform where `n >= high >= low >= window` fails. Rounded so that the total is
    exactly T L. In `stream` n is not known and only `low >= window` is asked. Cost per step and
    path as snapkv.

    Options:
        window, pooling: as snapkv.
        beta: steepness, >= 1.
    """

    name: ClassVar[str] = "pyramidkv"
    family: ClassVar[str] = "layer-budget"
    paper: ClassVar[str] = "2406.02069"

    beta: int = 20

    def __post_init__(self):
        super().__post_init__()
        require(type(self.beta) in (int, float) and self.beta >= 1, "beta", self.beta, ">= 1")

    def layer_budgets(self, budget: int, layers: int, length: int | None = None) -> list[int]:
        """Rows of every layer that evicts, first to last; they sum to `budget * layers`.

        Args:
            budget: mean rows per layer.
            layers: how many layers evict.
            length: tokens of the prefill, or None in `stream`.
        """
        low = budget / self.beta
        high = 2 * budget - low
        if length is not None and high >= length - self.window:
            high = length - self.window
            low = 2 * budget - high
        if layers == 1 or not high >= low >= self.window:
            return [budget] * layers
        exact = [high - i * (high - low) / (layers - 1) for i in range(layers)]
        # Round the running total, so that no layer is off by one row or more and the sum is exact.
        ends = [round(sum(exact[: i + 1])) for i in range(layers)]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]
