"""Tiny random models and a byte tokenizer, made on the spot: no downloads, seconds on a CPU.

`python tests/tiny.py FOLDER` writes a llama with its tokenizer as an mlx-lm model folder.
"""

import importlib
import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 259,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}

SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA3 = {"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 3}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}

CONFIGS = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "phi3": {},
    "gemma2": {"head_dim": 16},
    "gemma3_text": GEMMA3,
    "gemma3": GEMMA3,
    "gpt_oss": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        **SLIDING,
    },
    "deepseek_v3": {"n_routed_experts": None, **MLA},
    "gemma3n": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 259,
        "hidden_size_per_layer_input": 16,
        "rope_local_base_freq": 10000.0,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_pattern": [0.0] * 4,
        "altup_num_inputs": 2,
        "altup_coef_clip": 1.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 8,
        **SLIDING,
    },
    "afm7": {
        "hidden_dim": 64,
        "num_layers": 5,
        "num_kv_reuse_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "hidden_dim_scale_factor": 1.0,
    },
    "stablelm": {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5, "use_qkv_bias": False},
    "qwen3_next": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "num_experts": 0,
        "num_experts_per_tok": 1,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
    },
}

# Models whose text model sits under a `language_model`, as in vision models.
NESTED = ("gemma3", "gemma3n")


def make(kind: str = "llama", seed: int = 0, dtype=mx.float32, **changes):
    """A random model of an mlx-lm architecture; norm weights are random too."""
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    config = {"model_type": kind, **COMMON, **CONFIGS[kind], **changes}
    if kind in NESTED:
        config = {"model_type": kind, "vocab_size": COMMON["vocab_size"], "text_config": config}
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    # Random weights give queries without drift or scale; norms and biases give them both.
    weights = [
        (name, mx.random.normal(x.shape) * 0.3 + ("norm" in name) if x.ndim == 1 else x)
        for name, x in tree_flatten(model.parameters())
    ]
    model.load_weights(weights)
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model


class ByteTokenizer:
    """One token per byte."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


def write_folder(folder: Path, merges: int = 0) -> None:
    """A llama as an mlx-lm model folder, with a chat template and a byte-level tokenizer.

    With merges a token is a few letters, learned from Python's own documentation.
    """
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    size = {"vocab_size": COMMON["vocab_size"] + merges}
    model = make(**size)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {"model_type": "llama", **COMMON, **size, "eos_token_id": 256 + merges}
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if merges:
        options = {"vocab_size": 256 + merges, "initial_alphabet": alphabet, "show_progress": False}
        tokenizer.train_from_iterator(topics.values(), trainers.BpeTrainer(**options))
    tokenizer.add_special_tokens(["<end>", "<bos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "bos_token": "<bos>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]))
