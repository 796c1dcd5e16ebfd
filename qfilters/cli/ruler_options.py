"""Options that `qfilters ruler` alone has."""

from .options import BUDGET_TEXT, DATA, EVICTION, OUTPUT, _option

Task = _option(
    str,
    "Comma list of tasks; niah and qa are families, all is every task.",
    DATA,
    "--task",
    "-t",
    default="vt",
)
LengthList = _option(
    str, "Tokens of prompt and answer. Comma list.", DATA, "--length", default=1024
)
RulerSamples = _option(int, "Prompts per task and length.", DATA, "--num-samples", default=10)
RulerSeed = _option(int, "Seed of the prompts.", DATA, "--seed", default=42)
Source = _option(
    str,
    "synthetic; files (see --haystack); hub (the benchmark's rows) or hub-sources (its texts).",
    DATA,
    "--source",
    default="synthetic",
)
Haystack = _option(str, "A UTF-8 text to hide needles in.", DATA, "--haystack")
Depth = _option(
    str,
    "Comma list of percents: where the first needle stands, in turn. Default: anywhere.",
    DATA,
    "--depth",
)
VtChains = _option(int, "Chains of variables; one is asked for.", DATA, "--vt-chains", default=1)
AnswerTokens = _option(
    int, "Tokens of an answer at most; by default the task's own.", DATA, "--max-tokens", "-m"
)
AnswerPrefix = _option(
    bool,
    "Begin the reply for the model, as RULER does.",
    DATA,
    "--answer-prefix/--no-answer-prefix",
    default="answer-prefix",
)
DumpPrompts = _option(
    str,
    "Only write the prompts to this file (- is standard output); no model.",
    OUTPUT,
    "--dump-prompts",
)
Figures = _option(str, "png, svg or none.", OUTPUT, "--figures", default="png")
RulerBudgets = _option(str, f"{BUDGET_TEXT} Comma list.", EVICTION, "--budget", "--max-kv-size")
CompressionRatios = _option(
    str,
    "Instead of budgets: context/kept, at least 1. Comma list.",
    EVICTION,
    "--compression-ratio",
    default="1.11,2",
)
SkipLayers = _option(
    int, "First evicting layers that keep everything.", EVICTION, "--skip-layers", default="0"
)
Protocol = _option(
    str,
    "agnostic, or aware: methods see the question before they choose.",
    EVICTION,
    "--protocol",
    default="agnostic",
)
Mode = _option(
    str,
    "after_prefill: evict once, after the context; stream: the budget always holds.",
    EVICTION,
    "--mode",
    default="after_prefill",
)
