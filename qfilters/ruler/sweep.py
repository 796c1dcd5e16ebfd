"""A RULER run that is kept as it goes: prompts, one line per answer, scores at the end.

Answers that are on disk are not asked for again. Knows no command line.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, product

from ..errors import QFiltersWarning
from ..methods import make_method
from ..plan import fingerprint, trained_context
from ..platform import provenance
from ..records import document
from ..results import RunFolder, TaskResult, dump_json, lm_eval_document, open_run, result_name
from ..session import RESULTS, Session, filters_sha256
from . import TASKS, VERSION, Sample, check_length, tasks_named
from .base import FULL
from .contest import Contest, Size, label
from .prompt import PromptFormat
from .run import answer_samples
from .sources import read_haystack, samples_of
from .summary import READ, means, pairs, summarise

Show = Callable[[int, int, str], None]


@dataclass(frozen=True)
class RulerSweep:
    """What a run asks, who answers, and where it is kept (`run` is None when it is not).

    `samples`: (task, length, samples) in the order they are asked, once.
    """

    contest: Contest
    prompts: PromptFormat
    samples: list[tuple[str, int, Iterator[Sample]]]
    provenance: dict
    run: RunFolder | None


def check(settings) -> tuple[list[str], Contest]:
    """Tasks and arms of the settings (a `RulerConfig`), before anything is loaded.

    `none` and `random` ride along: a score means little without its ceiling and its control.

    Raises:
        UsageError: unknown task or method, a length too small for a task, a size without room.
    """
    s = settings
    tasks = tasks_named(list(s.task))
    for task, length in product(tasks, s.length):
        check_length(task, length)
    read_haystack(s.haystack)
    methods = [make_method(*spec) for spec in s.method]
    labels = {str(m) for m in methods}
    first = [make_method(name) for name in ("none",) if name not in labels]
    last = [make_method(name) for name in ("random",) if name not in labels]
    sizes = [Size(budget=b) for b in s.budget or ()] + [Size(ratio=r) for r in s.ratios]
    contest = Contest(
        tuple(first + methods + last),
        tuple(sizes),
        s.sinks,
        s.recent,
        s.mode,
        s.skip_layers,
        s.prefill_step_size,
        s.use_kernel,
    )
    contest.check_room(min(s.length))
    _note_what_has_no_effect(s, tasks)
    return tasks, contest


def _note_what_has_no_effect(s, tasks):
    needles = [task for task in tasks if task.startswith("niah")]
    idle = []
    if s.depth and not needles:
        idle.append("--depth is for needles")
    if s.depth and needles and s.num_samples % len(s.depth):
        idle.append(f"{s.num_samples} prompts do not share {len(s.depth)} depths evenly")
    if s.haystack and not set(needles) - {"niah_single_1", "niah_multikey_2", "niah_multikey_3"}:
        idle.append("--haystack is for needles in prose")
    if s.vt_chains > 1 and "vt" not in tasks:
        idle.append("--vt-chains is for vt")
    for text in idle:
        warnings.warn(text, QFiltersWarning, stacklevel=3)


def format_of(settings, tokenizer) -> PromptFormat:
    """How the settings' prompts are written."""
    options = settings.chat_template_config
    return PromptFormat(tokenizer, aware=settings.protocol == "aware", template_options=options)


def dump_prompts(settings, tokenizer, tasks: list[str]) -> str:
    """All samples as JSON lines, with the token counts of this tokenizer; no model is needed."""
    prompts = format_of(settings, tokenizer)
    lines = []
    for _, _, samples in samples_of(settings, tasks, prompts):
        for sample in samples:
            made = prompts.encode(sample.context, sample.question, sample.answer_prefix)
            counts = {"n_context": len(made.context), "n_rest": len(made.rest)}
            lines.append(dump_json(prompt_row(sample) | counts, indent=None))
    return "".join(lines)


def prompt_row(sample: Sample) -> dict:
    """A sample under kvpress's column names, and what identifies it."""
    row = {**vars(sample), "v": VERSION, "slack": sample.slack}
    row["answer"] = list(row.pop("answers"))
    return row


