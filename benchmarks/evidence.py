"""Measure every table of the documentation, one command after another, and go on where it stopped.

    python benchmarks/evidence.py                # what is missing or whose settings changed
    python benchmarks/evidence.py --list         # names, states, estimated minutes
    python benchmarks/evidence.py recent budget  # these only

All of it takes about an hour and a half on 2 cores. On a CPU a run keeps one core busy, so two
go side by side; where times are what is measured, nothing else runs. Which runs belong to which
table is kept in artifacts/results/evidence.json, where `qfilters report` finds them by name. Run
it from the root of a checkout.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from qfilters.errors import QFiltersError
from qfilters.files import atomic_write, lock

CONFIGS = Path("configs/evidence")
RESULTS = Path("artifacts/results")
PLAN = RESULTS / "evidence.json"
QFILTERS = [sys.executable, "-c", "from qfilters.cli import app; app()"]


class Item(NamedTuple):
    """One table: a command, its settings, and flags that are tried in turn."""

    name: str
    title: str
    command: str
    tokens: int  # fed to the model in all, prompts and answers included
    variants: tuple[str, ...] = ("",)
    timed: bool = False

    def words(self, variant: str = "") -> list[str]:
        config = str(CONFIGS / f"{self.name}.yaml")
        return [*self.command.split(), "--config", config, *shlex.split(variant)]

    @property
    def signature(self) -> str:
        text = (CONFIGS / f"{self.name}.yaml").read_bytes() + repr(self.words()).encode()
        return hashlib.sha256(text + repr(self.variants).encode()).hexdigest()[:12]

    def minutes(self, speed: float) -> float:
        return self.tokens / speed / 60


# From sequences of 1024 tokens, and of 4096: see artifacts/README.md.
FILTERS = ("smollm2-135m", "4096-smollm2-135m")
ONE_BY_ONE = 7  # what a token costs that has a forward pass to itself, in those of a prefill
# Texts x tokens x arms. RULER: what a prompt costs with the answers of all its arms, in the tokens
# that a prefill takes in as long: about 2500 of 1024 tokens and 16 arms, 2200 with 11 (measured).
ITEMS = (
    Item("geometry", "Synthetic heads, with drift and without", "study geometry", 0),
    Item("budget", "Equal rows for every arm, and no drift", "study budget", 16 * (1472 + 120 * 4)),
    Item("inspect", "What queries do, and what scores foresee", "inspect", 4 * 1024 * 2),
    Item(
        "chunks",
        "A context cut into chunks",
        "study chunks",
        4 * (8 * 1280 + 1024) + 2 * 1024,
        timed=True,
    ),
    Item(
        "recent",
        "Perplexity by recent window",
        "ppl",
        2 * 4 * 4 * 1024,
        tuple(f"--recent {n}" for n in (0, 32, 64, 96)),
    ),
    Item(
        "recent-exact",
        "Perplexity by recent window, one token per step",
        "ppl",
        2 * 2 * 4 * 512 * ONE_BY_ONE,
        tuple(f"--recent {n}" for n in (0, 32)),
    ),
    Item("ppl-1024", "Perplexity of 1024 tokens", "ppl", 37 * 4 * 1024),
    Item(
        "ruler-hard", "Tracing, counting and two-hop questions, 1024 tokens", "ruler", 4 * 5 * 2500
    ),
    Item("niah-1024", "Needles, 1024 tokens", "ruler", 8 * 5 * 2200),
    Item(
        "vt-chunks",
        "Variable tracking by prefill chunk",
        "ruler",
        3 * 5 * 2 * (1024 + 200),
        tuple(f"--prefill-step-size {n}" for n in (1024, 256, 64)),
    ),
    Item(
        "stability", "Filters from less and from other text", "study stability", (38 + 3 * 2) * 1024
    ),
    *(
        Item(
            f"reach-{length}",
            f"Filters from longer sequences, texts of {length} tokens",
            "ppl",
            2 * 3 * 4 * length,
            tuple(f"--filters artifacts/filters/{name}.npz" for name in FILTERS),
        )
        for length in (1024, 3500)
    ),
    Item("ppl-3500", "Perplexity of 3500 tokens", "ppl", 34 * 3500),
    Item(
        "ruler-hard-2048",
        "Tracing, counting and two-hop questions, 2048 tokens",
        "ruler",
        4 * 5 * 4500,
    ),
    Item("niah-2048", "Needles, 2048 tokens", "ruler", 8 * 5 * 4000),
)


def read_plan() -> dict:
    """What evidence.json says, every item there, those of other settings as not measured."""
    try:
        return _plan(json.loads(PLAN.read_text(encoding="utf-8")) if PLAN.is_file() else {})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{PLAN} is damaged ({error!r}): restore or remove it") from error


def _plan(known: dict) -> dict:
    plan = {}
    for item in ITEMS:
        old = known.get(item.name, {})
        command = f"python benchmarks/evidence.py {item.name}"
        plan[item.name] = {
            "title": item.title,
            "command": command,
            "settings": item.signature,
            "variants": list(item.variants),
            "runs": {},
        }
        if old.get("settings") == item.signature:
            plan[item.name]["runs"] = {
                variant: place
                for variant, place in old["runs"].items()
                if (RESULTS / place / "summary.json").is_file()
            }
    return plan


def write_plan(plan: dict) -> None:
    atomic_write(PLAN, json.dumps(plan, indent=1) + "\n")


def done(item: Item, plan: dict) -> bool:
    return set(plan[item.name]["runs"]) == set(item.variants)


def measure(item: Item, variant: str) -> str:
    """Run one command to its end; returns `<model>/<run>`."""
    words = item.words(variant)
    if item.command != "inspect":  # it is short, and always measured anew
        words.append("--resume")
    print(f"$ qfilters {shlex.join(words)}", flush=True)
    command = [*QFILTERS, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    place = None
    for line in process.stderr:
        sys.stderr.write(f"  {item.name}: {line}")
        if line.startswith("kept in "):
            place = Path(line.removeprefix("kept in ").strip())
    if process.wait() or place is None:
        raise SystemExit(f"qfilters {shlex.join(words)} failed (exit {process.returncode})")
    return "/".join(place.parts[-2:])


def show(plan: dict, speed: float, jobs: int) -> None:
    for item in ITEMS:
        state = "done" if done(item, plan) else "missing"
        print(f"{item.name:17}{state:9}{item.minutes(speed):5.1f} min")
    print(f"{total_minutes(ITEMS, speed, jobs):.0f} min in all, at {speed:g} tokens/s")


def total_minutes(items: list[Item], speed: float, jobs: int) -> float:
    """Minutes for these, the timed ones alone and the others `jobs` at a time."""
    return sum(item.minutes(speed) / (1 if item.timed else jobs) for item in items)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side; 1 on a GPU")
    parser.add_argument("--speed", type=float, default=100, help="tokens/s, for the estimates")
    args = parser.parse_args()
    if args.jobs < 1 or not args.speed > 0:
        parser.error("--jobs and --speed are at least 1 and above 0")
    plan = read_plan()
    if unknown := set(args.names) - set(plan):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(plan)}")
    if args.list:
        show(plan, args.speed, args.jobs)
        return
    folder = hold()
    write_plan(plan)
    todo = [i for i in ITEMS if (not args.names or i.name in args.names) and not done(i, plan)]
    print(f"about {total_minutes(todo, args.speed, args.jobs):.0f} min", flush=True)
    start = time.monotonic()
    lock, failed = threading.Lock(), threading.Event()

    def finish(item: Item) -> None:
        for variant in item.variants:
            if failed.is_set():
                return
            if variant in plan[item.name]["runs"]:
                continue
            try:
                place = measure(item, variant)
            except BaseException:
                failed.set()
                raise
            with lock:
                plan[item.name]["runs"][variant] = place
                write_plan(plan)
        print(f"== {item.name} done, {(time.monotonic() - start) / 60:.0f} min spent", flush=True)

    alone = [item for item in todo if item.timed]
    together = sorted((i for i in todo if not i.timed), key=lambda i: -i.tokens)
    for items, jobs in ((alone, 1), (together, args.jobs)):
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(finish, items))
    print(f"all {len(todo)} done in {(time.monotonic() - start) / 60:.1f} min")
    os.close(folder)


def hold() -> int:
    """Lock the results: two of these would write over what the other found."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    try:
        return lock(RESULTS)
    except QFiltersError:
        raise SystemExit(f"{RESULTS} is being filled by another {Path(__file__).name}") from None


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: go on with the same command")
