"""Where the settings' samples come from: our generators, a user's text, or the hub."""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from ..errors import UsageError
from . import TASKS, Options, Sample, generate
from .prompt import PromptFormat


def read_haystack(path: str | None) -> str | None:
    """A user's text; UsageError when it cannot be read or holds no words."""
    if path is None:
        return None
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the haystack {path}: {reason}") from error
    if len(text.split()) < 100:
        raise UsageError(f"the haystack {path} has {len(text.split())} words: 100 at least")
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
            yield task, length, rows(task, length, s.num_samples, s.seed, prompts.count)
        return
    options = _options(s, tasks)
    for task, length in pairs:
        samples = generate(task, prompts.count, length, s.num_samples, s.seed, options)
        yield task, length, samples


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
