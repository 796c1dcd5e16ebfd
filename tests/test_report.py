import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_rows import PPL, arm, plan, write
from test_results import row
from typer.testing import CliRunner

from qfilters.cli import app
from qfilters.errors import QFiltersError, UsageError
from qfilters.report import shown, tables, update_readme
from qfilters.report.runs import read_evidence, read_runs
from qfilters.results import document, open_run

COMMAND = {"command": ["qfilters", "ppl", "--budget", "64,128"], "mlx": "0.32.4"}
ROWS = [
    row(method="none", budget=None, perplexity=22.219, low=20.1, high=24.04, evicted=False)
    | {"nll_sums": [3000.0, 3100.0]},
    row(method="knorm", budget=128, perplexity=24.7) | {"nll_sums": [3102.3, 3202.3]},
    row(method="knorm", budget=64, perplexity=28.32) | {"nll_sums": [3204.6, 3509.2]},
    row(method="m(a=1)", budget=128, evicted=False) | {"nll_sums": [3000.0, 3100.0]},
]


def finished(root, rows=ROWS, command="ppl", model="org/name", provenance=COMMAND):
    run = open_run(root, model, command, {"model": model, "n": len(rows)})
    run.write_json("summary.json", document(rows, provenance))
    return run


def test_ppl_table(tmp_path):
    run = finished(tmp_path)
    assert tables(tmp_path) == {
        run.path.name: """\
**budget 64, n 2 x 1023**

| method | perplexity | / full |
| --- | --- | --- |
| `none` | 22.22 [20.10, 24.04] | 1 |
| `knorm` | 28.32 [23.00, 26.00] | 1.350 [0.379, 4.810] |

**budget 128, n 2 x 1023**

| method | perplexity | / full |
| --- | --- | --- |
| `none` | 22.22 [20.10, 24.04] | 1 |
| `knorm` | 24.70 [23.00, 26.00] | 1.105 |
| `m(a=1)` | 24.50* [23.00, 26.00] | 1.000 |

Lower is better. [low, high]: 95 % interval, bootstrap over whole sequences. \
n: sequences x predicted tokens. *: nothing was evicted. \
/ full: ratio to `none`, t interval of its logarithm over sequences.

Model org__name; mlx 0.32.4. Made by `qfilters ppl --budget 64,128`.
"""
    }


def test_arms_are_held_against_qfilters_at_the_same_budget(tmp_path):
    rows = [
        arm("qfilters", 64, 4.0, 12.0, 24.0),
        arm("knorm", 64, 6.0, 13.0, 27.0),
        arm("knorm", 128, 5.0, 11.0, 22.0),
    ]
    finished(tmp_path, rows)
    [table] = tables(tmp_path).values()
    first, second = table.split("**budget 128")
    assert "| method | perplexity | NLL - `qfilters` |" in first
    assert "| `qfilters` | 4.00 [1 sequence: no interval] | 0 |" in first
    # Nat per token: 0.1 and 0.3. Student's t of two values: 12.706 times 0.1.
    apart = "+0.2000 [-1.0706, +1.4706]"
    assert f"| `knorm` | 6.00 [1 sequence: no interval] | {apart} |" in first
    assert "| method | perplexity |\n" in second and "t interval over sequences" in second


def test_one_sequence_has_no_interval_and_says_so(tmp_path):
    finished(tmp_path, [row(low=None, high=None, n_sequences=1, n_tokens=1023)])
    [table] = tables(tmp_path).values()
    assert "| `knorm` | 24.50 [1 sequence: no interval] |" in table


def test_the_full_cache_alone(tmp_path):
    finished(tmp_path, ROWS[:1])
    [table] = tables(tmp_path).values()
    assert (
        table.startswith("**no budget, n 2 x 1023**\n\n| method | perplexity |")
        and "*:" not in table
    )


def test_other_commands_show_their_single_values(tmp_path):
    rows = [
        {"layer": 0, "energy": 0.61234, "heads": [1, 2], "text": "a|b\nc", "low": None},
        {"new": 1},
    ]
    finished(tmp_path, rows, command="inspect")
    [table] = tables(tmp_path).values()
    assert table.startswith(
        "| layer | energy | text | low | new |\n| --- | --- | --- | --- | --- |\n"
        "| 0 | 0.6123 | a\\|b c | - | - |\n| - | - | - | - | 1 |\n"
    )


