"""One command for a Mac or an NVIDIA machine: prove the kernels equal, then time them.

    python benchmarks/gpu.py                 # from a checkout, with qfilters installed
    python benchmarks/gpu.py --repeats 50 --dtype bfloat16

Every equality check of the tests runs on the device first; nothing is timed unless all pass. The
figures are kept under artifacts/results, where `qfilters report` shows them.
"""

import argparse
import sys
from pathlib import Path

from qfilters.bench_kernels import DTYPES, bench_cells, bench_kernels, keep_bench
from qfilters.errors import QFiltersError
from qfilters.kernels import choose_kernels
from qfilters.kernels.checks import checks
from qfilters.platform import provenance


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="float16")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("artifacts/results"))
    args = parser.parse_args()
    print(*(f"{name} {value}" for name, value in provenance().items()), sep=", ")
    try:
        kernels = choose_kernels(True)
        failed = 0
        for name, check in checks():
            try:
                check(kernels)
                print(f"equal      {name}", flush=True)
            except QFiltersError as error:
                failed += 1
                print(f"DIFFERENT  {name}: {error}", flush=True)
        if failed:
            print(f"{failed} checks failed on {kernels.name}: nothing is timed")
            return 1
        rows, passed = bench_kernels(args.dtype, args.repeats, watch=print)
    except QFiltersError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    columns, cells = bench_cells(rows)
    for what, path, *figures in [columns, *cells]:
        print(f"{what:27}{path:17}" + "".join(f"{figure:>10}" for figure in figures))
    command = ["python", "benchmarks/gpu.py", *sys.argv[1:]]
    print(f"{passed} checks passed; kept in {keep_bench(rows, passed, args.results, command)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
