"""What `bench decode` does between its settings and its table: load, time, keep. Prints nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from .bench_decode import bench_decode, check_contenders, contenders
from .plan import fingerprint
from .platform import provenance
from .results import document, open_run
from .session import RESULTS, Session, filters_sha256


def run_decode_bench(
    session: Session, command: list[str], watch: Callable[[str], None]
) -> tuple[dict, Path | None]:
    """Time what the settings name; the document of the result, and where it is kept.

    Args:
        session: with a `BenchConfig`.
        command: the words of the command line, for the record.
        watch: told what is timed next.

    Raises:
        UsageError, QFiltersError: bad names, or results that are there already, before timing.
    """
    s = session.settings
    needs_filters = check_contenders(s.method)
    if needs_filters:
        _ = session.named_filters
    facts = {**provenance(), "command": command, "model_fingerprint": fingerprint(session.model)}
    inputs = {name: facts[name] for name in ("device", "backend", "model_fingerprint")}
    if needs_filters:
        inputs["filters_sha256"] = facts["filters_sha256"] = filters_sha256(session.filters)
    ways = contenders(
        session.model,
        s.method,
        s.budgets_for(max(s.prompt_tokens)),
        session.filters if needs_filters else None,
        sinks=s.sinks,
        recent=s.recent,
        use_kernel=s.use_kernel,
    )
    run = None
    if s.save:
        name = "bench-decode"
        run = open_run(RESULTS, session.model_id, name, s.as_dict(), inputs, overwrite=s.overwrite)
    random = np.random.default_rng(0)
    # Ids below 256 exist in every vocabulary.
    prompts = [random.integers(0, 256, n).tolist() for n in s.prompt_tokens]
    rows = bench_decode(
        session.model,
        ways,
        prompts,
        s.generation_tokens,
        s.num_trials,
        s.prefill_step_size,
        watch,
    )
    made = document(rows, facts)
    if run:
        run.write_json("summary.json", made)
    return made, run.path if run else None