def test_only_finished_runs_count(tmp_path):
    open_run(tmp_path, "m", "ppl", {})
    assert tables(tmp_path) == tables(tmp_path / "nowhere") == {}


def test_same_files_same_bytes(tmp_path):
    finished(tmp_path, ROWS)
    finished(tmp_path, ROWS[1:], model="other/name")
    assert list(tables(tmp_path).items()) == list(tables(tmp_path).items())
    assert len(tables(tmp_path)) == 2


def test_damaged_files_are_named(tmp_path):
    run = finished(tmp_path, provenance={})
    with pytest.raises(QFiltersError, match=r"summary\.json does not say what made it"):
        tables(tmp_path)
    (run.path / "summary.json").write_text("{")
    with pytest.raises(QFiltersError, match=r"cannot read .*summary\.json"):
        tables(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"qfilters": null}', '{"qfilters": {}}'])
def test_a_summary_that_is_none_is_one_line(tmp_path, text):
    run = finished(tmp_path)
    (run.path / "summary.json").write_text(text)
    with pytest.raises(QFiltersError, match=r"summary\.json .*remove it"):
        tables(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", '{"a": null}', '{"a": {"runs": null}}', '{"a": []}'])
def test_a_plan_that_is_none_is_one_line(tmp_path, text):
    finished(tmp_path)
    (tmp_path / "evidence.json").write_text(text)
    with pytest.raises(QFiltersError, match=r"evidence\.json is damaged"):
        tables(tmp_path)


@pytest.mark.parametrize("rows", [None, 3, [None], [{}]])
def test_a_run_of_another_version_says_what_to_do(tmp_path, rows):
    run = finished(tmp_path)
    summary = {"rows": rows, "qfilters": COMMAND}
    (run.path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(QFiltersError, match="measure it again: qfilters ppl --budget 64,128"):
        tables(tmp_path)


def test_two_runs_of_one_name_are_refused(tmp_path):
    run = finished(tmp_path)
    run.path.parent.rename(tmp_path / "copy")
    finished(tmp_path)
    with pytest.raises(QFiltersError, match="is the name of two runs"):
        tables(tmp_path)


def names(shown):
    return [[run.name for run in runs] for runs in shown]


def test_items_of_evidence_have_their_own_names(tmp_path):
    own, other = finished(tmp_path), finished(tmp_path, ROWS[1:], model="other/name")
    place = f"{own.path.parent.name}/{own.path.name}"
    plan(tmp_path, short=([""], {"": place}), later=(["a", "b"], {"a": place}))
    made = tables(tmp_path)
    assert made["short"] == made[own.path.name]
    assert made["later"] == "Not measured yet: `measure later`.\n"
    assert names(shown(tmp_path)) == [["short", "later"], [other.path.name]]


def test_variants_stand_together_and_the_full_cache_once(tmp_path):
    runs = {}
    for tag in ("--recent 0", "--recent 32"):
        name = write(tmp_path, "ppl", PPL[:2], tag=tag, command=["qfilters", "ppl", *tag.split()])
        runs[tag] = f"org__name/{name}"
    plan(tmp_path, recent=(["--recent 0", "--recent 32"], dict(reversed(runs.items()))))
    table = tables(tmp_path)["recent"]
    labels = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert labels == ["| `none`", "| `qfilters --recent 0`", "| `qfilters --recent 32`"]
    assert "| `none` | 2.00 [1 sequence: no interval] | 1 |" in table, "once"
    assert "Made by `qfilters ppl --recent 0`, `qfilters ppl --recent 32`." in table
    assert names(shown(tmp_path)) == [["recent"], []]


def test_pairs_means_and_plain_rows_say_their_variant(tmp_path):
    runs = {}
    for tag in ("a", "b"):
        pairs = [{"a": "none", "b": "knorm", "n": 5}, {"a": "knorm", "b": "random", "n": 5}]
        means = [{"method": method, "score": 1.0} for method in ("none", "knorm")]
        rows = [{"layer": 0}]
        name = write(tmp_path, "ruler", rows, tag=tag, means=means, pairs=pairs)
        runs[tag] = f"org__name/{name}"
    plan(tmp_path, both=(list(runs), runs))
    [item] = read_evidence(tmp_path, read_runs(tmp_path))
    arms = [(row["a"], row["b"]) for row in item.summary["pairs"]]
    assert arms == [
        *(("none", "knorm a"), ("knorm a", "random a")),
        *(("none", "knorm b"), ("knorm b", "random b")),
    ]
    assert [row["method"] for row in item.summary["means"]] == ["none", "knorm a", "knorm b"]
    assert [row["variant"] for row in item.summary["rows"]] == ["a", "b"]


def test_a_plan_that_names_what_is_not_there_is_refused(tmp_path):
    plan(tmp_path, short=([""], {"": "m/ppl-0"}))
    with pytest.raises(QFiltersError, match="short names m/ppl-0, which is no finished run"):
        tables(tmp_path)
    (tmp_path / "evidence.json").write_text('{"short": {"runs": {}, "variants": [""]}}')
    with pytest.raises(QFiltersError, match=r"evidence\.json is damaged .*'command'"):
        tables(tmp_path)


def test_different_kinds_cannot_stand_together(tmp_path):
    runs = {kind: f"org__name/{write(tmp_path, kind, PPL)}" for kind in ("ppl", "generate")}
    plan(tmp_path, both=(list(runs), runs))
    with pytest.raises(QFiltersError, match="both: runs of different kinds"):
        tables(tmp_path)


def test_different_versions_cannot_stand_together(tmp_path):
    names = [write(tmp_path, "ppl", PPL, tag="a"), write(tmp_path, "ppl", PPL, tag="b", pairs=[])]
    runs = {name: f"org__name/{name}" for name in names}
    plan(tmp_path, both=(names, runs))
    with pytest.raises(QFiltersError, match="are of different versions: measure both again"):
        tables(tmp_path)


def test_a_stale_file_is_found_and_filled(tmp_path):
    name = write(tmp_path, "ppl", PPL)
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(f"# A\n\n<!-- results:{name} -->\n| 9.99 |\n<!-- /results -->\n")
    other.write_text("no block\n")
    words = ["report", "--results", str(tmp_path), "--readme", str(page), "--readme", str(other)]
    stale = CliRunner().invoke(app, [*words, "--check"])
    assert stale.exit_code == 1 and f"{page} is stale" in stale.stderr
    assert "9.99" in page.read_text(), "--check changes nothing"
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "9.99" not in page.read_text() and "4.00 [3.00, 5.00]" in page.read_text()
    assert CliRunner().invoke(app, [*words, "--check"]).exit_code == 0
    page.write_text(page.read_text().replace("4.00", "3.99"))
    assert CliRunner().invoke(app, [*words, "--check"]).exit_code == 1


def test_readme_blocks_are_replaced_and_the_rest_stays():
    text = "# A\n\n<!-- results:x -->\nold\nold\n<!-- /results -->\n`<!-- results:y -->` inline\n"
    new = update_readme(text, {"x": "| a |\n"})
    assert new == text.replace("old\nold\n", "| a |\n")
    assert update_readme("no marker", {}) == "no marker"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n<!-- results:z -->\n<!-- /results -->\n", "line 2: no results 'z'; there are: x, y"),
        ("<!-- results:x -->\nold\n", "line 1: results:x is not closed"),
        (
            "<!-- results:x -->\n<!-- results:y -->\n<!-- /results -->\n",
            "line 2: results:x of line 1",
        ),
        ("<!-- /results -->\n", "line 1: <!-- /results --> closes nothing"),
    ],
)
def test_wrong_markers_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        update_readme(text, {"x": "", "y": ""})


lines = st.lists(st.sampled_from(["", "prose", "| a | b |", "  indented"]), max_size=4)


@given(st.lists(st.tuples(lines, st.sampled_from("xy"), lines), max_size=4), lines)
def test_updating_twice_is_updating_once(blocks, tail):
    made = {"x": "| 1 |\n", "y": "| 2 |\n\nnote\n"}
    text = wanted = ""
    for before, name, old in blocks:
        prose = "".join(f"{line}\n" for line in before)
        inside = "".join(f"{line}\n" for line in old)
        text += f"{prose}<!-- results:{name} -->\n{inside}<!-- /results -->\n"
        wanted += f"{prose}<!-- results:{name} -->\n{made[name]}<!-- /results -->\n"
    end = "\n".join(tail)
    assert update_readme(text + end, made) == wanted + end
    assert update_readme(wanted + end, made) == wanted + end
