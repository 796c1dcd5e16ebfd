"""Perplexity of several methods at one budget: together in one batch, one by one, and one alone.

Every round measures all of them, so that a busy machine disturbs them alike; what counts is the
ratio within a round. Also said: how far the numbers of the two ways are apart.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import qfilters

# isort: split
import mlx.core as mx
import numpy as np

from qfilters import Filters, evaluate_ppl
from qfilters.arms import split_methods
from qfilters.batches import arm_batches
from qfilters.fork import Arm
from qfilters.platform import provenance
from qfilters.ppl import evaluate_arms
from qfilters.prompt_cache import as_method
from qfilters.text import load_corpus, token_rows

METHODS = "qfilters,qfilters_mean,knorm,streaming_llm,random,keydiff,h2o,snapkv"


def timed(work, *args, **options):
    start = time.perf_counter()
    found = work(*args, **options)
    return time.perf_counter() - start, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--filters", default="artifacts/filters/smollm2-135m.npz")
    parser.add_argument("--method", default=METHODS)
    parser.add_argument("--budget", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=193)
    parser.add_argument("--step-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    args = parser.parse_args()

    model, tokenizer = qfilters.load(args.model)
    rows = token_rows(load_corpus("builtin", "evaluation"), tokenizer, 1, args.tokens)
    how = {"step_size": args.step_size, "filters": Filters.load(args.filters)}
    arms = [Arm(as_method(spec), args.budget) for spec in split_methods(args.method)]
    [arms] = arm_batches(model, arms, args.tokens - 1)
    evaluate_arms(model, [rows[0][:40]], arms, **how)
    rounds, apart = [], 0.0
    for _ in range(args.repeats):
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        together, found = timed(evaluate_arms, model, rows, arms, **how)
        peak = mx.get_peak_memory() - before
        single = {}
        for arm, batched in zip(arms, found, strict=True):
            name = str(arm.method)
            options = {"method": arm.method, "budget": arm.budget, **how}
            single[name], result = timed(evaluate_ppl, model, rows, **options)
            apart = max(apart, abs(result.nll[0] - batched.nll[0]) / result.n_tokens[0])
        made = {
            "together_s": together,
            "one_by_one_s": sum(single.values()),
            "times_first": together / single[str(arms[0].method)],
            "of_one_by_one": together / sum(single.values()),
            "peak_mb": peak / 1e6,
            "single_s": single,
        }
        rounds.append(made)
        times = "together {together_s:.1f} s, one by one {one_by_one_s:.1f} s".format(**made)
        ratios = "{times_first:.2f} x the first arm, {of_one_by_one:.2f} x all".format(**made)
        print(f"{times}: {ratios}; at most {peak / 1e6:.0f} MB beyond the model", flush=True)
    print(f"{len(arms)} arms, budget {args.budget}, steps of {args.step_size}:")
    for name, text in (("times_first", f"x {arms[0].method} alone"), ("of_one_by_one", "x all")):
        found = [made[name] for made in rounds]
        print(f"{np.min(found):.2f} {statistics.median(found):.2f} {np.max(found):.2f} {text}")
    print(f"NLL at most {apart:.1e} nat/token apart")
    if args.output:
        settings = {k: v for k, v in vars(args).items() if k not in ("output", "filters")}
        made = {**settings, "rounds": rounds, "nll_apart": apart, "qfilters": provenance()}
        args.output.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
