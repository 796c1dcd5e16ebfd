"""What holds for the samples of every task: length, seeds, answers' places, limits, options."""

import hashlib
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruler_samples import NAMES, count_plain, count_smollm2, samples

from qfilters.errors import UsageError
from qfilters.ruler import TASKS, LengthError, Options, check_length, generate, tasks_named
from qfilters.ruler.base import Fit, Spec, fit

real = pytest.mark.real
slow = pytest.mark.slow
SIZES = [
    pytest.param(1024, "plain", id="1024"),
    pytest.param(4096, "plain", id="4096"),
    pytest.param(1024, "smollm2", id="1024-smollm2", marks=real),
    pytest.param(4096, "smollm2", id="4096-smollm2", marks=real),
    *(pytest.param(n, c, id=f"{n}-{c}", marks=[slow, real])
      for n in (2048, 8192) for c in ("plain", "smollm2")),
]  # fmt: skip
# A line with two uuids is a unit of 76 tokens (of more where every digit is one).
SLACK = {"niah_multikey_3": 90}


@pytest.mark.parametrize("task", NAMES)
@pytest.mark.parametrize("length, counter", SIZES)
def test_a_sample_fills_its_length_and_no_more(task, length, counter):
    count = count_plain if counter == "plain" else count_smollm2()
    for s in samples(task, length, 5, counter):
        assert s.n_tokens == count(s.context, s.question, s.answer_prefix)
        assert 0 <= s.slack == length - s.n_tokens - s.max_new_tokens <= SLACK.get(task, 30)
        assert s.max_new_tokens == TASKS[task].max_new_tokens


@pytest.mark.parametrize("task", NAMES)
@pytest.mark.parametrize("length", [1024, 4096])
def test_answers_are_in_the_context_and_nowhere_else(task, length):
    for s in samples(task, length):
        assert len(set(s.answers)) == len(s.answers)
        for answer in s.answers:
            assert answer in s.context
            assert answer.lower() not in (s.question + s.answer_prefix).lower()
        assert s.context.endswith("\n")
        assert s.answer_prefix[0].isalpha() and not s.answer_prefix[-1].isspace()


@pytest.mark.parametrize("task", NAMES)
def test_depths_are_where_the_gold_pieces_begin(task):
    for s in samples(task):
        places = [round(depth * len(s.context)) for depth in s.depths]
        expected = {"cwe": 0, "fwe": 0, "qa_1": 1, "qa_2": 2}.get(task, len(s.answers))
        assert len(places) == expected
        if task.startswith("qa"):
            assert all(s.context[:p].rstrip()[-1] == ":" for p in places)
        else:
            for place, answer in zip(places, s.answers, strict=False):
                assert answer in s.context[place:].split("\n")[0][:160]


def digest(sample) -> str:
    fields = [sample.context, sample.question, sample.answer_prefix, *sample.answers]
    return hashlib.sha256("\0".join(fields).encode()).hexdigest()[:16]


def digests() -> dict[str, str]:
    return {task: digest(samples(task, 1024, 5)[1]) for task in NAMES}


# Raise VERSION in qfilters/ruler/base.py with any change of these.
STORED = {
    "niah_single_1": "34704f3bb901589d",
    "niah_single_2": "daa5d54dc4938eb9",
    "niah_single_3": "ef5233cab0006506",
    "niah_multikey_1": "46beb07b636c1e49",
    "niah_multikey_2": "b43af69598353945",
    "niah_multikey_3": "b513564acdaecb3b",
    "niah_multivalue": "c65e563c34a4ae69",
    "niah_multiquery": "b2f179b0c4b9e46f",
    "vt": "fae7007bd69afa48",
    "cwe": "d6be9a369941f449",
    "fwe": "0a627a260a3e9481",
    "qa_1": "cfca27fffe10999d",
    "qa_2": "066a0a3a4d7a4ee5",
}


def test_samples_are_the_same_as_ever_whatever_the_hash_seed():
    code = "import json, test_ruler_generation as t; print(json.dumps(t.digests()))"
    for hash_seed in "12":
        made = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=os.path.dirname(__file__),
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(made.stdout) == STORED


@pytest.mark.parametrize("task", NAMES)
def test_a_sample_depends_on_its_index_and_seed_alone(task):
    few, many = samples(task), samples(task, n=12)
    assert few == many[:5]
    assert len({s.context for s in many}) == len({s.id for s in many}) == 12
    assert samples(task, seed=7, n=1)[0].context != few[0].context


@pytest.mark.real
@pytest.mark.parametrize("task", NAMES)
def test_the_tokenizer_changes_only_the_filler(task):
    for a, b in zip(samples(task), samples(task, counter="smollm2"), strict=True):
        assert (a.question, a.answer_prefix, a.answers) == (b.question, b.answer_prefix, b.answers)


@pytest.mark.parametrize("counter", ["plain", pytest.param("smollm2", marks=real)])
@pytest.mark.parametrize("task", NAMES)
def test_more_filler_is_more_tokens(task, counter):
    count = count_plain if counter == "plain" else count_smollm2()
    (plan,) = TASKS[task].build(Spec(task, 4096, 42, 0), Options())
    sizes = np.random.default_rng(0).choice(300, 20, replace=False) + plan.low
    made = [count(*plan.render(int(k))[:3]) for k in sorted(sizes)]
    assert made == sorted(made) and made[-1] > made[0]


