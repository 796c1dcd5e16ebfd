"""RULER on the embedded model: keeping the facts answers, keeping the end finds what is there."""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import pytest

from qfilters import evaluate_ruler, load
from qfilters.methods import Method, make_method
from qfilters.ruler import Options, generate
from qfilters.ruler.prompt import PromptFormat

pytestmark = pytest.mark.real
OPTIONS = Options(depths=(15.0, 90.0), max_tokens=10)
LENGTH = 512


@pytest.fixture(scope="module")
def real():
    return load()


@dataclass(frozen=True)
class Gold(Method):
    """Keeps what it is told: the facts asked for."""

    name: ClassVar[str] = "gold"
    family: ClassVar[str] = "structural"
    paper: ClassVar[str] = ""
    cost: ClassVar[str] = "none"
    kept: tuple[int, ...] = ()

    def score(self, keys, positions, layer, learned):
        told = (positions[:, None] == mx.array(self.kept)[None]).any(axis=-1)
        return mx.broadcast_to(told.astype(mx.float32), keys.shape[:3])


def facts(tokenizer):
    """Positions of the needle's own tokens in each of the two prompts, all together."""
    prompts, found = PromptFormat(tokenizer), set()
    for sample in generate("niah_single_1", prompts.count, LENGTH, 2, options=OPTIONS):
        before, after = sample.context.split(sample.answers[0])
        line = len(before.splitlines()[-1])
        start = prompts.encode(before[:-line], "", "").context
        end = prompts.encode(before + sample.answers[0] + after.split("\n")[0], "", "").context
        found |= set(range(len(start) - 1, len(end) + 1))
    return tuple(sorted(found))


def test_facts_answer_and_a_window_finds_what_it_holds(real):
    model, tokenizer = real
    methods = [make_method("none"), Gold(facts(tokenizer)), make_method("streaming_llm")]
    rows = evaluate_ruler(
        model,
        tokenizer,
        "niah_single_1",
        LENGTH,
        2,
        methods=[*methods, make_method("random")],
        compression_ratios=[2.0],
        options=OPTIONS,
    )
    scores = {(r["method"].split("(")[0], r["index"]): r["score"] for r in rows}
    assert [scores["none", i] for i in (0, 1)] == [1, 1]
    assert [scores["gold", i] for i in (0, 1)] == [1, 1]
    # The first needle is before the last half of the context, the second inside it.
    assert [scores["streaming_llm", i] for i in (0, 1)] == [0, 1]
    assert sum(scores["random", i] for i in (0, 1)) <= 1
    by_window = {r["index"]: r["window"] for r in rows if r["method"] == "streaming_llm"}
    assert by_window == {0: 0, 1: 1}
