"""Result folders by hand: what each kind of run leaves behind, small enough to know by heart."""

import json

from test_results import row

from qfilters.results import document, open_run

PROVENANCE = {
    "command": ["qfilters", "do", "it"],
    "mlx": "0.32.4",
    "device": "a <machine>",
    "corpus": {"name": "book.txt", "sha256": "ab" * 32},
}


NO_INTERVAL = {"retained": 0.5, "low": None, "high": None}


def write(root, kind, rows, model="org/name", command=None, tag="", **more):
    """A finished run; returns its name."""
    run = open_run(root, model, kind, {"kind": kind, "n": len(rows), "tag": tag})
    facts = PROVENANCE | ({"command": command} if command else {})
    run.write_json("summary.json", document(rows, facts) | more)
    return run.path.name


def plan(root, **items):
    """evidence.json: item -> (variants, runs)."""
    made = {
        name: {
            "title": f"All about {name}",
            "command": f"measure {name}",
            "variants": list(variants),
            "runs": runs,
        }
        for name, (variants, runs) in items.items()
    }
    (root / "evidence.json").write_text(json.dumps(made))


def arm(method, budget, perplexity, *nll, **more):
    """A perplexity row of as many sequences of 10 tokens as there are totals."""
    more = {"low": None, "high": None, "evicted": budget is not None} | more
    sizes = {"n_sequences": len(nll), "n_tokens": 10 * len(nll), "nll_sums": list(nll)}
    return row(method=method, budget=budget, perplexity=perplexity, **sizes, **more)


PPL = [
    arm("none", None, 2.0, 10.0, 20.0),
    arm("qfilters", 64, 4.0, 12.0, 24.0, low=3.0, high=5.0),
    arm("qfilters", 128, 3.0, 11.0, 22.0),
    arm("knorm", 64, 6.0, 13.0, 26.0),
]

CELL = {
    "n": 5,
    "score": 60.0,
    "low": 40.0,
    "high": 80.0,
    "strict": 0.0,
    "nulls": 1,
    "truncated": 2,
    "ceiling": 90.0,
    "discriminative": True,
    "window": 10.0,
    "copy": None,
    "compression_ratio": 2.0,
    "by_depth": [100.0, None, 50.0, 0.0, 25.0],
}
RULER = [
    CELL | {"task": "vt", "length": 64, "method": "none", "size": "full", "score": 90.0},
    CELL | {"task": "vt", "length": 64, "method": "knorm", "size": "2x"},
    CELL
    | {"task": "vt", "length": 64, "method": "knorm", "size": "4x"}
    | {"compression_ratio": 4.0, "score": 20.0, "low": 10.0, "high": 30.0},
    CELL | {"task": "niah_single_1", "length": 64, "method": "knorm", "size": "2x"},
    CELL
    | {"task": "niah_single_2", "length": 64, "method": "knorm", "size": "2x"}
    | {"by_depth": [0.0, None, 100.0, 0.0, None]},
]

INSPECTED = {
    "corpus": {"name": "held-out.txt", "sha256": "cd" * 32},
    "observations": {
        "n_texts": 2,
        "n_queries": 9,
        "n_query_heads": 4,
        "positive_query_heads": 4,
        "n_kv_heads": 2,
        "negative_keys": 1,
        "filter_projection": 3.0,
        "mean_projection": 4.0,
        "other_projection": 0.5,
        "ratio": 8.0,
        "top_energy": 0.6,
        "intervals": {
            "filter_projection": [2.5, 3.5],
            "ratio": [7.0, 9.0],
            "top_energy": [0.55, 0.65],
            "key_axis": [0.6, 0.8],
        },
        "projection_by_layer": [[1.0, 2.0], [3.0, 4.0]],
        "key_axis": 0.7,
        "keys_by_layer": [[-1.0], [1.0]],
    },
    "rank_correlation": [
        {"method": "knorm", "correlation": 0.5, "low": 0.4, "high": 0.6, "right_sign": 1.0}
        | {"skipped": skipped, "n_texts": 2, "n_heads": 2, "n_rows": 48}
        | {"by_layer": [[0.5], [None]], "size": 0.5, "later": 0.45}
        | {"later_low": 0.35, "later_high": 0.55}
        for skipped in (0, 4)
    ],
    "retained_mass": [
        {"method": "knorm", "budget": budget, "retained": budget / 100, "low": 0.1, "high": 0.3}
        | {"beyond_sinks_low": 0.05, "beyond_sinks_high": 0.15}
        | {"beyond_sinks": 0.1, "n_texts": 2, "n_rows": 48, "n_queries": 16}
        for budget in (20, 10)
    ],
}

