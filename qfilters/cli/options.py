"""The options of all commands, each defined once: same name, same meaning, same default.

A value of None means "not typed": it then comes from the YAML file, else from the default.
"""

from pathlib import Path
from typing import Annotated

import typer


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"qfilters {version('qfilters-mlx')}")
        raise typer.Exit


def option(kind, text, panel, *names, default=None, **extra):
    """An option whose value is None when it was not typed."""
    shown = default if default is None else str(default)
    made = typer.Option(
        *names, help=text, rich_help_panel=panel, show_default=shown or False, **extra
    )
    return Annotated[kind | None, made]


MODEL, EVICTION, DATA, OUTPUT, SAMPLING = "Model", "Eviction", "Data", "Output", "Sampling"

Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]

Model = option(
    str,
    "Alias, folder in mlx-lm's format, or hub id.",
    MODEL,
    "--model",
    default="smollm2-135m",
)
InspectedModel = option(
    str, "Model to check the filters against, and whose layers to list.", MODEL, "--model"
)
AdapterPath = option(str, "Folder of a LoRA adapter.", MODEL, "--adapter-path")
TrustRemoteCode = option(
    bool, "Run code that comes with the tokenizer.", MODEL, "--trust-remote-code"
)
Dtype = option(
    str,
    "auto, float32, float16 or bfloat16; auto is float32 on a Linux CPU, else as stored.",
    MODEL,
    "--dtype",
    default="auto",
)

Method = option(
    str,
    "How cached rows are ranked: name or name(option=value).",
    EVICTION,
    "--method",
    default="qfilters",
)
MethodList = option(
    str,
    "Comma list of methods: name or name(option=value).",
    EVICTION,
    "--method",
    default="none,qfilters,knorm,streaming_llm,random",
)
BUDGET_TEXT = "Rows kept per KV head and layer, sinks and recent included."
Budget = option(int, BUDGET_TEXT, EVICTION, "--budget", "--max-kv-size", default=1024)
BudgetList = option(
    str,
    f"{BUDGET_TEXT} Comma list.",
    EVICTION,
    "--budget",
    "--max-kv-size",
    default="128,256",
)
CompressionRatio = option(
    float, "Instead of a budget: full/kept, at least 1.", EVICTION, "--compression-ratio"
)
Sinks = option(int, "First positions that are never evicted.", EVICTION, "--sinks", default=4)
Recent = option(
    int, "Last positions that are never evicted.", EVICTION, "--recent", default="budget // 4"
)
Filters = option(
    str,
    "Filter file; by default the one in artifacts/filters that fits the model.",
    EVICTION,
    "--filters",
)
AutoCalibrate = option(
    bool,
    "Calibrate when no filter file fits.",
    EVICTION,
    "--auto-calibrate/--no-auto-calibrate",
    default="auto-calibrate",
)
Kernel = option(
    str,
    "Fused kernels: auto (where there is a GPU), on or off.",
    EVICTION,
    "--kernel",
    default="auto",
)
PrefillStepSize = option(
    int,
    "Prompt tokens per forward pass.",
    EVICTION,
    "--prefill-step-size",
    default="256 on CPU, else 2048",
)

Contenders = option(
    str,
    "Comma list: none, rotating, quantized (mlx-lm's caches), methods; ratios are to the first.",
    EVICTION,
    "--method",
    default="none,rotating,quantized,qfilters",
)
BenchBudgets = option(
    str, f"{BUDGET_TEXT} Comma list.", EVICTION, "--budget", "--max-kv-size", default="256"
)
PromptTokens = option(
    str, "Tokens of the prompt. Comma list.", DATA, "--prompt-tokens", default="512,2048"
)
GenerationTokens = option(int, "New tokens per round.", DATA, "--generation-tokens", default=100)
NumTrials = option(int, "Rounds, at least 3.", DATA, "--num-trials", default=5)

DataPath = option(
    str,
    "'builtin', a .txt, .jsonl or .parquet file, or a hub id.",
    DATA,
    "--data-path",
    default="builtin",
)
TextField = option(str, "Field that holds the text.", DATA, "--text-field", default="text")
SequenceLength = option(int, "Tokens per sequence.", DATA, "--sequence-length", default=1024)
CalibrationSamples = option(int, "Sequences; -1 is all the text.", DATA, "--num-samples", default=8)
PplSamples = option(int, "Sequences; -1 is all the text.", DATA, "--num-samples", default=4)
CalibrationStep = option(
    int, "Tokens per forward pass.", DATA, "--step-size", default="256 on CPU, else 2048"
)
PplStep = option(
    int, "Tokens per forward pass; 1 is exact streaming.", DATA, "--step-size", default=32
)
CalibrationSeed = option(int, "Seed of the order of documents.", DATA, "--seed", default=42)
PplSeed = option(
    int, "Seed of the order of documents and of the bootstrap.", DATA, "--seed", default=123
)
BatchArms = option(
    bool,
    "Methods of one budget share their forward passes.",
    DATA,
    "--batch-arms/--no-batch-arms",
    default="batch-arms",
)
BootstrapIters = option(
    int, "Resamples for the 95 % interval.", DATA, "--bootstrap-iters", default=10000
)

Prompt = option(str, "The prompt; - reads standard input.", DATA, "--prompt", "-p")
PromptFile = option(Path, "Read the prompt from this file.", DATA, "--prompt-file")
SystemPrompt = option(str, "System message before the prompt.", DATA, "--system-prompt")
IgnoreChatTemplate = option(bool, "Feed the prompt as it is.", DATA, "--ignore-chat-template")
ChatTemplateConfig = option(
    str, "Variables for the chat template, as JSON.", DATA, "--chat-template-config"
)
ExtraEosToken = option(
    list[str], "One more token that ends the text; repeatable.", DATA, "--extra-eos-token"
)
MaxTokens = option(int, "New tokens at most.", SAMPLING, "--max-tokens", "-m", default=100)
Temp = option(float, "Temperature; 0 is greedy.", SAMPLING, "--temp", default="0.0")
TopP = option(float, "Nucleus: share of probability kept.", SAMPLING, "--top-p", default="1.0")
MinP = option(
    float, "Least probability relative to the likeliest.", SAMPLING, "--min-p", default="0.0"
)
TopK = option(int, "Sample among the k likeliest; 0 is off.", SAMPLING, "--top-k", default="0")
SampleSeed = option(int, "Seed of the sampling.", SAMPLING, "--seed")

Config = option(
    str, "YAML file; a flag beats it. By default the shipped one.", OUTPUT, "--config", "-c"
)
OutputFile = option(str, "Write the artifact to this file.", OUTPUT, "--output", "-o")
OutputJson = option(str, "Write the JSON document to this file too.", OUTPUT, "--output", "-o")
Overwrite = option(bool, "Replace what is there.", OUTPUT, "--overwrite")
Resume = option(bool, "Continue an interrupted run.", OUTPUT, "--resume")
Save = option(
    bool, "Keep the result under artifacts/results.", OUTPUT, "--save/--no-save", default="save"
)
Json = option(bool, "Print one JSON document.", OUTPUT, "--json")
Verbose = option(bool, "Say what was defaulted and what the machine does.", OUTPUT, "--verbose")
Figures = option(
    str, "Pictures in the result folder: png, svg or none.", OUTPUT, "--figures", default="png"
)
