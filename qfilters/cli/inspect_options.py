"""Options that `qfilters inspect` alone has."""

from .options import BUDGET_TEXT, DATA, EVICTION, option

Compare = option(str, "Another filter file: the cosine of every KV head.", DATA, "--compare")
HeldOut = option(
    str,
    "Measure on this text: 'builtin', a .txt, .jsonl or .parquet file, or a hub id.",
    DATA,
    "--data-path",
)
JudgedMethods = option(
    str,
    "Comma list of methods whose scores are held against attention.",
    EVICTION,
    "--method",
    default="qfilters,qfilters_keysvd,knorm,expected_attention,qfilters_mean,random",
)
JudgedBudgets = option(
    str,
    f"{BUDGET_TEXT} Comma list.",
    EVICTION,
    "--budget",
    "--max-kv-size",
    default="64,128,256",
)
TextSeed = option(int, "Seed of the order of documents.", DATA, "--seed", default=123)
