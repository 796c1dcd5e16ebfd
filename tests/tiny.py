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

CONFIGS = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "phi3": {},
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 3},
    "gpt_oss": {"head_dim": 16, "sliding_window": 8, "num_local_experts": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "n_routed_experts": None,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    },
}


def make(kind: str = "llama", seed: int = 0, dtype=mx.float32, **changes):
    """A random model of an mlx-lm architecture; norm weights are random too."""
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    config = {"model_type": kind, **COMMON, **CONFIGS[kind], **changes}
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


def write_folder(folder: Path) -> None:
    """A llama as an mlx-lm model folder, with a byte-level tokenizer and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    model = make()
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {"model_type": "llama", **COMMON, "eos_token_id": 256}
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)} | {"<end>": 256, "<bos>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
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
