"""Text generated under a budget: mlx-lm's own loop, our caches, and what happened in numbers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import mlx.core as mx

from .errors import UsageError
from .platform import default_prefill_step_size
from .prompt_cache import account


@dataclass
class GenerationStats:
    """What a generation took. Filled while the text streams, complete when it ends.

    Attributes:
        prompt_tokens, generated_tokens: counts, the end token not included.
        ttft_s: seconds from the start of the prefill to the first token.
        decode_tps: tokens per second after the first, the end token included; None below two.
        peak_memory_gb: MLX's peak, decimal.
        finish_reason: "stop" or "length".
        account: `prompt_cache.account` of the caches.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    ttft_s: float = 0.0
    decode_tps: float | None = None
    peak_memory_gb: float = 0.0
    finish_reason: str | None = None
    account: dict = field(default_factory=dict)


def chat_prompt(
    tokenizer,
    prompt: str,
    *,
    system_prompt: str | None = None,
    ignore_chat_template: bool = False,
    chat_template_config: dict | None = None,
) -> list[int]:
    """Token ids of a prompt: through the chat template where there is one, with one BOS.

    Raises:
        UsageError: an empty prompt, or a system prompt where no template can carry it, or anything
            else that the template refuses.
    """
    if ignore_chat_template or not tokenizer.has_chat_template:
        if system_prompt:
            raise UsageError("--system-prompt needs a chat template, and none is in use")
        bos = tokenizer.bos_token
        ids = tokenizer.encode(prompt, add_special_tokens=not (bos and prompt.startswith(bos)))
    else:
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        messages = [*system, {"role": "user", "content": prompt}]
        options = {"add_generation_prompt": True, **(chat_template_config or {})}
        try:
            ids = tokenizer.apply_chat_template(messages, return_dict=False, **options)
        except Exception as error:  # a template is a program of its own
            raise UsageError(f"the chat template refuses this prompt: {error}") from error
    if not ids:
        raise UsageError("the prompt is empty: give some text with --prompt")
    return list(ids)


def stream_text(
    model,
    tokenizer,
    prompt: list[int],
    caches: list,
    stats: GenerationStats,
    *,
    max_tokens: int = 100,
    sampler=None,
    prefill_step_size: int | None = None,
) -> Iterator[str]:
    """Yield text as it is generated and fill `stats`.

    Args:
        model, tokenizer: as `qfilters.load` or `mlx_lm.load` return them.
        prompt: token ids.
        caches: as `make_prompt_cache` returns them; may hold an earlier conversation.
        stats: filled as the text comes.
        max_tokens: the most tokens to generate, >= 1.
        sampler: as `mlx_lm.sample_utils.make_sampler` makes it; None is greedy.
        prefill_step_size: prompt tokens per forward pass; None means the platform's default.
    """
    from mlx_lm import stream_generate

    step = prefill_step_size or default_prefill_step_size()
    first = response = None
    stats.prompt_tokens = len(prompt)
    mx.reset_peak_memory()
    start = time.perf_counter()
    responses = stream_generate(
        model,
        tokenizer,
        prompt,
        max_tokens=max_tokens,
        sampler=sampler,
        prompt_cache=caches,
        prefill_step_size=step,
    )
    try:
        for response in responses:
            last = time.perf_counter()
            first = first or last
            stats.finish_reason = response.finish_reason
            stats.generated_tokens = response.generation_tokens - (response.finish_reason == "stop")
            if response.text:
                yield response.text
    finally:
        # Also when the reader stops early: then these are the numbers up to there.
        if response:
            stats.ttft_s = first - start
            if response.generation_tokens > 1:
                stats.decode_tps = (response.generation_tokens - 1) / (last - first)
            stats.peak_memory_gb = mx.get_peak_memory() / 1e9
            stats.account = account(caches)
