"""RULER (v1 task definitions, own wording): 13 long-context tasks, their samples, their scores."""

import difflib
from collections.abc import Iterator, Sequence

from ..errors import UsageError
from . import freq, niah, qa, vt
from .base import (
    VERSION,
    Count,
    Fit,
    LengthError,
    Options,
    Plan,
    QAQuestion,
    QASource,
    Sample,
    Spec,
    Task,
    fit,
)

__all__ = [
    "TASKS",
    "VERSION",
    "Count",
    "LengthError",
    "Options",
    "QAQuestion",
    "QASource",
    "Sample",
    "Task",
    "check_length",
    "generate",
    "tasks_named",
]

TASKS: dict[str, Task] = {
    task.name: task for task in (*niah.TASKS, vt.TASK, freq.CWE, freq.FWE, *qa.TASKS)
}
"""The 13 tasks, in the benchmark's order."""

_GROUPS = {
    "niah": tuple(task.name for task in niah.TASKS),
    "qa": tuple(task.name for task in qa.TASKS),
    "all": tuple(TASKS),
}


def tasks_named(names: str | Sequence[str]) -> list[str]:
    """Tasks of a comma list, or of a list of those, each once: `vt,cwe`, `niah`, `qa`, `all`.

    Raises UsageError for an unknown name, with the nearest known one.
    """
    wanted = [names] if isinstance(names, str) else names
    found: list[str] = []
    for name in (part.strip() for text in wanted for part in text.split(",")):
        if name in _GROUPS:
            found += _GROUPS[name]
        elif name:
            found.append(_task(name).name)
    if not found:
        raise UsageError(f"no task given: choose from {', '.join((*_GROUPS, *TASKS))}")
    return list(dict.fromkeys(found))


def check_length(task: str, length: int) -> None:
    """Raise LengthError when `length` is below the task's minimum, before anything is loaded."""
    least = _task(task).minimum
    if length < least:
        raise LengthError(f"{task} at length {length}: it needs at least {least} tokens")


def generate(
    task: str,
    count: Count,
    length: int,
    num_samples: int,
    seed: int = 42,
    options: Options | None = None,
) -> Iterator[Sample]:
    """Samples 0 to `num_samples` - 1; sample i is the same whatever `num_samples` is.

    Args:
        count: tokens of a whole prompt, see `Count`.
        length: tokens that prompt and answer may take together; samples come close from below.

    Raises:
        LengthError: the length is too small, for the task or for this tokenizer and template.
        UsageError: unknown task, or a tokenizer that gives no tokens.
    """
    check_length(task, length)
    if count("These are five plain words.\n", "", "") <= count("", "", ""):
        raise UsageError(
            "the tokenizer gives no tokens for a plain sentence: it is empty or damaged"
        )
    return _samples(TASKS[task], count, length, num_samples, seed, options or Options())


def _samples(
    task: Task, count: Count, length: int, num_samples: int, seed: int, options: Options
) -> Iterator[Sample]:
    # Every search starts from the first sample's size, not from its predecessor's: counts that
    # are not quite monotone could otherwise make a sample depend on how many came before it.
    first: Fit | None = None
    for index in range(num_samples):
        spec = Spec(task.name, length, seed, index)
        sample, found = _sample(task, count, spec, options, first)
        first = first or found
        yield sample


def _sample(
    task: Task, count: Count, spec: Spec, options: Options, start: Fit | None
) -> tuple[Sample, Fit]:
    reserved = options.max_tokens or task.max_new_tokens
    skipped, needed = 0, 0
    for plan in task.build(spec, options):
        sizer = _Sizer(plan, count, options.answer_prefix)
        try:
            found = fit(sizer.tokens, spec.length - reserved, plan.low, start)
        except LengthError:
            skipped, needed = skipped + 1, sizer.tokens(plan.low) + reserved
            continue
        parts = sizer.parts(found.units)
        sample = Sample(
            id=spec.id,
            task=task.name,
            length=spec.length,
            seed=spec.seed,
            index=spec.index,
            context=parts.context,
            question=parts.question,
            answer_prefix=parts.answer_prefix,
            answers=parts.answers,
            max_new_tokens=reserved,
            n_tokens=sizer.tokens(found.units),
            depths=tuple(offset / len(parts.context) for offset in parts.gold),
            source={"haystack": plan.haystack, "qa": plan.qa},
            haystack_sha=plan.haystack_sha,
            meta={**parts.meta, "units": found.units, "skipped": skipped},
        )
        return sample, found
    raise LengthError(
        f"{task.name} at length {spec.length}: with this tokenizer and template it needs at least "
        f"{needed} tokens, {reserved} of them for the answer"
    )


class _Sizer:
    """Token counts of a plan at various sizes, each measured once."""

    def __init__(self, plan: Plan, count: Count, answer_prefix: bool):
        self._plan, self._count, self._prefix = plan, count, answer_prefix
        self._known: dict[int, int] = {}

    def parts(self, k: int):
        """The texts with k units of filler."""
        parts = self._plan.render(k)
        return parts if self._prefix else parts._replace(answer_prefix="")

    def tokens(self, k: int) -> int:
        """Tokens of the whole prompt with k units."""
        if k not in self._known:
            self._known[k] = self._count(*self.parts(k)[:3])
        return self._known[k]


def _task(name: str) -> Task:
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, {*_GROUPS, *TASKS} - {name}, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"unknown task {name!r}: {hint}Known: {', '.join((*_GROUPS, *TASKS))}")