@pytest.mark.parametrize("task", NAMES)
def test_too_small_a_length_is_refused_at_once(task):
    for length in (0, 200, TASKS[task].minimum - 1):
        with pytest.raises(LengthError, match=rf"{task} at length {length}.*{TASKS[task].minimum}"):
            check_length(task, length)
        with pytest.raises(LengthError):
            generate(task, count_plain, length, 1)
    start = time.perf_counter()
    with pytest.raises(LengthError, match=rf"{task} at length 1024.*at least \d\d\d\d"):
        next(generate(task, lambda *texts: 2000 + count_plain(*texts), 1024, 1))
    assert time.perf_counter() - start < 1


@pytest.mark.real
@pytest.mark.parametrize("task", NAMES)
def test_the_minimum_is_enough_for_a_real_tokenizer(task):
    (sample,) = samples(task, TASKS[task].minimum, 1, "smollm2")
    assert sample.slack >= 0 and sample.meta["units"] > 0


def test_a_tokenizer_without_tokens_is_refused_and_ctrl_c_gets_through():
    with pytest.raises(UsageError, match="no tokens"):
        generate("vt", lambda *texts: 12, 1024, 1)

    def interrupted(context, question, prefix):
        if len(context) > 100:
            raise KeyboardInterrupt
        return count_plain(context, question, prefix)

    with pytest.raises(KeyboardInterrupt):
        next(generate("vt", interrupted, 1024, 1))


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(0, 900),
    st.one_of(st.none(), st.builds(Fit, st.integers(0, 600), st.floats(0.1, 200))),
)
@example([1], 0, 876, Fit(0, 0.109375))  # the first step alone would pass every limit
def test_fit_finds_the_largest_that_fits(widths, low, spare, start):
    calls = []

    def tokens(k):
        calls.append(k)
        return sum(widths[i % len(widths)] for i in range(k))

    room = tokens(low) + spare
    k = fit(tokens, room, low, start).units
    assert k >= low and tokens(k) <= room < tokens(k + 1)
    assert len(calls) < 70


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9), st.integers(10, 900))
def test_fit_ends_with_counts_that_dip(dips, room):
    def tokens(k):
        return max(0, 4 * k + dips[k % len(dips)])

    k = fit(tokens, room, 0).units
    assert tokens(k) == room or tokens(k) <= room < tokens(k + 1)


def test_fit_refuses_text_without_tokens_and_a_room_too_small():
    with pytest.raises(UsageError, match="only 5 tokens"):
        fit(lambda k: 5, 100, 0)
    with pytest.raises(LengthError, match=r"5 tokens .* room for 4"):
        fit(lambda k: 5 + k, 4, 0)


def test_task_names():
    assert tasks_named("all") == list(NAMES) and len(NAMES) == 13
    assert tasks_named(" vt, cwe ,vt") == ["vt", "cwe"]
    assert tasks_named(["qa", "vt,qa_1"]) == ["qa_1", "qa_2", "vt"]
    assert len(tasks_named("niah")) == 8
    with pytest.raises(UsageError, match="'niah_singel_1': did you mean 'niah_single_1'"):
        tasks_named("vt,niah_singel_1")
    for nothing in ("", ",", []):
        with pytest.raises(UsageError, match="no task"):
            tasks_named(nothing)


TEXT = " ".join(f"Rain fell on day {i} and the road was wet. Was it cold? No." for i in range(40))


def test_a_text_of_ones_own_is_the_haystack_and_named_by_its_hash():
    options = Options(haystack=TEXT, haystack_name="file")
    (s,) = generate("niah_single_2", count_plain, 1024, 1, options=options)
    needle = f"The catalogue number of {s.meta['keys'][0]} is {s.answers[0]}. "
    body = s.context.split("\n\n", 1)[1]
    assert needle in body
    assert (TEXT + " " + TEXT).startswith(body.replace(needle, "").strip())
    assert s.source["haystack"] == "file"
    assert s.haystack_sha == hashlib.sha256(TEXT.encode()).hexdigest()


def test_depths_on_a_grid():
    options = Options(depths=(0, 50, 100))
    made = list(generate("niah_single_2", count_plain, 4096, 6, options=options))
    found = [s.depths[0] for s in made]
    assert found[:3] == pytest.approx(found[3:], abs=0.02)
    assert found[:3] == pytest.approx([0.01, 0.5, 0.99], abs=0.02)


def test_limit_of_the_answer_and_no_prefix():
    (s,) = generate("vt", count_plain, 1024, 1, options=Options(max_tokens=200))
    assert s.max_new_tokens == 200 and 0 <= s.slack < 30
    (s,) = generate("vt", count_plain, 1024, 1, options=Options(answer_prefix=False))
    assert s.answer_prefix == "" and 0 <= s.slack < 30
    assert s.answers == samples("vt")[0].answers


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"haystack": "a"}, "synthetic"),
        ({"haystack_name": "file"}, "file"),
        ({"depths": ()}, "no depth"),
        ({"depths": (10, 101)}, "depth 101"),
        ({"chains": 0}, "chains is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_options_that_make_no_sense(wrong, says):
    with pytest.raises(UsageError, match=says):
        Options(**wrong)


def test_the_package_is_quick_to_import():
    code = (
        "import sys, qfilters.ruler;"
        "print([m for m in ('mlx','numpy','datasets','transformers') if m in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
