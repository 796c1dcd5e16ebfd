"""Which path is taken: None, True and False on a machine with and without a GPU."""

import copy

import mlx.core as mx
import pytest
from typer.testing import CliRunner

from qfilters import doctor, kernels, models
from qfilters.cli import app
from qfilters.config import PplConfig, resolve
from qfilters.errors import UsageError
from qfilters.kernels import Fused, choose_kernels, kernel_name, reference, texts


@pytest.fixture
def on(monkeypatch):
    return lambda place: monkeypatch.setattr(kernels, "backend", lambda: place)


def test_a_cpu_takes_the_reference_unless_kernels_are_required(on):
    on("cpu")
    assert choose_kernels() is None and choose_kernels(False) is None
    assert kernel_name(None) == "reference"
    with pytest.raises(UsageError, match="Metal or CUDA back end, and it computes on cpu"):
        choose_kernels(True)


@pytest.mark.parametrize("place", ["metal", "cuda"])
def test_a_gpu_takes_its_kernels_unless_they_are_declined(on, place):
    on(place)
    chosen = choose_kernels()
    assert kernel_name(chosen) == chosen.name == place
    assert choose_kernels() is chosen, "built once"
    assert choose_kernels(True).name == place
    assert choose_kernels(False) is None
    assert copy.deepcopy(chosen) is chosen, "caches are copied, kernels are not"


@pytest.mark.parametrize("value", [1, 0, "auto", 1.0])
def test_other_values_are_refused(value):
    with pytest.raises(UsageError, match="None, True or False"):
        choose_kernels(value)


def never(**declaration):
    raise AssertionError("built")


def test_nothing_is_built_before_it_is_used():
    Fused("cuda", never, texts.cuda)


def test_rows_that_kernels_do_not_take_go_to_the_reference_or_are_refused():
    keys, directions = mx.ones((1, 1, 1, 4)), mx.ones((1, 4))
    lenient, strict = (Fused("metal", never, texts.metal, strict) for strict in (False, True))
    assert mx.array_equal(lenient.project(keys, directions), reference.project(keys, directions))
    wide = mx.ones((1, 1, 9, 4), dtype=mx.int32)
    index = mx.zeros((1, 1, 2), dtype=mx.int32)
    held = mx.zeros((1, 1, 9), dtype=mx.int32)
    assert mx.array_equal(lenient.compact(wide, wide, held, held, index)[0], wide[:, :, :2])
    for refused in (keys, wide):
        with pytest.raises(UsageError, match=r"metal kernels do not take mlx\.core\.\w+ rows"):
            strict.project(refused, directions)


def test_both_back_ends_get_the_same_text_but_for_address_spaces():
    for name in texts.KERNELS:
        metal, cuda = texts.metal(name), texts.cuda(name)
        assert "#include" not in metal["source"] + metal["header"] + cuda["source"]
        for word in ("device ", "constant ", "thread "):
            assert word not in "".join(x.split("//")[0] for x in cuda["source"].splitlines())
        assert len(metal["source"].splitlines()) == len(cuda["source"].splitlines())


@pytest.mark.parametrize("command", ["generate", "ppl"])
def test_the_command_line_refuses_before_it_loads_a_model(on, command, monkeypatch):
    on("cpu")
    monkeypatch.setattr(models, "load", never)
    words = [
        command,
        "--kernel",
        "on",
        "--no-save",
        *(["-p", "x"] if command == "generate" else []),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "Metal or CUDA back end, and it computes on cpu here" in result.stderr
    assert "Traceback" not in result.stderr and result.stderr.count("error:") == 1
    words[2] = "sometimes"
    assert "'--kernel'" in CliRunner().invoke(app, words).stderr


@pytest.mark.parametrize(
    ("written", "read"), [("auto", None), ("on", True), ("off", False), ("'on'", True)]
)
def test_yaml_may_say_on_and_off_without_quotes(tmp_path, written, read):
    path = tmp_path / "ppl.yaml"
    path.write_text(f"kernel: {written}\n")
    assert resolve(PplConfig, path, {}).use_kernel is read


@pytest.mark.parametrize("place", ["cpu", "metal"])
def test_doctor_names_the_path(on, place):
    on(place)
    fact = doctor._kernels()
    assert fact.value == ("reference" if place == "cpu" else place)
