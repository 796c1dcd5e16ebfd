"""Options that `qfilters ruler` alone has."""

from .options import BUDGET_TEXT, DATA, EVICTION, OUTPUT, option

Task = option(
    str,
    "Comma list of tasks; niah and qa are families, all is every task.",
    DATA,
    "--task",
    "-t",
    default="vt",
)
LengthList = option(str, "Tokens of prompt and answer. Comma list.", DATA, "--length", default=1024)
RulerSamples = option(int, "Prompts per task and length.", DATA, "--num-samples", default=10)
RulerSeed = option(int, "Seed of the prompts.", DATA, "--seed", default=42)
Source = option(
    str,
    "synthetic; files (see --haystack); hub (the benchmark's rows) or hub-sources (its texts).",
    DATA,
    "--source",
    default="synthetic",
)
Haystack = option(str, "A UTF-8 text to hide needles in.", DATA, "--haystack")
Depth = option(
    str,
    "Comma list of percents: where the first needle stands, in turn. Default: anywhere.",
    DATA,
    "--depth",
)
VtChains = option(int, "Chains of variables; one is asked for.", DATA, "--vt-chains", default=1)
AnswerTokens = option(
    int, "Tokens of an answer at most; by default the task's own.", DATA, "--max-tokens", "-m"
)
AnswerPrefix = option(
    bool,
    "Begin the reply for the model, as RULER does.",
    DATA,
    "--answer-prefix/--no-answer-prefix",
    default="answer-prefix",
)
DumpPrompts = option(
    str,
    "Only write the prompts to this file (- is standard output); no model.",
    OUTPUT,
    "--dump-prompts",
)
RulerBudgets = option(str, f"{BUDGET_TEXT} Comma list.", EVICTION, "--budget", "--max-kv-size")
CompressionRatios = option(
    str,
    "Instead of budgets: context/kept, at least 1. Comma list.",
    EVICTION,
    "--compression-ratio",
    default="1.11,2",
)
SkipLayers = option(
    int, "First evicting layers that keep everything.", EVICTION, "--skip-layers", default="0"
)
Protocol = option(
    str,
    "agnostic, or aware: methods see the question before they choose.",
    EVICTION,
    "--protocol",
    default="agnostic",
)
Mode = option(
    str,
    "after_prefill: evict once, after the context; stream: the budget always holds.",
    EVICTION,
    "--mode",
    default="after_prefill",
)
