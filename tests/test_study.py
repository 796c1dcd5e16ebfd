"""The studies find what they look for, on a tiny model; and they notice when it is broken."""

import json
import os
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
import tiny
from streams import TOKENS
from typer.testing import CliRunner

from qfilters.cache import EvictingKVCache
from qfilters.calibration import calibrate
from qfilters.cli import app
from qfilters.errors import UsageError
from qfilters.ppl import evaluate_ppl
from qfilters.rows import RowStore
from qfilters.study.budget import BudgetConfig, measure_budget
from qfilters.study.chunks import ChunksConfig, measure_chunks
from qfilters.study.stability import StabilityConfig, measure_stability

ROWS = [TOKENS[0, start : start + 120].tolist() for start in (0, 120)]
SMALL = {"sequence_length": 120, "sinks": 2}


@pytest.fixture(scope="module")
def session():
    """`session(settings)` of the tiny llama, without files."""
    model = tiny.make()
    filters = calibrate(model, tiny.ByteTokenizer(), [TOKENS[0, 240:].tolist()])

    def made(settings):
        settings.check()
        return SimpleNamespace(
            model=model,
            tokenizer=tiny.ByteTokenizer(),
            filters=filters,
            settings=settings,
            watch=lambda label, total: lambda *done: None,
        )

    return made


def chunks(session, **changes):
    method = "qfilters,qfilters_keysvd(calib_tokens=16)"
    sizes = {"later": 24, "budget": 24, "chunk": [48, 16], "step_size": 8, "method": method}
    made = measure_chunks(session(ChunksConfig(**SMALL, **(sizes | changes))), ROWS)
    return {(row["method"].split("(")[0], row["chunk"]): row for row in made}


def test_chunks_do_not_matter_to_fixed_scores(session):
    found = chunks(session)
    assert [key[1] for key in found] == [96, 48, 16] * 2
    for (method, chunk), row in found.items():
        assert row["n_layers"] == 3 and row["one_shot"] == (chunk == 96)
        if method == "qfilters" or chunk == 96:
            assert (row["identical_layers"], row["overlap_first"]) == (3, 1.0)
        else:
            assert row["identical_layers"] < 3
            assert abs(row["direction_cosine"]) <= row["direction_abs_cosine"] < 0.999
    assert found["qfilters", 16]["overlap_least"] < 1, "deeper layers saw evicted caches"
    assert found["qfilters", 48]["direction_cosine"] is None
    assert found["qfilters_keysvd", 96]["direction_cosine"] == pytest.approx(1)


def test_a_chunk_longer_than_the_context_is_the_context(session):
    """The buffers of plain caches are longer than what they hold, which is not fed."""
    for row in chunks(session, chunk=[500]).values():
        assert row["identical_layers"] == 3 and row["overlap_mean"] == 1
        assert row["direction_cosine"] in (None, pytest.approx(1))


def test_no_chunk_is_always_timed_first(session, monkeypatch):
    """One text begins with the whole context, the next with the first smaller chunk."""
    from qfilters.study import chunks as study

    order, run = [], study._run

    def noted(*words):
        order.append(words[-1])
        return run(*words) | {"seconds": float(len(order))}

    monkeypatch.setattr(study, "_run", noted)
    found = chunks(session, method="qfilters")
    assert order == [96, 48, 16, 48, 16, 96]
    row = found["qfilters", 96]
    assert [row[f"seconds{end}"] for end in ("_least", "", "_most")] == [1, 3.5, 6]
    assert row["one_shot"] and found["qfilters", 48]["overlap_first"] == 1


def test_perplexity_after_the_context_is_that_of_the_text(session):
    """With room for everything it is what `ppl` measures on the same tokens."""
    rows = chunks(session, budget=200, method="qfilters").values()
    model = session(ChunksConfig()).model
    whole = evaluate_ppl(model, ROWS, method="none", step_size=8)
    context = evaluate_ppl(model, [row[:97] for row in ROWS], method="none", step_size=8)
    apart = (np.array(whole.nll) - np.array(context.nll)).tolist()
    for row in rows:
        assert row["nll_sums"] == pytest.approx(apart, rel=1e-4)
        assert (row["n_tokens"], row["n_sequences"]) == (46, 2)


def test_chunk_study_refuses_what_has_no_stream(session):
    for changes in (
        *({"method": "h2o"}, {"method": "none"}, {"budget": 2}),
        *({"later": 120}, {"later": 1}),
    ):
        with pytest.raises(UsageError):
            chunks(session, **changes)


CASES = [{"prefill": 100, "decode": 0, "budget": 40}, {"prefill": 60, "decode": 30, "budget": 24}]
ARMS = (
    "none,qfilters,qfilters_mean,qfilters_keysvd,knorm,keydiff,streaming_llm,sliding_window,h2o,tova,"
    "snapkv(window=4),pyramidkv(window=4,beta=2),chunkkv(window=4),expected_attention,random,oracle"
)


def budgets(session, method=ARMS):
    return measure_budget(session(BudgetConfig(**SMALL, cases=CASES, method=method)), ROWS)


def test_all_arms_keep_the_same_and_none_drifts(session):
    rows = budgets(session)
    assert len(rows) == 2 * 16
    for row in rows:
        tokens = row["prefill"] + row["decode"]
        kept = tokens if row["method"] == "none" else row["budget"]
        assert row["offset"] == row["tokens"] == tokens
        assert (row["offset_error"], row["keys_changed"]) == (0, 0)
        assert row["keys_checked"] == 2 * 3 * kept, "2 heads, 3 layers"
        assert row["kept_mean"] == kept
        if row["method"].startswith("pyramidkv"):
            assert row["kept_least"] == kept / 2 and row["kept_most"] == 1.5 * kept
        else:
            assert row["kept_least"] == row["kept_most"] == kept
        assert row["dense_difference"] < 1e-5


