"""How fast, and in how much memory, a model decodes: a full cache, mlx-lm's remedies, our methods.

Every round runs all contenders once, so that a busy machine disturbs them alike, and what is
compared are ratios within a round. All go through mlx-lm's own loop. A prompt is processed once per
contender; every round decodes from a copy of what that left behind, at the same context length.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import QuantizedKVCache, RotatingKVCache

from .arms import MethodSpec
from .errors import UsageError
from .filters import Filters
from .methods import make_method
from .plan import evicting_layers, make_model_cache
from .platform import default_prefill_step_size
from .prompt_cache import make_prompt_cache
from .stats import median_interval

WITHOUT_BUDGET = ("none", "quantized")
BASELINES = ("none", "rotating", "quantized")


@dataclass(frozen=True)
class Contender:
    """A way to keep the cache: `path` as the user named it, and `make`, which gives new caches."""

    path: str
    budget: int | None
    make: Callable[[], list]


def contenders(
    model,
    specs: list[MethodSpec],
    budgets: list[int],
    filters: Filters | None = None,
    **cache_options,
) -> list[Contender]:
    """What is named, at every budget; what has none counts once.

    Args:
        model: an mlx-lm model.
        specs: `none` is mlx-lm's own caches; `rotating` its `RotatingKVCache` and `quantized`, with
            options `bits` and `group_size`, its `QuantizedKVCache` in the layers that can evict;
            anything else is a method.
        budgets: rows per KV head and layer.
        filters, cache_options: as `make_prompt_cache`.

    Raises:
        UsageError, FilterError, ModelError: as `make_prompt_cache`, before anything is timed.
    """
    made = []
    for spec in specs:
        for budget in (None,) if spec.name in WITHOUT_BUDGET else budgets:
            options = {"budget": budget, "filters": filters, **cache_options}
            theirs = spec.name in BASELINES
            make = _theirs(model, spec, budget) if theirs else _ours(model, spec, options)
            make()
            made.append(Contender(spec.label, budget, make))
    return made


def check_contenders(specs: list[MethodSpec]) -> bool:
    """UsageError for unknown names and options; whether filters are needed."""
    methods = [make_method(*spec) for spec in specs if spec.name not in BASELINES]
    for spec in specs:
        known = {"bits", "group_size"} if spec.name == "quantized" else set()
        if spec.name in BASELINES and spec.options.keys() - known:
            wrong = sorted(spec.options.keys() - known)[0]
            raise UsageError(f"{spec.name} has no option {wrong!r}")
    return any(method.needs_filters for method in methods)


def _ours(model, spec, options):
    return lambda: make_prompt_cache(model, make_method(*spec), **options)


def _theirs(model, spec, budget):
    layers = evicting_layers(model, what=spec.label)
    quantized = {"group_size": 64, "bits": 8, **spec.options}
    size = quantized["group_size"]
    if spec.name == "quantized" and any(plan.head_dim % size for plan in layers):
        raise UsageError(
            f"quantized(group_size={size}) does not divide this model's heads of "
            f"{layers[0].head_dim}: leave it out, or give another group_size (32, 64 or 128)"
        )

    def make():
        caches = make_model_cache(model)
        if spec.name == "none":
            return caches
        for plan in layers:
            caches[plan.index] = (
                RotatingKVCache(max_size=budget, keep=4)
                if spec.name == "rotating"
                else QuantizedKVCache(**quantized)
            )
        return caches

    return make


def bench_decode(
    model,
    contenders: list[Contender],
    prompts: list[list[int]],
    generated: int = 100,
    rounds: int = 5,
    prefill_step_size: int | None = None,
    watch: Callable[[str], None] = lambda what: None,
) -> list[dict]:
    """Time all contenders at every prompt.

    Args:
        model: an mlx-lm model.
        contenders: the first one at the same context is what `x_first` compares with.
        prompts: token ids, one list per context length.
        generated: tokens to decode per round, >= 2.
        rounds: >= 3.
        prefill_step_size: tokens per forward pass; None means the platform's default.
        watch: told what is timed next.

    Returns:
        A row per contender and prompt: `context` (prompt tokens), `path`, `budget`, `generated`,
        `ttft_s` (one prefill and the first token, once: the first
        contender also pays what warms up), `tps` (tokens/s after the first token, median)
        with `tps_min` and `tps_max`, `peak_mb` (most memory beyond what was there, until the
        first token), `held_mb` (arrays of the caches at the end), `x_first` with `_low` and `_high`
        (median of the ratios to the first contender, round by round, and its 95 % bootstrap
        interval), `x_rotating` likewise to `rotating` at the same budget, and `tps_rounds`.

    Raises:
        UsageError: too few rounds or tokens, or a prompt below 2 tokens.
    """
    if rounds < 3 or generated < 2 or min(map(len, prompts)) < 2:
        raise UsageError(
            "a benchmark needs 3 rounds, 2 new tokens and prompts of 2 tokens at least"
        )
    step, rows = prefill_step_size or default_prefill_step_size(), []
    for prompt in prompts:
        ready = {}
        for one in contenders:
            watch(f"{_name(one)}: prompt of {len(prompt)} tokens")
            ready[one] = _prefill(model, one, prompt, step)
        speeds, held = {one: [] for one in contenders}, {}
        for turn in range(rounds):
            watch(f"context {len(prompt)}: round {turn + 1} of {rounds}")
            # Back and forth, so that a machine that slows down favours nobody.
            for one in contenders[:: -1 if turn % 2 else 1]:
                caches = copy.deepcopy(ready[one][0])
                speeds[one].append(_decode(model, caches, prompt[-1], generated))
                held[one] = sum(cache.nbytes for cache in caches)
        for one in contenders:
            _, ttft, peak = ready[one]
            row = {"context": len(prompt), "path": one.path, "budget": one.budget}
            row |= {"generated": generated, "ttft_s": ttft}
            row |= {"tps": statistics.median(speeds[one])}
            row |= {"tps_min": min(speeds[one]), "tps_max": max(speeds[one])}
            row |= {"peak_mb": peak / 1e6, "held_mb": held[one] / 1e6}
            same = [c for c in contenders if (c.path, c.budget) == ("rotating", one.budget)]
            for name, other in (("x_first", contenders[:1]), ("x_rotating", same)):
                row |= _ratio(name, speeds[one], speeds[other[0]]) if other else {}
            rows.append({**row, "tps_rounds": speeds[one]})
    return rows


def _name(one):
    return one.path if one.budget is None else f"{one.path} {one.budget}"


def _prefill(model, one, prompt, step):
    """Caches after a prompt and its first new token, seconds to it, peak bytes until then."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    caches, start = one.make(), time.perf_counter()
    made = generate_step(
        mx.array(prompt), model, max_tokens=1, prompt_cache=caches, prefill_step_size=step
    )
    next(made)
    seconds, peak = time.perf_counter() - start, mx.get_peak_memory() - before
    mx.synchronize()
    return caches, seconds, peak


def _decode(model, caches, token, count):
    """Tokens/s after the first of `count`, in mlx-lm's loop."""
    made = generate_step(mx.array([token]), model, max_tokens=count, prompt_cache=caches)
    next(made)
    start = time.perf_counter()
    for _ in made:
        pass
    return (count - 1) / (time.perf_counter() - start)


def _ratio(name, speeds, others):
    ratios = [a / b for a, b in zip(speeds, others, strict=True)]
    middle, low, high = median_interval(ratios)
    return {name: middle, f"{name}_low": low, f"{name}_high": high}
