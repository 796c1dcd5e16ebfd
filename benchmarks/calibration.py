"""Calibration against the forward passes alone: the same tokens, the same steps, taken in turns.

The forward passes evaluate what mlx-lm's prefill evaluates, the caches and no logits, so the ratio
is the price of watching the queries, adding up their moments and finding the directions.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import qfilters

# isort: split
from qfilters.feeding import feed
from qfilters.plan import make_model_cache
from qfilters.platform import default_prefill_step_size, provenance
from qfilters.text import load_corpus, token_rows


def forward(model, rows, step: int) -> None:
    for row in rows:
        feed(model, make_model_cache(model), row, step)


def seconds(work, *args, **options) -> tuple[float, float]:
    """Wall time, and processor time, which other programs on the machine disturb less."""
    wall, cpu = time.perf_counter(), time.process_time()
    work(*args, **options)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1024, help="per row")
    parser.add_argument("--step-size", type=int, default=default_prefill_step_size())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    args = parser.parse_args()

    model, tokenizer = qfilters.load(args.model)
    corpus = load_corpus("builtin", "calibration")
    rows = token_rows(corpus, tokenizer, args.rows, args.tokens)
    step = args.step_size
    forward(model, rows[:1], step)
    pairs = []
    for _ in range(args.repeats):
        plain = seconds(forward, model, rows, step)
        full = seconds(qfilters.calibrate, model, tokenizer, rows, step_size=step)
        for kind, one, both in zip(("wall", "processor"), plain, full, strict=True):
            pairs.append({"kind": kind, "forward_s": one, "calibrate_s": both, "ratio": both / one})
            print("{kind}: {forward_s:.2f} s, {calibrate_s:.2f} s".format(**pairs[-1]), flush=True)
    print(f"{args.rows} x {args.tokens} tokens, steps of {step}: calibration takes")
    for kind in ("wall", "processor"):
        ratios = [pair["ratio"] for pair in pairs if pair["kind"] == kind]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(f"{middle:.3f} times the forward passes ({kind} time, {low:.3f} to {high:.3f})")
    if args.output:
        settings = {"model": args.model, "rows": args.rows, "tokens": args.tokens, "step": step}
        made = {**settings, "pairs": pairs, "qfilters": provenance()}
        args.output.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
