"""From a GGUF file to an mlx-lm model folder: Llama architecture, tied embeddings, byte-level BPE.

That is what the embedded model needs and all that is understood here.
"""

import json
from pathlib import Path

_CONTROL = 3  # tokenizer.ggml.token_type of a special token
_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(file: Path, folder: Path) -> None:
    """Write the mlx-lm model folder `folder` from the GGUF file `file`.

    Weights are stored as float32: `scale * q + bias` does not fit a float16 in 42 % of the
    embedded model's weights, and the Linux CPU back end computes in float32 anyway.
    """
    import mlx.core as mx

    arrays, meta = mx.load(str(file), return_metadata=True)
    config = _config(meta)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    _write_tokenizer(meta, config, folder)
    weights = {}
    for name in [name for name in arrays if name.endswith(".weight")]:
        stem = name.removesuffix(".weight")
        weight = arrays[name]
        if (scales := arrays.get(f"{stem}.scales")) is not None:
            bits = weight.shape[-1] // scales.shape[-1]
            scales, biases = (x.astype(mx.float32) for x in (scales, arrays[f"{stem}.biases"]))
            weight = mx.dequantize(weight, scales, biases, group_size=32, bits=bits)
        *block, kind = stem.removeprefix("blk.").split(".")
        if kind in ("attn_q", "attn_k"):
            heads = "num_attention_heads" if kind == "attn_q" else "num_key_value_heads"
            weight = _unpermute(weight, config[heads])
        prefix = f"model.layers.{block[0]}." if block else ""
        weights[f"{prefix}{_TENSORS[kind]}.weight"] = weight.astype(mx.float32)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _unpermute(weight, heads: int):
    """Rows of one head from GGUF's order, rotated pairs adjacent, to halves as mlx-lm rotates."""
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)


def _config(meta: dict) -> dict:
    def number(key):
        return meta[f"llama.{key}"].item()

    end = meta["tokenizer.ggml.eos_token_id"].item()
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("rope.dimension_count"),
        # Stored as float32: 9.99999975e-06 stands for 1e-05.
        "rms_norm_eps": float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": number("rope.freq_base"),
        "max_position_embeddings": number("context_length"),
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": True,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"].item(),
        # A chat turn ends with the first; a text that is not a chat, with <|endoftext|>.
        "eos_token_id": sorted({end, meta["tokenizer.ggml.unknown_token_id"].item()}, reverse=True),
        "torch_dtype": "float32",
    }


def _write_tokenizer(meta: dict, config: dict, folder: Path) -> None:
    """Byte-level BPE that splits digits, the pre-tokenizer that GGUF calls `smollm`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"].tolist()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for name, key in names.items():
        settings[f"{name}_token"] = tokens[meta[f"tokenizer.ggml.{key}_token_id"].item()]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
