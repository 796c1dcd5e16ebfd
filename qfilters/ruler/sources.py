"""Where the settings' samples come from: our generators, a user's text, or the hub."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from ..errors import UsageError
from . import TASKS, Options, Sample, generate
from .prompt import PromptFormat
from .prose import sentences


def read_haystack(path: str | None) -> str | None:
    """A user's text; UsageError when it cannot be read or holds nothing."""
    if path is None:
        return None
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the haystack {path}: {reason}") from error
    sentences(text)
    return text


def samples_of(
    settings, tasks: list[str], prompts: PromptFormat
) -> Iterator[tuple[str, int, Iterable[Sample]]]:
    """(task, length, samples) of a `RulerConfig`, in the order they are asked."""
    s = settings
    pairs = product(tasks, s.length)
    if s.source == "hub":
        from .hub import rows

        for task, length in pairs:
            samples = rows(task, length, s.num_samples, s.seed, prompts.count)
            yield task, length, [_adapted(x, s, prompts.count) for x in samples]
        return
    _refuse_special_tokens(s.haystack, prompts.tokenizer)
    options = _options(s, tasks)
    for task, length in pairs:
        samples = generate(task, prompts.count, length, s.num_samples, s.seed, options)
        yield task, length, samples


def _adapted(sample: Sample, settings, count) -> Sample:
    """A ready-made sample with the settings' answer limit, and without prefix if so asked."""
    prefix = sample.answer_prefix if settings.answer_prefix else ""
    return replace(
        sample,
        answer_prefix=prefix,
        max_new_tokens=settings.max_tokens or sample.max_new_tokens,
        n_tokens=count(sample.context, sample.question, prefix),
    )


def _refuse_special_tokens(path, tokenizer):
    text = read_haystack(path) or ""
    found = [token for token in tokenizer.all_special_tokens if token in text]
    if found:
        raise UsageError(
            f"the haystack {path} holds {found[0]!r}, which is a special token of this model and "
            "not text: take it out"
        )


def _options(settings, tasks) -> Options:
    s = settings
    haystack, name, questions = read_haystack(s.haystack), "file", ()
    if s.source == "hub-sources":
        from . import hub

        haystack, name = hub.essays(), "essays"
        makers = {"qa_1": hub.squad, "qa_2": hub.hotpot}
        questions = tuple(makers[t]() for t in tasks if TASKS[t].family == "qa")
    return Options(
        haystack=haystack,
        haystack_name=name if haystack else "synthetic",
        depths=s.depth,
        chains=s.vt_chains,
        max_tokens=s.max_tokens,
        answer_prefix=s.answer_prefix,
        qa=questions,
    )