def open_ruler(
    session: Session, tasks: list[str], contest: Contest, command: list[str]
) -> RulerSweep:
    """Load model and filters, try a prompt of every task, and open the result folder.

    What can fail fails here, before anything is asked.

    Args:
        session: with a `RulerConfig`.
        tasks, contest: as `check` returns them.
        command: the words of the command line, for the record.
    """
    s = session.settings
    if contest.needs_filters:
        _ = session.named_filters
    prompts = format_of(s, session.tokenizer)
    inputs = {
        "model_fingerprint": fingerprint(session.model),
        "template_sha256": prompts.template_sha256,
        "generator_version": str(VERSION),
    }
    if contest.needs_filters:
        inputs["filters_sha256"] = filters_sha256(session.filters)
        session.note_reach(max(s.length))
    if haystack := read_haystack(s.haystack):
        inputs["haystack_sha256"] = hashlib.sha256(haystack.encode()).hexdigest()
    trained = trained_context(session.model)
    if trained and max(s.length) > trained:
        text = f"length {max(s.length)} is past the {trained} tokens the model was trained on"
        warnings.warn(text, QFiltersWarning, stacklevel=2)
    asked = []
    for task, length, samples in samples_of(s, tasks, prompts):
        rest = iter(samples)
        one = next(rest)
        made = prompts.encode(one.context, one.question, one.answer_prefix)
        contest.check_room(len(made.context))
        asked.append((task, length, chain([one], rest)))
    run = None
    if s.save:
        options = {"resume": s.resume, "overwrite": s.overwrite}
        run = open_run(RESULTS, session.model_id, "ruler", s.as_dict(), inputs, **options)
    facts = {**provenance(), "command": command, "seed": s.seed, **inputs}
    return RulerSweep(contest, prompts, asked, facts, run)


def run_ruler(session: Session, sweep: RulerSweep) -> list[dict]:
    """All rows, one per sample and arm; each sample's are on the disk before the next is asked."""
    s, rows = session.settings, []
    for task, length, samples in sweep.samples:
        show = session.watch(f"{task} {length}", s.num_samples)
        rows += _run_task(session, sweep, task, length, samples, show)
    return rows


def _run_task(session, sweep, task, length, samples, show: Show) -> list[dict]:
    name = f"samples_{task}.jsonl"
    kept = sweep.run.read_jsonl(name, ("id", "index", *READ)) if sweep.run else []
    # Two runs in one folder may have asked the same twice.
    known = {(r["id"], r["method"], r["size"]): r for r in kept if r["length"] == length}
    rows = list(known.values())
    filters = session.filters if sweep.contest.needs_filters else None
    asked = answer_samples(session.model, sweep.prompts, samples, sweep.contest, filters, known)
    for done, fresh in enumerate(asked, start=1):
        if sweep.run and fresh:
            sweep.run.append_jsonl(name, *fresh)
        rows += fresh
        show(done, session.settings.num_samples, running(rows))
    order = [(str(method), label(size)) for method, size in sweep.contest.cells()]
    return sorted(rows, key=lambda r: (r["index"], order.index((r["method"], r["size"]))))


def running(rows: list[dict]) -> str:
    """Scores so far in one line, arm by arm."""
    sums: dict = {}
    for row in rows:
        arm = row["method"] if row["size"] == FULL else f"{row['method']}@{row['size']}"
        sums.setdefault(arm, []).append(row["score"])
    return " ".join(f"{arm} {100 * sum(x) / len(x):.0f}" for arm, x in sums.items())


def finish(session: Session, sweep: RulerSweep, rows: list[dict]) -> dict:
    """The document of `--json`; with a run folder also its files: one per arm, and the summary."""
    s = session.settings
    cells = summarise(rows, s.bootstrap_iters, s.seed)
    made = document(cells, sweep.provenance)
    made["means"] = means(rows, s.bootstrap_iters, s.seed)
    made["pairs"] = pairs(rows, s.bootstrap_iters, s.seed)
    if sweep.run:
        arms = dict.fromkeys((cell["method"], cell["size"]) for cell in cells)
        for method, size in arms:
            own = [c for c in cells if (c["method"], c["size"]) == (method, size)]
            name = result_name(method, None if size == FULL else size)
            sweep.run.write_json(name, _lm_eval(session, own, sweep.provenance))
        sweep.run.write_json("summary.json", made)
    return made


def _lm_eval(session, cells, provenance):
    tasks = [
        TaskResult(
            name=f"ruler_{cell['task']}_{cell['length']}",
            metrics={"score": cell["score"], "strict": cell["strict"]},
            higher_is_better={"score": True, "strict": True},
            n_original=cell["n"],
            n_effective=cell["n"],
            settings={"length": cell["length"], "metric": TASKS[cell["task"]].metric},
            intervals={"score": {"low": cell["low"], "high": cell["high"], "level": 0.95}},
        )
        for cell in cells
    ]
    row = {"cells": cells, "seconds": sum(cell["seconds"] for cell in cells)}
    return lm_eval_document(session.model_id, tasks, row, session.settings.as_dict(), provenance)
