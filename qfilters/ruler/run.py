"""Every arm answers every sample; each answer is one plain row. Knows no files.

Mode `after_prefill`: the context runs once, densely, and all arms choose from that run. Mode
`stream`: every arm runs the whole prompt under its budget, as it is deployed.
"""

import math
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ..filters import Filters
from ..fork import Arm, prefill
from ..methods import Method
from . import TASKS, Options, Sample, generate
from .answer import Answer, answer_arms, answer_stream
from .baselines import copy, window
from .prompt import Encoded, PromptFormat
from .score import extra_names, hits, score, strict
from .summary import FULL


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


@dataclass(frozen=True)
class Contest:
    """What answers, and how.

    Attributes:
        methods: those that evict are arms at every size, the others one arm each.
        sizes: what is kept.
        mode: `after_prefill` or `stream`.
        skip: first layers that keep everything (`after_prefill` only).
        step_size: prompt tokens per forward pass; None means the platform's default.
    """

    methods: tuple[Method, ...]
    sizes: tuple[Size, ...]
    sinks: int = 4
    recent: int | None = None
    mode: str = "after_prefill"
    skip: int = 0
    step_size: int | None = None

    def cells(self) -> list[tuple[Method, Size | None]]:
        """All arms; one that keeps everything has no size."""
        return [(m, s) for m in self.methods for s in (self.sizes if m.evicts else (None,))]

    def arm(self, method: Method, size: Size | None, n_context: int) -> Arm:
        """The arm of one cell for a context of n tokens."""
        rows = None if size is None else size.rows(n_context)
        return Arm(method, rows, self.sinks, self.recent, self.skip)


def answer_samples(
    model,
    prompts: PromptFormat,
    samples: Iterable[Sample],
    contest: Contest,
    filters: Filters | None = None,
    known: Collection[tuple[str, str, str]] = (),
) -> Iterator[list[dict]]:
    """Yield the rows of one sample after another, an arm each, in the order of `contest.cells()`.

    An arm that would keep the whole context is not run: its answer is the full cache's.

    Args:
        model: an mlx-lm model.
        known: (sample id, method, size) of rows that exist already; they are left out.

    Raises:
        UsageError: a budget without room.
    """
    for sample in samples:
        made = prompts.encode(sample.context, sample.question, sample.answer_prefix)
        cells = [
            (method, size)
            for method, size in contest.cells()
            if (sample.id, str(method), _label(size)) not in known
            and (size is None or size.rows(len(made.context)) < len(made.context))
        ]
        if not cells:
            yield []
            continue
        run = _run_stream if contest.mode == "stream" else _run_forked
        answers, seconds = run(model, prompts, sample, made, contest, cells, filters)
        yield [
            _row(prompts, sample, made, contest, cell, answer, seconds / len(cells))
            for cell, answer in zip(cells, answers, strict=True)
        ]


def _run_forked(model, prompts, sample, made, contest, cells, filters):
    start = time.perf_counter()
    methods = list(dict.fromkeys(m for m, _ in cells if m.evicts))
    # The oracle sees what the right answer attends to.
    gold = prompts.tokenizer.encode(" " + " ".join(sample.answers), add_special_tokens=False)
    done = prefill(
        model,
        made.context,
        methods,
        filters,
        continuation=made.rest + gold,
        step_size=contest.step_size,
    )
    arms = [contest.arm(method, size, done.length) for method, size in cells]
    eos = prompts.tokenizer.eos_token_ids
    answers = answer_arms(model, done, arms, made.rest, sample.max_new_tokens, eos)
    return answers, time.perf_counter() - start


def _run_stream(model, prompts, sample, made, contest, cells, filters):
    start, answers = time.perf_counter(), []
    for method, size in cells:
        arm = contest.arm(method, size, len(made.context))
        answer = answer_stream(
            model,
            made.context,
            made.rest,
            sample.max_new_tokens,
            prompts.tokenizer.eos_token_ids,
            step_size=contest.step_size,
            method=method,
            budget=arm.budget or 1,
            sinks=arm.sinks,
            recent=arm.recent,
            filters=filters if method.needs_filters else None,
        )
        answers.append(answer)
    return answers, time.perf_counter() - start


def _row(prompts, sample, made: Encoded, contest, cell, answer: Answer, seconds: float) -> dict:
    method, size = cell
    task, n = TASKS[sample.task], len(made.context)
    said = prompts.tokenizer.decode(answer.tokens)
    budget = None if size is None else size.rows(n)
    return {
        "id": sample.id,
        "task": sample.task,
        "length": sample.length,
        "seed": sample.seed,
        "index": sample.index,
        "method": str(method),
        "size": _label(size),
        "budget": budget,
        "n_kept": answer.kept,
        "compression_ratio": answer.seen / answer.kept,
        "fraction_removed": 1 - answer.kept / answer.seen,
        "protocol": "aware" if prompts.aware else "agnostic",
        "mode": contest.mode,
        "n_context": n,
        "n_rest": len(made.rest),
        "slack": sample.slack,
        "suite": "RULER" if sample.meta.get("source") == "hub" else "RULER-style",
        "source": sample.source,
        "haystack_sha": sample.haystack_sha,
        "depths": list(sample.depths),
        "question": sample.question,
        "answer_prefix": sample.answer_prefix,
        "answer": list(sample.answers),
        "max_new_tokens": sample.max_new_tokens,
        "predicted_answer": said,
        "n_new": len(answer.tokens),
        "finish": answer.finish,
        "hits": hits(sample.answers, said),
        "score": score(task.metric, sample.answers, said),
        "strict": strict(task.metric, sample.answers, said),
        "extra": extra_names(sample.answers, said) if sample.task == "vt" else None,
        "copy": copy(sample),
        "window": None if budget is None else window(sample, _tail(prompts, sample, budget)),
        "seconds": seconds,
    }


def _tail(prompts, sample, rows):
    ids = prompts.tokenizer.encode(sample.context, add_special_tokens=False)
    return prompts.tokenizer.decode(ids[-rows:])


def _label(size: Size | None) -> str:
    return FULL if size is None else size.label


def evaluate_ruler(
    model,
    tokenizer,
    task: str = "vt",
    length: int = 1024,
    num_samples: int = 10,
    *,
    methods: Iterable[Method],
    budgets: Iterable[int] = (),
    compression_ratios: Iterable[float] = (),
    filters: Filters | None = None,
    seed: int = 42,
    aware: bool = False,
    options: Options | None = None,
    **contest,
) -> list[dict]:
    """Rows of one task: every method at every budget and compression ratio on the same samples.

    Args:
        model, tokenizer: as `qfilters.load` returns them.
        task: one of `qfilters.ruler.TASKS`.
        length: tokens of prompt and answer together.
        methods: as `qfilters.methods.make_method` builds them.
        aware: methods see the question before they choose.
        contest: sinks, recent, mode, skip, step_size, as in `Contest`.

    Returns:
        One row per sample and arm; `qfilters.ruler.summary.summarise` makes scores of them.

    Raises:
        LengthError: the task does not fit the length.
        UsageError, FilterError: as `prefill`.
    """
    prompts = PromptFormat(tokenizer, aware=aware)
    sizes = [Size(budget=b) for b in budgets] + [Size(ratio=r) for r in compression_ratios]
    made = generate(task, prompts.count, length, num_samples, seed, options or Options())
    arms = Contest(tuple(methods), tuple(sizes), **contest)
    return [row for rows in answer_samples(model, prompts, made, arms, filters) for row in rows]
