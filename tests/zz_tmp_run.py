"""Break the kernels on purpose, one small edit at a time, and list the edits nobody notices.

    python tests/mutate_kernels.py [file ...]      # e.g. select.metal; all files without arguments

An edit is noticed if the checks that the tests run, or the emulator under them, report it. An edit
that goes unnoticed must be explained in `EQUIVALENT` of mutants_explained.py, else this exits 1.
"""

import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import mlx.core as mx

# Mutants are compiled once: keep them out of the cache of the tests.
_compiled = tempfile.TemporaryDirectory(prefix="mutants-")
os.environ["MSLEMU_CACHE"] = _compiled.name

from emulated import check_traffic, fused  # noqa: E402
from mslemu import EmulatorError, why_missing  # noqa: E402
from mutants_explained import EQUIVALENT  # noqa: E402

from qfilters.errors import QFiltersError  # noqa: E402
from qfilters.kernels import checks, texts  # noqa: E402

MSL = Path(texts.__file__).parent / "msl"
INCLUDE = re.compile(r'^#include "(\S+)"\n', re.M)
LIMIT_S = 90

EDITS = [
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \* ", " + "),
    (r"&&", "||"),
    (r"\|\|", "&&"),
    (r" \^ ", " | "),
    (r" & ", " | "),
    (r"~", ""),
    (r"\bmin\(([^,()]+), ([^,()]+)\)", r"\1"),
    (r"threadgroup_barrier\([^;]*;", ";"),
    (r"mem_threadgroup", "mem_none"),
    (r"exclusive_sum", "inclusive_sum"),
    (r"\blane == (0|31)\b", "lane == 7"),
    (r"\b255u", "127u"),
    (r"\b0x7FFFFFFF", "0x7FFFFFFE"),
    (r"\b0x7F800000u", "0x7F7FFFFFu"),
    (r"\b0xFFFFu", "0xFFFu"),
    (r"turn \^= 1u;", ""),
    (r"known \|=", "known ="),
    (r"mask = 16\b", "mask = 8"),
    (r"\+= 128\b", "+= 64"),
    (r"_strides\[[023]\]", "_strides[1]"),
    (r"_strides\[1\]", "_strides[0]"),
    (r"now\[\d\]", "now[0]"),
    (r"how\[\d\]", "how[3]"),
]

# Which checks look at which file; `common.metal` is in all kernels.
CHECKS = {
    "score.metal": ("scores", "special_scores", "decode"),
    "select.metal": ("selection", "decode"),
    "compact.metal": ("copies", "decode"),
    "replace.metal": ("scores", "special_scores", "decode"),
    "next_victim.metal": ("victims", "decode"),
    "worst.metal": ("victims", "decode"),
    "common.metal": ("special_scores", "selection", "victims", "scores", "decode"),
}


def mutants(name: str):
    """Line number, line, edit, and the text with it, for every place an edit applies to."""
    text = (MSL / name).read_text()
    code = re.sub(r"//[^\n]*", lambda found: " " * len(found[0]), text)
    for pattern, replacement in EDITS:
        for found in re.finditer(pattern, code):
            new = found.expand(replacement)
            if new == found[0]:
                continue
            line = text.count("\n", 0, found.start())
            edit = f"{found[0].strip()} -> {new.strip() or 'nothing'}"
            mutant = text[: found.start()] + new + text[found.end() :]
            yield line + 1, text.splitlines()[line].strip(), edit, mutant


def use(name: str, mutant: str) -> None:
    """From now on kernels have `mutant` in the place of the file `name`."""

    def read(file):
        text = mutant if file == name else (MSL / file).read_text()
        return INCLUDE.sub(lambda found: read(found[1]), text)

    texts.read = read


def notice(name: str) -> str:
    """What the tests say about the kernels in use, or an empty string."""
    try:
        kernels = fused(order="random")
        for check, run in checks.checks():
            if check.split(" ")[0] in CHECKS[name]:
                run(kernels)
        if name in ("score.metal", "compact.metal"):
            rounded = fused(rounded_grid=True)
            keys = mx.ones((1, 3, 5, 80), dtype=mx.float16)
            index = mx.broadcast_to(mx.arange(5, dtype=mx.int32), (1, 3, 5))
            rounded.project(keys, mx.ones((3, 80)))
            rounded.compact(keys, keys, index, index, index)
        check_traffic()
    except AssertionError as error:
        return str(error)[:90]
    except EmulatorError as error:
        return "compiler" if "compile failed" in str(error) else str(error).splitlines()[1][:90]
    except QFiltersError as error:
        return str(error)[:90]
    return ""


def judged(name: str, mutant: str) -> str:
    """`notice` in a process of its own, which an endless loop cannot hold up."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        use(name, mutant)
        os.write(writer, (notice(name) or "UNNOTICED").encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return answer or "no end, or a crash"


def main() -> int:
    if why_missing():
        print(why_missing())
        return 1
    total, unnoticed, unexplained = 0, 0, 0
    for name in sys.argv[1:] or CHECKS:
        for number, line, edit, mutant in mutants(name):
            answer = judged(name, mutant)
            total += 1
            if answer != "UNNOTICED":
                print(f"{name}:{number} {edit}: {answer}", flush=True)
                continue
            unnoticed += 1
            reason = EQUIVALENT.get((name, line, edit))
            unexplained += reason is None
            print(f"UNNOTICED {name}:{number} {edit}\n    {line}\n    {reason or '?'}", flush=True)
    print(f"{total - unnoticed} of {total} edits noticed, {unexplained} of the rest unexplained")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
