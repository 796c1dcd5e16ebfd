"""How much text is enough, and does it matter which? Filters from less and from other text."""

from collections.abc import Sequence

from ..calibration import calibrate
from ..errors import UsageError
from ..fields import Lengths, Positive, Samples, Seed
from ..geometry import stability
from ..session import Session
from ..similarity import compare
from ..text import load_corpus, token_rows
from .base import StudyConfig

LISTS = ("cosine", "abs_cosine", "layers")


class StabilityConfig(StudyConfig):
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
        """As in the base; another seed must be another."""
        super().check()
        if self.other_seed == self.seed:
            raise UsageError(f"other_seed is {self.seed}, the seed itself")


def measure_stability(session: Session, rows: Sequence[Sequence[int]]) -> list[dict]:
    """One row per comparison, with what `similarity.compare` says of it but for single heads.

    `against` "most": filters after `tokens` tokens against those after all tokens. Else filters of
    `tokens` tokens each, those of the text against those of another: the text in the order of
    `other_seed`, and another text.

    Raises:
        UsageError: as `geometry.stability`, `token_rows`.
    """
    s, model, there = session.settings, session.model, sum(map(len, rows))
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
