"""The five commands once, on a tiny model, in an empty folder: `python tests/smoke.py QFILTERS`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tiny import write_folder


def main(program: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder) / "tiny")
        (work := Path(folder) / "work").mkdir()

        def run(command: str, *words: str) -> str:
            options = ["--model", "../tiny", "--config", "smoke"]
            line = [str(Path(program).absolute()), command, *words, *options]
            print("qfilters", command, *words, *options, flush=True)
            return subprocess.run(
                line, cwd=work, check=True, stdout=subprocess.PIPE, text=True
            ).stdout

        run("calibrate")
        artifact = "artifacts/filters/tiny.npz"
        run("inspect", artifact)
        assert run("generate", "--filters", artifact), "no text was generated"
        rows = json.loads(run("ppl", "--filters", artifact, "--json"))["rows"]
        assert [r["method"] for r in rows[:2]] == ["none", "qfilters"], rows
        assert all(r["tokens_kept"] == r["budget"] for r in rows[1:]), rows
        cells = json.loads(run("ruler", "--filters", artifact, "--json"))["rows"]
        assert all(c["n_kept"] == int(c["size"]) for c in cells if c["size"] != "full"), cells
    print(f"smoke: {len(rows)} + {len(cells)} arms, all under their budget")


if __name__ == "__main__":
    main(sys.argv[1])
