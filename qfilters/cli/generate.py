"""qfilters generate: text from a cache that stays under a budget."""

import sys

from . import options as o
from .console import command_words, note, out, print_defaults, progress


def generate(
    prompt: o.Prompt = None,
    model: o.Model = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    method: o.Method = None,
    budget: o.Budget = None,
    compression_ratio: o.CompressionRatio = None,
    sinks: o.Sinks = None,
    recent: o.Recent = None,
    kernel: o.Kernel = None,
    filters: o.Filters = None,
    auto_calibrate: o.AutoCalibrate = None,
    prefill_step_size: o.PrefillStepSize = None,
    prompt_file: o.PromptFile = None,
    system_prompt: o.SystemPrompt = None,
    ignore_chat_template: o.IgnoreChatTemplate = None,
    chat_template_config: o.ChatTemplateConfig = None,
    extra_eos_token: o.ExtraEosToken = None,
    max_tokens: o.MaxTokens = None,
    temp: o.Temp = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    top_k: o.TopK = None,
    seed: o.SampleSeed = None,
    save: o.Save = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Generate text under a budget. Text goes to stdout, statistics to stderr.

    \b
    qfilters generate --prompt "Why do cats purr?" --budget 256
    qfilters generate --prompt-file book.txt --budget 1024 --max-tokens 200
    """
    flags = {k: v for k, v in locals().items() if k not in ("config", "prompt_file")}
    from ..config import GenerateConfig, resolve

    flags["prompt"] = _read_prompt(prompt, prompt_file)
    settings = resolve(GenerateConfig, config, flags)
    from ..generation_run import open_generation, statistics_lines
    from ..session import Session, check_methods

    (method,) = check_methods([settings.method])
    print_defaults(settings)
    with progress() as watch:
        session = Session(settings, watch)
        run = open_generation(session, method, command_words())
    pieces = []
    for piece in run.stream():
        pieces.append(piece)
        if not settings.as_json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if not settings.as_json:
        out("")
    for line in statistics_lines(run):
        note(line)
    made = run.document("".join(pieces))
    if settings.save:
        note(f"kept in {run.keep(made)}")
    if settings.as_json:
        from ..results import dump_json

        out(dump_json(made))


def _read_prompt(prompt, prompt_file):
    from ..errors import UsageError

    if prompt is not None and prompt_file is not None:
        raise UsageError("--prompt and --prompt-file exclude each other: give one")
    if prompt_file is not None:
        try:
            return prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {prompt_file}: {error}") from error
    if prompt == "-":
        return sys.stdin.read()
    return prompt
