"""Many arms from one prefill against one prefill per arm: same prompts, same answers.

Six methods at three budgets and the full cache answer needle prompts of 1024 tokens, with a fixed
number of answer tokens for every arm. Both ways take turns in one run; their ratio is the result.
Also reported: the sweep against the full cache alone, its wall time per prompt, and the peak of
memory beyond the model, one dense cache and the arms' own rows.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import qfilters

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

from qfilters.fork import Arm
from qfilters.methods import make_method
from qfilters.plan import make_model_cache
from qfilters.platform import provenance
from qfilters.ruler import generate
from qfilters.ruler.answer import answer_arms
from qfilters.ruler.prompt import PromptFormat

METHODS = ("qfilters", "knorm", "streaming_llm", "keydiff", "snapkv", "random")
RATIOS = (1.11, 2, 4)


def timed(work, *arms):
    start = time.perf_counter()
    return work(*arms), time.perf_counter() - start


def _needed(model, arms, n: int) -> int:
    """Bytes of the model, of one dense cache, and of every arm's rows."""
    caches = make_model_cache(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    row = sum(x.nbytes // x.shape[2] for c in caches for x in (c.keys, c.values))
    rows = n + sum(n if arm.budget is None else arm.budget for arm in arms)
    return sum(x.nbytes for _, x in tree_flatten(model.parameters())) + row * rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--filters", default="artifacts/filters/smollm2-135m.npz")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    model, tokenizer = qfilters.load(options.model)
    filters = qfilters.Filters.load(options.filters)
    methods = [make_method(name) for name in METHODS]
    prompts = PromptFormat(tokenizer)
    limit, rounds = options.answer_tokens, []
    for sample in generate("niah_single_2", prompts.count, options.length, options.prompts):
        made = prompts.encode(sample.context, sample.question, sample.answer_prefix)
        n = len(made.context)
        arms = [Arm(m, int(n / r)) for r in RATIOS for m in methods]
        arms.append(Arm(make_method("none"), None))

        def sweep(*arms, made=made):
            evicting = list(dict.fromkeys(a.method for a in arms if a.method.evicts))
            done = qfilters.prefill(model, made.context, evicting, filters)
            return answer_arms(model, done, list(arms), made.rest, limit, set())

        mx.clear_cache()
        mx.reset_peak_memory()
        together, swept = timed(sweep, *arms)
        peak = mx.get_peak_memory()
        start = time.perf_counter()
        alone = [sweep(arm)[0] for arm in arms]
        separate = time.perf_counter() - start
        _, full = timed(sweep, arms[-1])
        same = sum(a.tokens == b.tokens for a, b in zip(together, alone, strict=True))
        rounds.append(
            {"sweep_s": swept, "one_by_one_s": separate, "full_s": full, "same_answers": same}
            | {"beyond_mb": (peak - _needed(model, arms, n)) / 1e6, "peak_mb": peak / 1e6}
        )
        print(
            f"sweep {swept:.1f} s, one by one {separate:.1f} s ({separate / swept:.2f} x), "
            f"full cache {full:.1f} s (sweep / full {swept / full:.2f}), "
            f"{same} of {len(arms)} answers identical, "
            f"{rounds[-1]['beyond_mb']:.0f} MB beyond model, dense cache and the arms' caches",
            flush=True,
        )
    ratios = sorted(r["one_by_one_s"] / r["sweep_s"] for r in rounds)
    to_full = sorted(r["sweep_s"] / r["full_s"] for r in rounds)
    result = {
        "arms": len(arms),
        "answer_tokens": limit,
        "context_tokens": n,
        "speedup": {"min": ratios[0], "median": statistics.median(ratios), "max": ratios[-1]},
        "over_full": {"min": to_full[0], "median": statistics.median(to_full), "max": to_full[-1]},
        "beyond_mb": max(r["beyond_mb"] for r in rounds),
        "rounds": rounds,
        "qfilters": provenance(),
    }
    print(
        json.dumps(
            {k: result[k] for k in ("arms", "answer_tokens", "speedup", "over_full", "beyond_mb")}
        )
    )
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
