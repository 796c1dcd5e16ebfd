"""Many tokens under a budget on a tiny random model: what is held and in use must not grow.

Decodes in mlx-lm's own loop, and prints the rows and bytes held and the memory in use as it goes.
"""

import argparse
import sys
import time
from pathlib import Path

import qfilters

# isort: split
import mlx.core as mx
from mlx_lm.generate import generate_step

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="knorm")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=20_000)
    args = parser.parse_args()

    model = tiny.make(max_position_embeddings=10 * args.tokens)
    caches = qfilters.make_prompt_cache(model, method=args.method, budget=args.budget)
    steps = generate_step(mx.array([1, 2, 3]), model, max_tokens=args.tokens, prompt_cache=caches)
    start, seen = time.perf_counter(), set()
    for i, _ in enumerate(steps, 1):
        if i % (args.tokens // 10) == 0:
            mx.synchronize()
            rows = caches[0].state[0][0].shape[2]
            held, used = sum(c.nbytes for c in caches), mx.get_active_memory()
            seen.add((rows, held))
            print(f"{i:6} tokens: {rows} rows, {held} bytes held, {used} in use", flush=True)
    print(f"{args.tokens / (time.perf_counter() - start):.0f} tokens/s")
    if len(seen) != 1 or rows != args.budget + 1:
        sys.exit("what is held changed")


if __name__ == "__main__":
    main()
