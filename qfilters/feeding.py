"""Token ids through a model, for what its caches make of them. Nobody sees the logits."""

from collections.abc import Sequence

import mlx.core as mx

from .platform import default_prefill_step_size


def feed(
    model, caches: list, tokens: Sequence[int], step_size: int | None = None, rows: int = 1
) -> None:
    """Run tokens through caches, each step evaluated before the next.

    The logits are never evaluated, so the output head costs nothing: a fifth of a small model.

    Args:
        model: an mlx-lm model.
        caches: evaluated after every step: their `state`, and their `statistics` where they watch
            attention.
        tokens: ids of one sequence.
        step_size: tokens per forward pass; None means the platform's default.
        rows: of the batch, which all get the same tokens.
    """
    step = step_size or default_prefill_step_size()
    batch = mx.broadcast_to(mx.array(tokens), (rows, len(tokens)))
    for start in range(0, len(tokens), step):
        model(batch[:, start : start + step], cache=caches)
        mx.eval([c.state for c in caches], [getattr(c, "statistics", []) for c in caches])
