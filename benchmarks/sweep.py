"""Many arms from one prefill against one prefill per arm: same prompts, same answers.

Six methods at three budgets and the full cache answer needle prompts of 1024 tokens, with a fixed
number of answer tokens for every arm. Both ways take turns in one run; their ratio is the result.
Also reported: the sweep against the full cache alone, and its wall time per prompt.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import qfilters

# isort: split
from qfilters.fork import Arm
from qfilters.methods import make_method
from qfilters.platform import provenance
from qfilters.ruler import generate
from qfilters.ruler.answer import answer_arms
from qfilters.ruler.prompt import PromptFormat

METHODS = ("qfilters", "knorm", "streaming_llm", "keydiff", "snapkv", "random")
RATIOS = (1.11, 2, 4)


def timed(work, *arms):
    start = time.perf_counter()
    return work(*arms), time.perf_counter() - start


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

        together, swept = timed(sweep, *arms)
        start = time.perf_counter()
        alone = [sweep(arm)[0] for arm in arms]
        separate = time.perf_counter() - start
        _, full = timed(sweep, arms[-1])
        same = sum(a.tokens == b.tokens for a, b in zip(together, alone, strict=True))
        rounds.append(
            {"sweep_s": swept, "one_by_one_s": separate, "full_s": full, "same_answers": same}
        )
        print(
            f"sweep {swept:.1f} s, one by one {separate:.1f} s ({separate / swept:.2f} x), "
            f"full cache {full:.1f} s (sweep / full {swept / full:.2f}), "
            f"{same} of {len(arms)} answers identical",
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
        "rounds": rounds,
        "qfilters": provenance(),
    }
    print(json.dumps({k: result[k] for k in ("arms", "answer_tokens", "speedup", "over_full")}))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
