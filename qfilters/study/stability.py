"""How much text is enough, and does it matter which? Filters from less and from other text."""

from collections.abc import Sequence

import numpy as np

from ..calibration import add_queries, calibrate
from ..errors import UsageError
from ..estimator import QueryMoments, drift
from ..fields import Lengths, Positive, Samples, Seed
from ..plan import evicting_layers
from ..platform import default_prefill_step_size
from ..session import Session
from ..similarity import compare, cosines
from ..tap import tapped
from ..text import load_corpus, token_rows
from .base import TextStudyConfig

LISTS = ("cosine", "abs_cosine", "layers")


class StabilityConfig(TextStudyConfig):
    """`tokens`: where to look; `other_*`: texts of equal length that are compared with the first.

    The text is that of calibration; `other_path` builtin is its other half, the one of evaluation.
    """

    command = "evidence/stability"

    num_samples: Samples = -1
    seed: Seed = 42
    tokens: Lengths = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    other_samples: Positive = 2
    other_seed: Seed = 7
    other_path: str = "builtin"

    def check(self) -> None:
        """Another seed must be another."""
        if self.other_seed == self.seed:
            raise UsageError(f"other_seed is {self.seed}, the seed itself")


def measure_stability(session: Session, rows: Sequence[Sequence[int]]) -> list[dict]:
    """One row per comparison, with what `similarity.compare` says of it but for single heads.

    `against` "most": filters after `tokens` tokens against those after all tokens. Else filters of
    `tokens` tokens each, those of the text against those of another: the text in the order of
    `other_seed`, and another text.

    Raises:
        UsageError: as `stability`, `token_rows`.
    """
    s, model, there = session.settings, session.model, sum(map(len, rows))
    if len(rows) < s.other_samples:
        raise UsageError(f"other_samples is {s.other_samples}, but the text has {len(rows)}")
    counts = [count for count in s.tokens if count < there] + [there]
    made = [{"against": "most"} | row for row in stability(model, rows, counts)]
    session.watch("filters from less text", 1)(1, 1)
    size = (s.other_samples, s.sequence_length)
    own = calibrate(model, session.tokenizer, list(rows[: s.other_samples]))
    again = load_corpus(s.data_path, "calibration", s.text_field)
    other = load_corpus(s.other_path, "evaluation", s.text_field)
    for name, corpus, seed in (
        (f"{again.name}, seed {s.other_seed}", again, s.other_seed),
        (other.name, other, s.seed),
    ):
        filters = calibrate(
            model, session.tokenizer, token_rows(corpus, session.tokenizer, *size, seed)
        )
        found = {"against": name, "tokens": size[0] * size[1], **compare(own, filters)}
        made.append(found)
        session.watch(f"filters of {name}", 1)(1, 1)
    return [{k: v for k, v in row.items() if k not in LISTS} for row in made]


def stability(
    model,
    rows: Sequence[Sequence[int]],
    counts: Sequence[int],
    *,
    step_size: int | None = None,
) -> list[dict]:
    """How much text is enough: filters after `counts` tokens against those after the most.

    One pass over the text; the moments are looked at on the way. The smaller samples are part of
    the largest, so the cosines approach 1 a little sooner than against a text of its own.

    Args:
        model: an mlx-lm model.
        rows: token-id lists, each run from position 0.
        counts: tokens at which to look, at most those of the rows.
        step_size: tokens per forward pass; None means the platform's prefill step.

    Returns:
        One row per count, ascending: `tokens`, and `similarity.cosines` to the last.

    Raises:
        UsageError: counts below 1, or more tokens than there are.
        ModelError: as `calibrate`.
    """
    wanted, there = sorted(set(counts)), sum(map(len, rows))
    if not wanted or wanted[0] < 1 or wanted[-1] > there:
        raise UsageError(f"counts {wanted} do not lie between 1 and the {there} tokens of the rows")
    plans = evicting_layers(model, need_queries=True, what="calibration")
    moments = {p.index: QueryMoments(p.n_heads, p.head_dim) for p in plans}
    step, seen, found = step_size or default_prefill_step_size(), 0, []
    with tapped(model):
        for row in rows:
            stops = {count - seen for count in wanted if seen < count <= seen + len(row)}
            for fed in add_queries(model, row, moments, step, stops):
                if fed in stops:
                    pairs = ((moments[p.index], p.n_kv_heads) for p in plans)
                    found.append(np.stack([drift(*pair).q_filters for pair in pairs]))
            seen += len(row)
    return [
        {"tokens": count, **cosines(filters, found[-1])}
        for count, filters in zip(wanted, found, strict=True)
    ]
