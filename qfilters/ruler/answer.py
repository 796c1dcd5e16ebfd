"""Greedy answers of many arms, from one prefill or as streams, many to a batch. Knows no tasks."""

from dataclasses import dataclass

import mlx.core as mx

from ..batches import make_arms_cache, sort_arms
from ..cache import EvictingKVCache
from ..errors import QFiltersError
from ..feeding import feed
from ..filters import Filters
from ..fork import Arm, Prefill
from ..forked_cache import batch_rows
from ..prompt_cache import make_prompt_cache


@dataclass(frozen=True)
class Answer:
    """What one arm said.

    Attributes:
        tokens: new ids, without the one that ended it.
        finish: "stop" at an end token, "length" at the limit.
        kept: rows per KV head when the answer began, the mean over layers.
        seen: tokens they were chosen from: the context, in a stream all of the prompt but its end.
        evicted: whether rows were evicted, in a stream by the end of the answer.
    """

    tokens: list[int]
    finish: str
    kept: float
    seen: int
    evicted: bool


def greedy(
    model,
    caches: list,
    tokens: list[int],
    rows: int,
    max_tokens: int,
    eos: set[int],
    leave: bool = True,
) -> list[tuple[list[int], str]]:
    """Feed the same tokens to every batch row, then continue each until it ends by itself.

    Args:
        caches: with a batch of `rows`.
        eos: ids that end an answer.
        leave: arms that ended leave the batch; `ArmsKVCache` cannot do without a row.

    Returns:
        New ids and how it ended, for every row.

    Raises:
        QFiltersError: the model's logits are not finite.
    """
    said: list[list[int]] = [[] for _ in range(rows)]
    finish = ["length"] * rows
    # Row i of the batch is arm alive[i]; arms that ended leave the batch when they are half of it.
    alive, ended = list(range(rows)), set()
    fed = mx.array([tokens] * rows)
    if len(tokens) > 1:
        model(fed[:, :-1], cache=caches)
        # Without the logits of all but the last token, which nobody asks for.
        mx.eval([c.state for c in caches])
    logits = model(fed[:, -1:], cache=caches)[:, -1]
    if not mx.isfinite(logits).all().item():
        raise QFiltersError("the model's logits are not finite: try --dtype")
    for step in range(max_tokens):
        following = mx.argmax(logits, axis=-1)
        mx.eval(following, [c.state for c in caches])
        for arm, token in zip(alive, following.tolist(), strict=True):
            if arm in ended:
                continue
            if token in eos:
                finish[arm] = "stop"
                ended.add(arm)
            else:
                said[arm].append(token)
        if len(ended) == rows or step == max_tokens - 1:
            break
        going = [i for i, arm in enumerate(alive) if arm not in ended]
        if leave and 2 * len(going) <= len(alive):
            alive = [alive[i] for i in going]
            following = following[mx.array(going)]
            caches = batch_rows(caches, going)
        logits = model(following[:, None], cache=caches)[:, -1]
    return list(zip(said, finish, strict=True))


def answer_arms(
    model, done: Prefill, arms: list[Arm], rest: list[int], max_tokens: int, eos: set[int]
) -> list[Answer]:
    """Answers of all arms from one prefill, in the order of the arms.

    As many arms as `Prefill.batches` allows share their forward passes.

    Args:
        rest: ids after the context: question, template, answer prefix.
    """
    answers = {}
    for together in done.batches(arms):
        given = greedy(model, done.fork(together), rest, len(together), max_tokens, eos)
        for arm, (tokens, finish) in zip(together, given, strict=True):
            sizes = done.sizes(arm)
            kept = sum(sizes) / len(sizes)
            answers[arm] = Answer(tokens, finish, kept, done.length, kept < done.length)
    return [answers[arm] for arm in arms]


def answer_streams(
    model,
    arms: list[Arm],
    context: list[int],
    rest: list[int],
    max_tokens: int,
    eos: set[int],
    *,
    step_size: int | None = None,
    filters: Filters | None = None,
    use_kernel: bool | None = None,
) -> list[Answer]:
    """Arms as they are deployed: the budget holds after every forward pass, question included.

    Args:
        arms: of one batch, as `batches.arm_batches` puts them together.
        step_size: prompt tokens per forward pass; None means the platform's default.
        use_kernel: as `make_prompt_cache`, for an arm alone; several take the reference.
    """
    prompt, ordered = context + rest, sort_arms(arms)
    if len(arms) > 1:
        caches = make_arms_cache(model, ordered, filters)
    else:
        arm = arms[0]
        options = (arm.method, arm.budget, arm.sinks, arm.recent)
        caches = make_prompt_cache(model, *options, filters, use_kernel=use_kernel)
    feed(model, caches, prompt[:-1], step_size, len(arms))
    ours = [cache for cache in caches if isinstance(cache, EvictingKVCache)]
    seen, kept = ours[0].tokens_seen, sum(cache.tokens_kept for cache in ours) / len(ours)
    given = greedy(model, caches, prompt[-1:], len(arms), max_tokens, eos, leave=len(arms) == 1)
    answers = {}
    for arm, (said, finish) in zip(ordered, given, strict=True):
        # The last token of an answer that was cut off is not fed any more.
        fed = len(prompt) + len(said) - (finish == "length")
        evicted = any(cache.budget is not None and cache.budget < fed for cache in ours)
        answers[arm] = Answer(said, finish, kept, seen, evicted)
    return [answers[arm] for arm in arms]
