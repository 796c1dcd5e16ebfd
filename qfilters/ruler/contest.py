"""Which arms answer, and how much each keeps of a prompt. Knows no text."""

import math
from dataclasses import dataclass

from ..errors import UsageError
from ..fork import Arm
from ..methods import Method, make_method
from ..prompt_cache import check_room, kernels_for
from .base import FULL
from .prompt import Encoded

MODES = ("after_prefill", "stream")


@dataclass(frozen=True)
class Size:
    """How much an arm keeps of a context: a number of rows, or 1 / ratio of it."""

    budget: int | None = None
    ratio: float | None = None

    @property
    def label(self) -> str:
        """`256` rows, or `2x` for a ratio."""
        return str(self.budget) if self.ratio is None else f"{self.ratio:g}x"

    def rows(self, n_context: int) -> int:
        """Rows per KV head: as given, or floor(n_context / ratio)."""
        return self.budget if self.ratio is None else math.floor(n_context / self.ratio)


def label(size: Size | None) -> str:
    """The label of a size; `full` where there is none."""
    return FULL if size is None else size.label


@dataclass(frozen=True)
class Contest:
    """What answers, and how.

    Attributes:
        methods: those that evict are arms at every size, the others one arm each.
        sizes: what is kept.
        mode: `after_prefill` or `stream`.
        skip: first evicting layers that keep everything (`after_prefill` only).
        step_size: prompt tokens per forward pass; None means the platform's default.
        use_kernel: as `make_prompt_cache`, in mode `stream`.

    Raises:
        UsageError: an arm that is there twice, methods without a size, or what the mode cannot do.
    """

    methods: tuple[Method, ...]
    sizes: tuple[Size, ...]
    sinks: int = 4
    recent: int | None = None
    mode: str = "after_prefill"
    skip: int = 0
    step_size: int | None = None
    use_kernel: bool | None = None

    def __post_init__(self):
        for names in ([str(m) for m in self.methods], [s.label for s in self.sizes]):
            for name in names:
                if names.count(name) > 1:
                    raise UsageError(f"{name} is there twice")
        if self.mode not in MODES:
            raise UsageError(f"mode {self.mode!r} is unknown: {' or '.join(MODES)}")
        if not self.sizes and any(m.evicts for m in self.methods):
            raise UsageError("methods that evict need a budget or a compression ratio")
        if low := [s for s in self.sizes if s.ratio is not None and s.ratio < 1]:
            raise UsageError(f"compression ratio {low[0].ratio:g} is below 1: it is full/kept")
        if self.mode == "stream":
            self._check_stream()
        elif self.use_kernel:
            raise UsageError("fused kernels are for --mode stream: there they evict as in use")

    def _check_stream(self):
        if self.skip:
            raise UsageError(f"{self.skip} layers cannot be skipped in mode stream")
        if any(m.needs_future for m in self.methods):
            raise UsageError("method oracle needs the question in advance: use after_prefill")
        for method in self.methods:
            kernels_for(method, self.use_kernel)

    @property
    def needs_filters(self) -> bool:
        """Whether a method projects on filters."""
        return any(m.needs_filters for m in self.methods)

    def cells(self) -> list[tuple[Method, Size | None]]:
        """All arms; one that keeps everything has no size."""
        return [(m, s) for m in self.methods for s in (self.sizes if m.evicts else (None,))]

    def check_room(self, n_context: int) -> None:
        """UsageError, with the size in question, unless every arm has room at this length."""
        for method, size in self.cells():
            if size is not None:
                rows = size.rows(n_context)
                try:
                    check_room(method, rows, method.sinks_of(self.sinks), self.recent)
                except UsageError as error:
                    what = f"{size.label} of {n_context} tokens of context"
                    raise UsageError(f"{what}: {error}") from None

    def arm(self, method: Method, size: Size | None, made: Encoded, max_tokens: int) -> Arm:
        """The arm of one cell; the full cache's where nothing would be evicted."""
        rows = None if size is None else size.rows(len(made.context))
        most = len(made.context)
        if self.mode == "stream":
            most += len(made.rest) + max_tokens
            # Narrow layers evict although the budget holds everything.
            most = math.inf if hasattr(method, "layer_budgets") else most
        if rows is None or rows >= most:
            return Arm(make_method("none"), None)
        return Arm(method, rows, self.sinks, self.recent, self.skip)