def test_a_stalled_offset_is_seen(session, monkeypatch):
    """A cache that says how many rows it kept, as caches have done."""
    evict = EvictingKVCache._evict

    def stalling(self, rows, ranks, stored):
        evict(self, rows, ranks, stored)
        self.offset = min(self.offset, self.budget)

    monkeypatch.setattr(EvictingKVCache, "_evict", stalling)
    row = budgets(session, "knorm")[1]
    assert row["offset"] == 24 and row["offset_error"] > 30
    assert row["dense_difference"] > 1e-2, "keys were rotated to wrong places"


def test_a_key_that_is_rotated_again_is_seen(session, monkeypatch):
    put = RowStore.put
    turned = lambda x: mx.concatenate([-x[..., 1:], x[..., :1]], axis=-1)  # noqa: E731

    def rotating(self, slot, new):
        return put(self, slot, [turned(new[0]), *new[1:]])

    monkeypatch.setattr(RowStore, "put", rotating)
    row = budgets(session, "knorm")[1]
    assert row["keys_changed"] > 0 and row["offset_error"] == 0


def test_budget_study_refuses_cases_without_text_or_room(session):
    for case in ({"prefill": 120, "decode": 1, "budget": 40}, CASES[0] | {"budget": 2}):
        with pytest.raises(UsageError):
            session(BudgetConfig(**SMALL, cases=[case]))


def test_stability(session, tmp_path):
    (tmp_path / "other.txt").write_text("Another text altogether. " * 40)
    settings = StabilityConfig(
        sequence_length=64,
        tokens=[32, 64, 500],
        other_samples=2,
        other_path=str(tmp_path / "other.txt"),
    )
    rows = measure_stability(session(settings), [row[:64] for row in ROWS * 2])
    assert [(row["against"], row["tokens"]) for row in rows] == [
        *(("most", n) for n in (32, 64, 256)),
        ("builtin:calibration, seed 7", 128),
        ("other.txt", 128),
    ], "counts beyond the text are left out"
    assert rows[2]["mean_cosine"] == pytest.approx(1) and rows[0]["mean_cosine"] < 0.999
    assert all(row["n_heads"] == 6 and "cosine" not in row for row in rows)
    with pytest.raises(UsageError, match="other_seed is 42"):
        session(StabilityConfig(other_seed=42))
    with pytest.raises(UsageError, match="other_samples is 2, but the text has 1"):
        measure_stability(session(settings), [ROWS[0][:64]])


# --- the command ---


@pytest.fixture
def study(tmp_path, tiny_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text("length: 64\nbudget: 16\nseeds: 2\n")
    (tmp_path / "chunks.yaml").write_text(
        "sequence_length: 120\nlater: 24\nbudget: 24\nchunk: [16]\nmethod: [qfilters]\n"
    )

    def run(*words, code=0):
        result = CliRunner().invoke(app, ["study", *words])
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    run.model = os.path.relpath(tiny_folder, tmp_path)
    return run


def test_geometry_is_kept_and_resumed(study, tmp_path):
    words = ["geometry", "--config", "small.yaml"]
    first = study(*words, "--json")
    [folder] = (tmp_path / "artifacts" / "results" / "synthetic").iterdir()
    assert folder.name.startswith("study-geometry-")
    kept = json.loads((folder / "summary.json").read_text())
    assert json.loads(first.stdout) == kept and len(kept["rows"]) == 2 * 7
    assert kept["qfilters"]["command"][0] == "qfilters"
    assert "holds a finished run" in study(*words, code=1).stderr
    (folder / "summary.json").write_text(json.dumps(kept | {"rows": kept["rows"][:1]}))
    assert len(json.loads(study(*words, "--resume", "--json").stdout)["rows"]) == 1
    assert len(json.loads(study(*words, "--overwrite", "--json").stdout)["rows"]) == 14
    assert "| attention retained | 16 of 64 |" in study(*words, "--resume").stdout


def test_a_study_of_a_model(study, tmp_path):
    words = ["chunks", "--model", study.model, "--config", "chunks.yaml"]
    assert "| `qfilters` | 96 |" in study(*words).stdout
    [summary] = (tmp_path / "artifacts" / "results" / "tiny").glob("study-chunks-*/summary.json")
    facts = json.loads(summary.read_text())["qfilters"]
    assert facts.keys() >= {"text_sha256", "model_fingerprint", "filters_sha256", "corpus"}


def test_refusals_are_one_line(study):
    assert "Known: chunks, budget, geometry, stability" in study("x", code=2).stderr
    both = study("geometry", "--config", "small.yaml", "--resume", "--overwrite", code=2)
    assert "exclude each other" in both.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["geometry", "--model", "tiny"], "'--model' is no setting of study geometry"),
        (["geometry", "--dtype", "float32"], "'--dtype' is no setting"),
        (["stability", "--filters", "f.npz"], "'--filters' is no setting of study stability"),
        (["budget", "--config", "two.yaml"], "num_samples: unknown key for evidence/budget"),
    ],
    ids=lambda x: " ".join(x)[:20],
)
def test_settings_without_effect_are_refused_before_a_model_is_loaded(
    study, tmp_path, monkeypatch, words, said
):
    monkeypatch.setattr("qfilters.models.load", None)
    (tmp_path / "two.yaml").write_text("num_samples: 2\n")
    error = study(*words, code=2).stderr
    assert said in error and error.count("\n") == 1
