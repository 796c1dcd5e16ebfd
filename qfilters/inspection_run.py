"""What `inspect` measures on a text: the geometry of queries, and how methods foresee attention.

Runs the texts of a session. Knows no command line and no tables: see inspection_tables.py.
"""

from collections.abc import Sequence

from .attention import check_judged, observe
from .foresight import rank_correlation, retained_mass
from .geometry import observations
from .methods import Method
from .session import Session

# The last quarter of each text is what the methods cannot see.
LATER_SHARE = 4


def measure(session: Session, methods: Sequence[Method]) -> dict:
    """Run the session's held-out texts.

    Args:
        session: with an `InspectConfig` that names a model and a text.
        methods: the methods it names, built.

    Returns:
        `corpus`; `observations`; `rank_correlation`, with the sinks counted (`skipped` 0) and left
        out; `retained_mass`: see geometry.py and foresight.py.

    Raises:
        UsageError: a budget without room, a text that is too short.
    """
    s = session.settings
    check_judged(methods, s.budget, s.sinks, s.recent)
    rows, corpus = session.rows("evaluation")
    filters = session.filters
    session.note_own_text(corpus, "inspected")
    session.note_reach(max(map(len, rows)))
    facts = {"budgets": s.budget, "sinks": s.sinks, "recent": s.recent}
    facts["later"] = max(1, s.sequence_length // LATER_SHARE)
    watch, texts = session.watch("inspecting", len(rows)), []
    for done, row in enumerate(rows, start=1):
        texts.append(observe(session.model, row, methods, filters, **facts))
        watch(done, len(rows))
    skips = dict.fromkeys((0, s.sinks))
    return {
        "corpus": corpus,
        "observations": observations(
            [text.moments for text in texts], [text.keys for text in texts], filters
        ),
        "rank_correlation": [r for skip in skips for r in rank_correlation(texts, skip=skip)],
        "retained_mass": retained_mass(texts),
    }
