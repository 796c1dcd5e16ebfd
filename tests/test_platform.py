"""What the machine gives: BLAS, back end, dtype, cache folder, and what `doctor` says of them.

The choice of a BLAS is made once per process, so every case runs in a process of its own.
"""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from qfilters import platform
from qfilters.doctor import diagnose

ROOT = Path(platform.__file__).parents[1]
OURS = "openblas (scipy-openblas32)"
SPEED = """
import time
import mlx.core as mx
a, b = mx.random.normal((2, 768, 768), key=mx.random.key(0))
mx.eval(a @ b)
best = 9.0
for _ in range(3):
    start = time.perf_counter(); mx.eval(a @ b); best = min(best, time.perf_counter() - start)
exact = (a.astype(mx.float32)[:4, :, None] * b[None]).sum(1)
result["seconds"] = best
result["error"] = mx.abs((a @ b)[:4] - exact).max().item()
"""


def fresh(code: str = "", first: str = "", path: list[str] | None = None, **env: str) -> dict:
    """Run `first`, import qfilters, run `code` in a new process: `result` and the BLAS status."""
    script = (
        f"import sys, json\nresult = {{}}\n{first}\nimport qfilters\n"
        "from qfilters.platform import blas_status\n"
        "result['loaded'] = sorted({'mlx', 'mlx.core', 'numpy'} & set(sys.modules))\n"
        f"result['blas'] = vars(blas_status())\n{code}\nprint(json.dumps(result))"
    )
    search = os.pathsep.join([*(path or []), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": search, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


# Of a new process: this one may have imported mlx before qfilters.
CHOSEN = fresh()["blas"]
linux_cpu = pytest.mark.skipif(
    platform.default_dtype() is None, reason="only mlx's Linux CPU wheels need another BLAS"
)
renamed = pytest.mark.skipif(
    CHOSEN["name"] != OURS, reason="needs the extra `cpu` and no system OpenBLAS"
)


def test_import_is_light_and_quiet():
    assert fresh()["loaded"] == []


@linux_cpu
@pytest.mark.skipif(not CHOSEN["fast"], reason="no OpenBLAS is installed here")
def test_matrix_products_are_faster_and_right():
    ours, stock = fresh(SPEED), fresh(SPEED, QFILTERS_BLAS="off")
    assert ours["blas"]["fast"] and not stock["blas"]["fast"]
    assert "QFILTERS_BLAS=off" in stock["blas"]["note"] and not stock["blas"]["failed"]
    assert ours["seconds"] < stock["seconds"] / 3
    assert ours["error"] < 1e-3 and stock["error"] < 1e-3


@linux_cpu
def test_a_wrong_path_falls_back_with_one_note():
    result = fresh(SPEED, QFILTERS_BLAS="/no/such/libblas.so")
    assert result["blas"]["failed"] and result["blas"]["name"] == "reference"
    assert "/no/such/libblas.so" in result["blas"]["note"] and result["error"] < 1e-3
    not_blas = fresh(QFILTERS_BLAS="libm.so.6")["blas"]
    assert "libm.so.6 has no cblas_sgemm" in not_blas["note"]


@linux_cpu
def test_mlx_imported_first_is_said():
    blas = fresh(first="import mlx.core")["blas"]
    assert blas["name"] == "reference (mlx was imported first)" and not blas["failed"]
    assert "import qfilters first" in blas["note"]


@renamed
def test_the_copy_is_made_once_by_processes_that_start_together(tmp_path):
    script = "import qfilters; print(qfilters.platform.blas_status().name)"
    env = {**os.environ, "QFILTERS_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [p.communicate()[0].strip() for p in both] == [OURS, OURS]
    (copy,) = (tmp_path / "blas").iterdir()
    made = copy.stat().st_mtime_ns
    assert fresh(QFILTERS_CACHE=str(tmp_path))["blas"]["path"] == str(copy)
    assert copy.stat().st_mtime_ns == made

    copy.write_bytes(copy.read_bytes()[:100_000])  # what a full disk leaves
    assert fresh(QFILTERS_CACHE=str(tmp_path))["blas"]["fast"]


@renamed
def test_a_cache_that_cannot_be_written_falls_back(tmp_path):
    (tmp_path / "file").write_text("")
    blas = fresh(QFILTERS_CACHE=str(tmp_path / "file"))["blas"]
    assert blas["failed"] and "qfilters-mlx[cpu]" in blas["note"]


@pytest.mark.skipif(sys.platform != "linux", reason="mlx's CUDA wheels are for Linux")
def test_nothing_is_loaded_beside_a_cuda_back_end(tmp_path):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("")
    (tmp_path / "mlx_cuda_13-0.32.4.dist-info").mkdir()
    code = "result['maps'] = 'openblas' in open('/proc/self/maps').read()"
    result = fresh(code, path=[str(tmp_path)])
    assert result["blas"]["name"] == "accelerate/gpu" and not result["maps"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """`mlx` as the plain wheel is on Linux: the Python part without a back end."""
    if sys.platform != "linux":
        pytest.skip("mlx always has a back end on macOS")
    import mlx.core

    folder = tmp_path_factory.mktemp("bare")
    installed = Path(mlx.core.__file__).parent
    shutil.copytree(installed, folder / "mlx", ignore=shutil.ignore_patterns("lib", "include"))
    return str(folder)


def test_without_a_back_end_the_extra_is_named_and_doctor_still_answers(bare):
    code = """
from qfilters.doctor import diagnose
from qfilters.platform import require_mlx
try:
    require_mlx()
except Exception as error:
    result["error"] = [type(error).__name__, error.exit_code, str(error)]
result["facts"] = [list(f) for f in diagnose()]
"""
    result = fresh(code, path=[bare])
    kind, exit_code, text = result["error"]
    assert (kind, exit_code) == ("UsageError", 2)
    assert "qfilters-mlx[cpu]" in text and "\n" not in text
    facts = {name: (value, note) for name, value, note in result["facts"]}
    assert facts["back end"] == ("none", text)
    assert "cache folder" in facts and "matrix products" not in facts


@linux_cpu
def test_compiled_functions_run_without_a_compiler_and_doctor_says_so(tmp_path):
    """mlx calls g++ for them: on a machine without one, models must still run."""
    code = """
import mlx.core as mx
from mlx_lm.models.activations import swiglu
from qfilters.doctor import diagnose
result["value"] = swiglu(mx.ones((2, 3)), mx.ones((2, 3))).sum().item()
result["compile"] = list(next(f for f in diagnose() if f.name == "mx.compile"))
"""
    result = fresh(code, PATH=str(tmp_path), TMPDIR=str(tmp_path))
    assert result["value"] == pytest.approx(6 / (1 + 2.718281828**-1), rel=1e-5)
    assert result["compile"][1] == "off" and "no g++" in result["compile"][2]


def test_cache_dir_follows_the_environment(monkeypatch):
    monkeypatch.setenv("QFILTERS_CACHE", "~/elsewhere")
    assert platform.cache_dir() == Path.home() / "elsewhere"
    monkeypatch.delenv("QFILTERS_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
        assert platform.cache_dir() == Path("/some/cache/qfilters")
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        assert platform.cache_dir() == Path.home() / ".cache" / "qfilters"


def test_provenance_is_complete_and_names_neither_host_nor_user():
    known = platform.provenance()
    assert known["mlx"].startswith("0.") and known["blas"] == platform.blas_status().name
    assert known["python"].count(".") == 2 and known["backend"] in ("cpu", "cuda", "metal")
    text = json.dumps(known)
    assert str(Path.home()) not in text and os.sep not in known["blas"].replace("accelerate/", "")
    for private in (socket.gethostname(), getpass.getuser()):
        assert f'"{private}"' not in text


def test_cpu_defaults_agree_with_the_device():
    import mlx.core as mx

    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    assert platform.on_cpu() is on_cpu
    assert platform.default_prefill_step_size() == (256 if on_cpu else 2048)
    assert platform.default_dtype() == (mx.float32 if on_cpu and sys.platform == "linux" else None)


def test_doctor_measures_and_reports(tmp_path, monkeypatch):
    monkeypatch.setenv("QFILTERS_CACHE", str(tmp_path))
    (tmp_path / "big").write_bytes(b"0" * 3_000_000)
    facts = {f.name: f for f in diagnose()}
    assert facts["cache folder"][1:] == ("3 MB", str(tmp_path))
    assert facts["model smollm2-135m"].value == "not fetched yet"
    speed = float(facts["matrix products"].value.rpartition(", ")[2].split()[0])
    assert 0.5 < speed < 100_000  # the reference BLAS gives 3 to 5
    assert facts["mx.compile"].value == "on" or facts["mx.compile"].note
