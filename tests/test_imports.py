"""The package's shape: data flows one way, names stay apart, start-up stays cheap."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "qfilters"

# Each module imports only from those to its left.
ORDER: list[str] = []
for line in (
    "errors files figures pictures platform arms fields settings commands config text gguf",
    "smollm2 models feeding tap plan estimator filters similarity calibration select kernels",
    "doctor rotation probabilities rows methods cache observing_cache arms_cache future",
    "prompt_cache generate stats records results bench_kernels bench_decode forked_cache fork",
    "batches ppl attention foresight geometry session sweep ruler inspection inspection_run",
    "inspection_tables inspection_plots generation_run decode_shown decode_run study report cli",
):
    ORDER += line.split()


def imported(path: Path) -> set[str]:
    """Top-level modules of the package that a file imports, at any depth of its code."""
    depth = len(path.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
            assert node.level or node.module.split(".")[0] != "qfilters", "import relatively"
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_modules_import_only_from_those_above(path):
    module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if module == "__init__":
        assert imported(path) == {"platform"}
        return
    above = {*ORDER[: ORDER.index(module)], module}
    assert imported(path) <= above, f"{module} imports {imported(path) - above}"


def test_files_are_short():
    lengths = {p: len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py")}
    assert max(lengths.values()) <= 300, {p.name: n for p, n in lengths.items() if n > 300}


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_public_names_survive_the_import_of_every_submodule():
    code = """
import importlib, pkgutil, qfilters
for module in pkgutil.walk_packages(qfilters.__path__, "qfilters."):
    importlib.import_module(module.name)
for _ in range(2):
    for name in qfilters.__all__:
        value = getattr(qfilters, name)
        assert type(value).__name__ != "module", name
print(sorted(qfilters.__all__))
"""
    assert "make_prompt_cache" in python(code)


@pytest.mark.parametrize("words", [["--help"], ["ppl", "--help"], ["--version"]])
def test_help_needs_no_mlx(words):
    code = f"""
import sys
from typer.testing import CliRunner
from qfilters.cli import app
result = CliRunner().invoke(app, {words})
assert result.exit_code == 0, result.output
heavy = [m for m in ("mlx", "mlx_lm", "transformers", "scipy", "datasets") if m in sys.modules]
print(heavy)
"""
    assert python(code).strip() == "[]"


def test_inspecting_a_file_needs_no_model_library(tmp_path):
    code = f"""
import sys
from typer.testing import CliRunner
from qfilters.cli import app
CliRunner().invoke(app, ["inspect", {str(tmp_path / "none.npz")!r}])
print([m for m in ("mlx_lm", "transformers", "scipy", "datasets") if m in sys.modules])
"""
    assert python(code).strip() == "[]"


@pytest.mark.parametrize(
    "path", sorted((PACKAGE.parent / "benchmarks").glob("*.py")), ids=lambda p: p.stem
)
def test_benchmarks_import_names_that_exist(path):
    """Nothing runs them here."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("qfilters"):
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name), (node.module, name.name)