DECODED = [
    {"context": context, "path": path, "budget": budget, "generated": 9, "ttft_s": 1.0}
    | {"tps": speed, "tps_min": speed - 1, "tps_max": speed + 1, "tps_rounds": [speed] * 3}
    | {"peak_mb": 3.0, "held_mb": context / 10, "x_first": 1.0}
    | {"x_first_low": 0.9, "x_first_high": 1.1}
    for context in (40, 80)
    for path, budget, speed in (("none", None, 5.0), ("knorm", 16, 6.0))
]

CHUNK = {
    "method": "qfilters",
    "chunk": 32,
    "one_shot": True,
    "seconds": 1.5,
    "seconds_least": 1.25,
    "seconds_most": 2.0,
    "identical_layers": 2,
    "n_layers": 2,
    "overlap_first": 1.0,
    "overlap_mean": 1.0,
    "overlap_least": 1.0,
    "direction_cosine": None,
    "direction_abs_cosine": None,
    "perplexity": 4.0,
    "low": 3.0,
    "high": 5.0,
    "n_tokens": 20,
    "n_sequences": 2,
    "overlap_by_layer": [1.0, 1.0],
}
CHUNKS = [
    CHUNK,
    CHUNK
    | {"chunk": 8, "one_shot": False, "overlap_by_layer": [1.0, 0.5]}
    | {
        "overlap_mean": 0.75,
        "overlap_least": 0.5,
        "direction_cosine": -0.25,
        "direction_abs_cosine": 0.5,
    },
]

BUDGET = [
    {"method": method, "prefill": 20, "decode": 10, "budget": 8, "offset": 30, "offset_error": off}
    | {"kept_least": least, "kept_most": 8, "kept_mean": 8.0, "keys_changed": 0, "keys_checked": 32}
    | {"dense_difference": 1e-7, "n_layers": 2}
    for method, off, least in (("knorm", 0, 8), ("pyramidkv", 3, 6))
]

GEOMETRY = [
    {"keys": keys, "length": length, "budget": 64, "method": "knorm", "retained": 0.5}
    | {"low": 0.4, "high": 0.6, "output_error": 1.25, "cosine": cosine, "n_seeds": 5, "n_heads": 8}
    for keys, cosine in (("drift", 0.75), ("isotropic", None))
    for length in (256, 512)
]

STABILITY = [
    {"against": against, "tokens": tokens, "mean_cosine": 0.9, "min_cosine": 0.1}
    | {"n_heads": 4, "opposed": 0}
    for against, tokens in (("most", 512), ("most", 1024), ("other.txt", 1024))
]


def write_all(root):
    """One run of every kind, by kind."""
    return {
        "ppl": write(root, "ppl", PPL),
        "ruler": write(root, "ruler", RULER, means=[], pairs=[]),
        "inspect": write(root, "inspect", [], **INSPECTED),
        "study-chunks": write(root, "study-chunks", CHUNKS),
        "study-budget": write(root, "study-budget", BUDGET),
        "study-geometry": write(root, "study-geometry", GEOMETRY, model="synthetic"),
        "study-stability": write(root, "study-stability", STABILITY),
        "bench-decode": write(root, "bench-decode", DECODED),
        "bench_kernels": write(root, "bench_kernels", [{"what": "score", "median_ms": 1.5}]),
    }
