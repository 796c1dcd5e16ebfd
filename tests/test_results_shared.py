"""A result folder in other hands: written by another process, or damaged."""

import subprocess
import sys

import pytest

from qfilters.errors import QFiltersError
from qfilters.results import open_run


def test_a_folder_that_another_process_writes_is_left_alone(tmp_path):
    code = (
        "import sys; from qfilters.results import open_run; "
        "open_run(sys.argv[1], 'm', 'ppl', {}).write_json('rows.json', []); "
        "print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "open\n"
    for how in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(QFiltersError, match="is being written by another process"):
            open_run(tmp_path, "m", "ppl", {}, **how)
    other.communicate()
    assert open_run(tmp_path, "m", "ppl", {}, resume=True).read_json("rows.json") == []
    assert open_run(tmp_path, "m", "ppl", {}, overwrite=True).read_json("rows.json") is None


@pytest.mark.parametrize("line", [b"[]", b"{}", b"3", b"{", b'{"id": "\xff"}'])
def test_a_damaged_line_is_named(tmp_path, line):
    run = open_run(tmp_path, "m", "ruler", {})
    (run.path / "samples.jsonl").write_bytes(b'{"id": "a"}\n' + line + b"\n")
    with pytest.raises(QFiltersError, match=r"samples\.jsonl, line 2, is damaged .*--overwrite"):
        run.read_jsonl("samples.jsonl", ["id"])
