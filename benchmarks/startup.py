"""How long the command line takes to answer: `--help`, and `inspect` of a filter file, no model."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qfilters.platform import provenance

QFILTERS = [sys.executable, "-c", "from qfilters.cli import app; app()"]


def seconds(*words: str) -> float:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*QFILTERS, *words], cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", type=Path, default="artifacts/filters/smollm2-135m.npz")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    commands = {"--help": ["--help"], "inspect FILE": ["inspect", str(options.filters.resolve())]}
    result = {"qfilters": provenance()}
    for name, words in commands.items():
        times = [seconds(*words) for _ in range(options.repeats)]
        median = statistics.median(times)
        result[name] = {"min": min(times), "median": median, "max": max(times)}
        print(f"{name}: {min(times):.2f} / {median:.2f} / {max(times):.2f} s (min, median, max)")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
