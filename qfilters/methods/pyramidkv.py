"""pyramidkv: SnapKV with wide budgets in the first layers and narrow ones in the last."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from .base import require
from .snapkv import SnapKV


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """SnapKV's scores under budgets that fall linearly from the first to the last layer.

    arXiv 2406.02069 as kvpress defines it, the window inside the budget. With T = budget and L
    layers that evict: `low = T / beta`, `high = 2 T - low`, layer l gets
    `high - l (high - low) / (L - 1)` rows, rounded half to even, so that the total is T L.
    `after_prefill` of n tokens: `high` is at most n - window, and `low = 2 T - high`. In `stream` n
    is not known and `high` has no such bound. Where `high >= low >= sinks + window` fails, all
    layers get T. A narrow layer keeps fewer recent rows: a quarter of its own rows, or what the
    sinks leave. Cost per step and path as snapkv. Refused where layers share an array mask.

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

    def layer_budgets(
        self, budget: int, layers: int, sinks: int, length: int | None = None
    ) -> list[int]:
        """Rows of every layer that evicts, first to last; they sum to `budget * layers`.

        Args:
            budget: mean rows per layer.
            layers: how many layers evict.
            sinks: first rows that every layer keeps beside the window.
            length: tokens of the prefill, or None in `stream`.
        """
        low = Fraction(budget) / Fraction(self.beta)
        high = 2 * budget - low
        if length is not None and high >= length - self.window:
            high = length - self.window
            low = 2 * budget - high
        if layers == 1 or not high >= low >= sinks + self.window:
            return [budget] * layers
        # Exact fractions: layers l and L - 1 - l then round to a sum of 2 T.
        return [round(high - i * Fraction(high - low) / (layers - 1)) for i in range(layers)]
