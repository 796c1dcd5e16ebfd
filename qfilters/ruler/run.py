"""Every arm answers every sample; each answer is one plain row. Knows no files.

Mode `after_prefill`: the context runs once, densely, and all arms choose from that run. Mode
`stream`: every arm runs the whole prompt under its budget, as it is deployed; arms that keep as
many rows share their forward passes, unless fused kernels are insisted on.
"""

import time
from collections.abc import Collection, Iterable, Iterator

from ..batches import arm_batches
from ..filters import Filters
from ..fork import Arm, prefill
from ..methods import Method
from . import TASKS, Options, Sample, generate
from .answer import Answer, answer_arms, answer_streams
from .baselines import copy, window
from .contest import Contest, Size, label
from .prompt import Encoded, PromptFormat
from .score import extra_names, hits, score, strict


def answer_samples(
    model,
    prompts: PromptFormat,
    samples: Iterable[Sample],
    contest: Contest,
    filters: Filters | None = None,
    known: Collection[tuple[str, str, str]] = (),
) -> Iterator[list[dict]]:
    """Yield the rows of one sample after another, an arm each, in the order of `contest.cells()`.

    An arm that would keep everything is not run: it gets the full cache's answer, and its row says
    that nothing was evicted. `seconds` is the time of all arms over their number.

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
            if (sample.id, str(method), label(size)) not in known
        ]
        arms = [contest.arm(*cell, made, sample.max_new_tokens) for cell in cells]
        start, answer = time.perf_counter(), _stream if contest.mode == "stream" else _forked
        answers = answer(model, prompts, sample, made, contest, list(dict.fromkeys(arms)), filters)
        seconds = (time.perf_counter() - start) / max(len(cells), 1)
        common = _common(prompts, sample, made, contest) | {"seconds": seconds}
        windows = _windows(prompts, sample, made, contest)
        yield [
            {**common, **_row(prompts, sample, made, cell, answers[arm], windows[cell[1]])}
            for cell, arm in zip(cells, arms, strict=True)
        ]


def _forked(model, prompts, sample, made, contest, arms, filters) -> dict[Arm, Answer]:
    if not arms:
        return {}
    # The oracle sees what the right answer attends to.
    gold = prompts.tokenizer.encode(" " + " ".join(sample.answers), add_special_tokens=False)
    done = prefill(
        model,
        made.context,
        list(dict.fromkeys(arm.method for arm in arms if arm.method.evicts)),
        filters,
        continuation=made.rest + gold,
        step_size=contest.step_size,
    )
    eos = prompts.tokenizer.eos_token_ids
    answers = answer_arms(model, done, arms, made.rest, sample.max_new_tokens, eos)
    return dict(zip(arms, answers, strict=True))


def _stream(model, prompts, sample, made, contest, arms, filters) -> dict[Arm, Answer]:
    eos, limit = prompts.tokenizer.eos_token_ids, sample.max_new_tokens
    how = {"step_size": contest.step_size, "filters": filters, "use_kernel": contest.use_kernel}
    answers, length = {}, len(made.context) + len(made.rest) + limit
    for batch in arm_batches(model, arms, length, alone=bool(contest.use_kernel)):
        given = answer_streams(model, batch, made.context, made.rest, limit, eos, **how)
        answers |= zip(batch, given, strict=True)
    return answers


def _common(prompts, sample: Sample, made: Encoded, contest) -> dict:
    """What all rows of a sample say."""
    return {
        "id": sample.id,
        "task": sample.task,
        "length": sample.length,
        "seed": sample.seed,
        "index": sample.index,
        "protocol": "aware" if prompts.aware else "agnostic",
        "mode": contest.mode,
        "n_context": len(made.context),
        "n_rest": len(made.rest),
        "slack": sample.slack,
        "suite": "RULER" if sample.meta.get("source") == "hub" else "RULER-style",
        "source": sample.source,
        "haystack_sha": sample.haystack_sha,
        "meta": sample.meta,
        "depths": list(sample.depths),
        "question": sample.question,
        "answer_prefix": sample.answer_prefix,
        "answer": list(sample.answers),
        "max_new_tokens": sample.max_new_tokens,
        "copy": copy(sample),
    }


def _windows(prompts, sample, made, contest) -> dict:
    """Of every size: what a perfect reader of the last rows would score."""
    ids = prompts.ids(sample.context)
    # The question, and in a stream all of the prompt, take their part of the rows.
    after = len(prompts.ids(sample.question)) if prompts.aware else 0
    after += len(made.rest) if contest.mode == "stream" else 0
    found: dict = {None: None}
    for size in contest.sizes:
        held = max(size.rows(len(made.context)) - after, 0)
        tail = prompts.tokenizer.decode(ids[-held:]) if held else ""
        found[size] = window(sample, tail)
    return found


def _row(prompts, sample, made, cell, answer: Answer, seen) -> dict:
    method, size = cell
    metric = TASKS[sample.task].metric
    said = prompts.tokenizer.decode(answer.tokens)
    budget = None if size is None else size.rows(len(made.context))
    return {
        "method": str(method),
        "size": label(size),
        "budget": budget,
        "evicted": answer.evicted,
        "n_kept": answer.kept,
        "compression_ratio": answer.seen / answer.kept,
        "fraction_removed": 1 - answer.kept / answer.seen,
        "predicted_answer": said,
        "n_new": len(answer.tokens),
        "finish": answer.finish,
        "hits": hits(sample.answers, said),
        "score": score(metric, sample.answers, said),
        "strict": strict(metric, sample.answers, said),
        "extra": extra_names(sample.answers, said) if sample.task == "vt" else None,
        "window": seen,
    }


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
