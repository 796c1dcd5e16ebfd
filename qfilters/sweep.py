"""A perplexity sweep: every method at every budget on the same rows, kept as it goes.

Arms of one budget share their forward passes; an arm that is on disk is not run again. Knows no
command line.
"""

import warnings
from dataclasses import dataclass

from .batches import arm_batches
from .errors import QFiltersWarning
from .fork import Arm
from .methods import Method
from .plan import fingerprint
from .platform import provenance
from .ppl import PplResult, evaluate_arms, evaluate_ppl
from .prompt_cache import kernels_for, recent_rows
from .results import RunFolder, TaskResult, lm_eval_document, open_run, result_name
from .session import RESULTS, Session, filters_sha256
from .stats import bootstrap_perplexity
from .text import repetition

TASK = "perplexity"
MANY_REPEATS = 0.05


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs on and where it is kept (`run` is None when it is not)."""

    methods: list[Method]
    rows: list[list[int]]
    corpus: dict
    provenance: dict
    run: RunFolder | None


def open_sweep(session: Session, methods: list[Method], command: list[str]) -> Sweep:
    """Read the text, find the filters, and open the result folder before anything is measured.

    Args:
        session: with a `PplConfig`.
        methods: the methods it names, built.
        command: the words of the command line, for the record.
    """
    s = session.settings
    needs_filters = any(m.needs_filters for m in methods)
    # What can be refused is refused before a model is loaded.
    for method in methods:
        kernels_for(method, s.use_kernel)
    if needs_filters:
        _ = session.named_filters
    rows, corpus = session.rows("evaluation")
    inputs = {"text_sha256": corpus["sha256"], "model_fingerprint": fingerprint(session.model)}
    if needs_filters:
        inputs["filters_sha256"] = filters_sha256(session.filters)
        session.note_own_text(corpus, "measured")
        session.note_reach(max(map(len, rows)))
    repeated = repetition(rows)
    if repeated > MANY_REPEATS:
        text = (
            f"{repeated:.0%} of the text repeats itself (32-grams): a full cache can copy, "
            "so these perplexities say little about eviction"
        )
        warnings.warn(text, QFiltersWarning, stacklevel=2)
    facts = {**provenance(), "command": command, "corpus": corpus, **inputs}
    run = None
    if s.save:
        config = s.as_dict()
        options = {"resume": s.resume, "overwrite": s.overwrite}
        run = open_run(RESULTS, session.model_id, "ppl", config, inputs, **options)
    return Sweep(methods, rows, corpus, facts, run)


def _arms(methods, s) -> list[Arm]:
    """All pairs, methods first; a method that keeps everything has one arm and no budget."""
    budgets = s.budgets_for(s.sequence_length)
    return [
        Arm(m, b, s.sinks, s.recent) for m in methods for b in (budgets if m.evicts else (None,))
    ]


def run_sweep(session: Session, sweep: Sweep) -> list[dict]:
    """The `records.PplRow` of every arm, from the folder where it is there already.

    Arms that keep equally many rows share their forward passes (`batches.arm_batches`), unless the
    settings say otherwise or insist on fused kernels (batches take the reference, also where there
    is a GPU). Every batch is written as soon as it is measured, so an interruption loses one batch.
    """
    s, known = session.settings, {}
    arms = _arms(sweep.methods, s)
    for arm in arms:
        kept = sweep.run.read_json(_file(arm)) if sweep.run else None
        if kept:
            known[arm] = kept["qfilters"]["eviction"]
    missing = [arm for arm in arms if arm not in known]
    longest = max(map(len, sweep.rows)) - 1
    alone = bool(s.use_kernel) or not s.batch_arms
    for batch in arm_batches(session.model, missing, longest, alone):
        for arm, row in zip(batch, _run_batch(session, sweep.rows, batch), strict=True):
            known[arm] = row
            if sweep.run:
                sweep.run.write_json(_file(arm), _lm_eval(session, row, sweep.provenance))
    return [known[arm] for arm in arms]


def _file(arm):
    return result_name(str(arm.method), arm.budget)


def _run_batch(session, rows, batch):
    s, total = session.settings, sum(len(row) - 1 for row in rows)
    names = [f"{arm.method} {'full' if arm.budget is None else arm.budget}" for arm in batch]
    bars = [session.watch(name, total) for name in names]

    def progress(done, total, perplexities):
        for bar, perplexity in zip(bars, perplexities, strict=True):
            bar(done, total, perplexity)

    filters = session.filters if any(arm.method.needs_filters for arm in batch) else None
    how = {"step_size": s.step_size, "filters": filters}
    if len(batch) > 1:
        found = evaluate_arms(session.model, rows, batch, progress=progress, **how)
    else:
        [arm], how["use_kernel"] = batch, s.use_kernel
        how |= {name: getattr(arm, name) for name in ("method", "budget", "sinks", "recent")}
        found = [evaluate_ppl(session.model, rows, progress=bars[0], **how)]
    return [_row(result, arm, s, len(batch)) for arm, result in zip(batch, found, strict=True)]


def _row(result: PplResult, arm: Arm, s, together: int) -> dict:
    method, budget = arm.method, arm.budget
    low, high = bootstrap_perplexity(result.nll, result.n_tokens, s.bootstrap_iters, s.seed)
    account = result.accounts[-1]
    sinks = recent = None
    if budget is not None:
        sinks = method.sinks_of(s.sinks)
        recent = recent_rows(method, budget, sinks, s.recent)
    return {
        "method": str(method),
        "budget": budget,
        "sinks": sinks,
        "recent": recent,
        "perplexity": result.perplexity,
        "low": low,
        "high": high,
        "n_tokens": sum(result.n_tokens),
        "n_sequences": len(result.nll),
        "nll_sums": result.nll,
        "evicted": account["rows_evicted"] > 0,
        **account,
        "step_size": s.step_size,
        "seconds": result.seconds,
        "arms": together,
        "mode": "stream",
    }


def _lm_eval(session, row, provenance):
    interval = {"low": row["low"], "high": row["high"], "level": 0.95, "method": "bootstrap"}
    task = TaskResult(
        name=TASK,
        metrics={"perplexity": row["perplexity"]},
        higher_is_better={"perplexity": False},
        n_original=row["n_sequences"],
        n_effective=row["n_sequences"],
        settings={"sequence_length": session.settings.sequence_length},
        intervals={"perplexity": {**interval, "unit": "sequence"}},
    )
    config = session.settings.as_dict()
    return lm_eval_document(session.model_id, [task], row, config, provenance)


def ppl_cells(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """A table of arms: column names and cells, perplexity with its 95 % interval."""
    columns = [
        "method",
        "budget",
        "perplexity",
        "95 % interval",
        "kept/seen",
        "ratio",
        "MB",
        "s / arms",
    ]
    cells = []
    for row in rows:
        interval = "-" if row["low"] is None else f"{row['low']:.2f} - {row['high']:.2f}"
        kept = f"{row['tokens_kept']}/{row['tokens_seen']}"
        cells.append(
            [
                row["method"],
                "-" if row["budget"] is None else str(row["budget"]),
                f"{row['perplexity']:.3f}",
                interval,
                kept if row["evicted"] else f"{kept} nothing evicted",
                f"{row['compression_ratio']:.2f}",
                f"{row['cache_bytes'] / 1e6:.1f}",
                f"{row['seconds']:.1f} / {row.get('arms', 1)}",
            ]
        )
    return columns, cells
