"""Measure every table of the documentation, one command after another, and go on where it stopped.

    python benchmarks/evidence.py                # what is missing or whose settings changed
    python benchmarks/evidence.py --all          # and the extra ones, half an hour more
    python benchmarks/evidence.py --list         # names, states, estimated minutes
    python benchmarks/evidence.py recent budget  # these only

Without the extra ones it takes about an hour and a half on 2 cores. Which runs belong to which
table is kept in artifacts/results/evidence.json, where `qfilters report` finds them by name. Run it
from the root of a checkout.
"""

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

CONFIGS = Path("configs/evidence")
RESULTS = Path("artifacts/results")
PLAN = RESULTS / "evidence.json"
QFILTERS = [sys.executable, "-c", "from qfilters.cli import app; app()"]


class Item(NamedTuple):
    """One table: a command, its settings, and flags that are tried in turn."""

    name: str
    command: str
    tokens: int  # fed to the model in all, prompts and answers included
    variants: tuple[str, ...] = ("",)
    extra: bool = False

    def words(self, variant: str = "") -> list[str]:
        config = str(CONFIGS / f"{self.name}.yaml")
        return [*self.command.split(), "--config", config, *shlex.split(variant)]

    @property
    def signature(self) -> str:
        text = (CONFIGS / f"{self.name}.yaml").read_bytes() + repr(self.words()).encode()
        return hashlib.sha256(text + repr(self.variants).encode()).hexdigest()[:12]

    def minutes(self, speed: float) -> float:
        return self.tokens / speed / 60


# Texts x tokens x arms. RULER: what a prompt costs with the answers of all its arms, in the tokens
# that a prefill takes in as long: about 2500 of 1024 tokens and 15 arms (measured), fewer for 9.
ITEMS = (
    Item("geometry", "study geometry", 0),
    Item("budget", "study budget", 16 * (1472 + 120 * 4)),
    Item("inspect", "inspect", 4 * 1024 * 2),
    Item("chunks", "study chunks", 4 * (8 * 1280 + 1024) + 2 * 1024),
    Item("recent", "ppl", 2 * 4 * 4 * 1024, tuple(f"--recent {n}" for n in (0, 32, 64, 96))),
    Item("ppl-1024", "ppl", 37 * 4 * 1024),
    Item("ruler-hard", "ruler", 4 * 5 * 2500),
    Item("niah-1024", "ruler", 8 * 5 * 2500),
    Item(
        "vt-chunks",
        "ruler",
        3 * 5 * 3 * (1024 + 100),
        tuple(f"--prefill-step-size {n}" for n in (1024, 256, 64)),
    ),
    Item("stability", "study stability", (38 + 3 * 2) * 1024),
    Item("ppl-3500", "ppl", 13 * 3500),
    Item("ppl-3500-others", "ppl", 25 * 3500, extra=True),
    Item("ruler-hard-2048", "ruler", 4 * 5 * 4500, extra=True),
    Item("niah-2048", "ruler", 3 * 5 * 4500, extra=True),
)


def read_plan() -> dict:
    """What evidence.json says, every item there, those of other settings as not measured."""
    known = json.loads(PLAN.read_text(encoding="utf-8")) if PLAN.is_file() else {}
    plan = {}
    for item in ITEMS:
        old = known.get(item.name, {})
        command = f"python benchmarks/evidence.py {item.name}"
        plan[item.name] = {
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
    PLAN.parent.mkdir(parents=True, exist_ok=True)
    temporary = PLAN.with_suffix(".new")
    temporary.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    temporary.replace(PLAN)


def done(item: Item, plan: dict) -> bool:
    return set(plan[item.name]["runs"]) == set(item.variants)


def measure(item: Item, variant: str) -> str:
    """Run one command to its end; returns `<model>/<run>`."""
    words = item.words(variant)
    if item.command != "inspect":  # it is short, and always measured anew
        words.append("--resume")
    print(f"$ qfilters {shlex.join(words)}", flush=True)
    process = subprocess.Popen([*QFILTERS, *words], stderr=subprocess.PIPE, text=True)
    place = None
    for line in process.stderr:
        sys.stderr.write(f"  {line}")
        if line.startswith("kept in "):
            place = Path(line.removeprefix("kept in ").strip())
    if process.wait() or place is None:
        raise SystemExit(f"qfilters {shlex.join(words)} failed (exit {process.returncode})")
    return "/".join(place.parts[-2:])


def show(plan: dict, speed: float) -> None:
    for item in ITEMS:
        state = "done" if done(item, plan) else "extra" if item.extra else "missing"
        print(f"{item.name:17}{state:9}{item.minutes(speed):5.1f} min")
    total = sum(item.minutes(speed) for item in ITEMS if not item.extra)
    print(f"{total:.0f} min without the extra ones, at {speed:g} tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--all", action="store_true", help="the extra ones too")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--speed", type=float, default=100, help="tokens/s, for the estimates")
    args = parser.parse_args()
    plan = read_plan()
    if unknown := set(args.names) - set(plan):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(plan)}")
    if args.list:
        show(plan, args.speed)
        return
    write_plan(plan)
    wanted = [i for i in ITEMS if (i.name in args.names if args.names else args.all or not i.extra)]
    todo = [item for item in wanted if not done(item, plan)]
    left = sum(item.minutes(args.speed) for item in todo)
    start = time.monotonic()
    for number, item in enumerate(todo, start=1):
        spent = (time.monotonic() - start) / 60
        where = f"{number}/{len(todo)} {item.name}"
        print(f"== {where}: {spent:.0f} min spent, about {left:.0f} left", flush=True)
        runs = plan[item.name]["runs"]
        for variant in item.variants:
            if variant not in runs:
                runs[variant] = measure(item, variant)
                write_plan(plan)
        left -= item.minutes(args.speed)
    print(f"all {len(todo)} done in {(time.monotonic() - start) / 60:.1f} min")


if __name__ == "__main__":
    main()
