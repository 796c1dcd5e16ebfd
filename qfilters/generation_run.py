"""One `qfilters generate`: settings in, a stream of text, then a record of what happened."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .cache import EvictingKVCache
from .generate import GenerationStats, chat_prompt, stream_text
from .inspection import plan_rows, plan_summary
from .methods import Method
from .platform import provenance
from .prompt_cache import kernels_for, make_prompt_cache
from .results import document, open_run
from .session import RESULTS, Session, filters_sha256


@dataclass
class GenerationRun:
    """A prompt, its caches, and the statistics once the stream has ended."""

    session: Session
    method: Method
    budget: int
    prompt: list[int]
    caches: list
    command: list[str]
    stats: GenerationStats = field(default_factory=GenerationStats)

    def stream(self) -> Iterator[str]:
        """The text, piece by piece."""
        from mlx_lm.sample_utils import make_sampler

        s = self.session.settings
        if s.seed is not None:
            import mlx.core as mx

            mx.random.seed(s.seed)
        sampler = make_sampler(temp=s.temp, top_p=s.top_p, min_p=s.min_p, top_k=s.top_k)
        yield from stream_text(
            self.session.model,
            self.session.tokenizer,
            self.prompt,
            self.caches,
            self.stats,
            max_tokens=s.max_tokens,
            sampler=sampler,
            prefill_step_size=s.prefill_step_size,
        )

    @property
    def protected(self) -> dict:
        """Sinks and recent rows in force; None where nothing is evicted."""
        ours = next(c for c in self.caches if isinstance(c, EvictingKVCache))
        evicts = self.method.evicts
        return {
            "sinks": ours.sinks if evicts else None,
            "recent": ours.recent if evicts else None,
        }

    def document(self, text: str) -> dict:
        """The `--json` document: one row with the text and all statistics."""
        stats = self.stats
        row = {
            "method": str(self.method),
            "budget": self.budget if self.method.evicts else None,
            **self.protected,
            "text": text,
            "prompt_tokens": stats.prompt_tokens,
            "generated_tokens": stats.generated_tokens,
            "finish_reason": stats.finish_reason,
            "ttft_s": stats.ttft_s,
            "decode_tps": stats.decode_tps,
            "peak_memory_gb": stats.peak_memory_gb,
            **stats.account,
        }
        facts = {**provenance(), "command": self.command, "plan": plan_rows(self.session.model)}
        if self.method.needs_filters:
            facts["filters_sha256"] = filters_sha256(self.session.filters)
        return document([row], facts)

    def keep(self, made: dict):
        """Write the document into its result folder; returns the folder."""
        config = self.session.settings.as_dict()
        run = open_run(RESULTS, self.session.model_id, "generate", config, overwrite=True)
        run.write_json("summary.json", made)
        return run.path


def open_generation(session: Session, method: Method, command: list[str]) -> GenerationRun:
    """Load the model, find the filters, tokenise the prompt, make the caches."""
    s = session.settings
    # What can be refused is refused before a model is loaded.
    kernels_for(method, s.use_kernel)
    if method.needs_filters:
        _ = session.named_filters
    for token in s.extra_eos_token:
        session.tokenizer.add_eos_token(token)
    prompt = chat_prompt(
        session.tokenizer,
        s.prompt,
        system_prompt=s.system_prompt,
        ignore_chat_template=s.ignore_chat_template,
        chat_template_config=s.chat_template_config,
    )
    (budget,) = s.budgets_for(len(prompt))
    if method.needs_filters:
        session.note_reach(len(prompt) + s.max_tokens)
    caches = make_prompt_cache(
        session.model,
        method=method,
        budget=budget,
        sinks=s.sinks,
        recent=s.recent,
        filters=session.filters if method.needs_filters else None,
        use_kernel=s.use_kernel,
    )
    return GenerationRun(session, method, budget, prompt, caches, command)


def statistics_lines(run: GenerationRun) -> list[str]:
    """What happened, for a person: speed, rows, bytes, and layers that were left alone."""
    s, a = run.stats, run.stats.account
    speed = "-" if s.decode_tps is None else f"{s.decode_tps:.1f} tokens/s"
    lines = [
        f"Prompt: {s.prompt_tokens} tokens, TTFT {s.ttft_s:.2f} s",
        f"Generation: {s.generated_tokens} tokens, {speed}, ended by {s.finish_reason}",
        f"Cache: {a['tokens_kept']}/{a['tokens_seen']} rows kept per head, "
        f"{a['cache_bytes'] / 1e6:.2f} MB held, room for more rows included; all rows would fill "
        f"{a['full_cache_bytes'] / 1e6:.2f} MB, the fullest moment {a['peak_bytes'] / 1e6:.2f}",
        f"Peak memory: {s.peak_memory_gb:.3f} GB",
    ]
    if a["nan_rows"]:
        lines.append(f"{a['nan_rows']} rows had a score that is not a number and went first")
    if a["kernel"] != "reference":
        lines.append(f"Kernels: {a['kernel']}")
    if not a["rows_evicted"]:
        lines.append("Nothing was evicted: the text fits the budget")
    if a["layers_untouched"]:
        lines.append(plan_summary(plan_rows(run.session.model)))
    return lines
