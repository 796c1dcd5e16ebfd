import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qfilters.errors import UsageError
from qfilters.text import Corpus, load_corpus, overlap, repetition, token_rows


class Letters:
    """A tokenizer with one id per character that adds a special token unless told not to."""

    def encode(self, text, add_special_tokens=True):
        return [0] * add_special_tokens + [ord(letter) for letter in text]


class Words:
    """Words, cut to pieces of four letters: about the grain of a real vocabulary."""

    def encode(self, text, add_special_tokens=False):
        pieces = [w[i : i + 4] for w in text.split() for i in range(0, len(w), 4)]
        return [int.from_bytes(piece.encode()[:16], "big") for piece in pieces]


def corpus(*documents):
    return Corpus("made", "0" * 64, documents)


def test_builtin_halves_share_no_prose_and_repeat_none():
    halves = [load_corpus("builtin", split) for split in ("calibration", "evaluation")]
    rows = [[Words().encode("\n".join(half.documents))] for half in halves]
    assert all(len(ids[0]) > 30_000 for ids in rows)
    assert overlap(rows[0], rows[1]) < 1e-3 and overlap(rows[1], rows[0]) < 1e-3
    assert repetition(rows[0]) < 0.01 and repetition(rows[1]) < 0.01
    assert halves[0].sha256 != halves[1].sha256
    assert halves[0] == load_corpus("builtin")
    assert halves[1].name == "builtin:evaluation"
    paragraphs = "".join(halves[0].documents + halves[1].documents).split("\n\n")
    assert len(paragraphs) == len(set(paragraphs))  # the empty end is one of them
    assert all(part == " ".join(part.split()) for part in paragraphs)


def test_builtin_unknown_split():
    with pytest.raises(UsageError, match="no split 'test'"):
        load_corpus("builtin", "test")


def test_txt_is_one_document_with_the_hash_of_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Grüße\n\nline two\n".encode())
    read = load_corpus(str(path))
    assert read.documents == ("Grüße\n\nline two\n",)
    assert read.name == "a.txt"
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_byte_order_mark_is_not_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert load_corpus(str(path)).documents == ("abc",)


def test_jsonl_reads_the_field_and_skips_blank_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "body": "eins"}\n\n{"text": "two", "body": "zwei"}\n')
    assert load_corpus(str(path)).documents == ("one", "two")
    assert load_corpus(str(path), field="body").documents == ("eins", "zwei")
    assert load_corpus(str(path)).sha256 != load_corpus(str(path), field="body").sha256


def test_parquet_reads_the_field(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["one", "two"], "n": [1, 2]}), path)
    assert load_corpus(str(path), field="body").documents == ("one", "two")
    with pytest.raises(UsageError, match=r"no field 'text'.*from body, n"):
        load_corpus(str(path))
    with pytest.raises(UsageError, match="row 1: field 'n' holds int"):
        load_corpus(str(path), field="n")
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(UsageError, match="not a readable parquet file"):
        load_corpus(str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', r"line 2 is not a JSON object but \[1\]"),
        ("a.jsonl", b'{"prompt": "x", "id": 1}\n', "line 1 has no field 'text'.*from prompt, id"),
        ("a.jsonl", b'{"text": 3}\n', "line 1: field 'text' holds int, not text"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"\n\n", "holds no text"),
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n", "holds no text"),
        ("a.txt", b"abc\xff", r"not UTF-8 \(byte 3\)"),
        ("a.jsonl", b'{"text": "\xff"}', "not UTF-8"),
        ("a.csv", b"text\nx\n", "is not a .txt, .jsonl, .parquet file"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        load_corpus(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_folder_missing_file_and_nonsense(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        load_corpus(str(tmp_path))
    with pytest.raises(UsageError, match="there is no file"):
        load_corpus(str(tmp_path / "gone.txt"))
    with pytest.raises(UsageError, match="no text at 'bultin': give 'builtin'"):
        load_corpus("bultin")
    with pytest.raises(UsageError, match=r"no text at '\./gone'"):
        load_corpus("./gone")


def test_hub_id_without_network_is_one_line(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        UsageError, match="cannot load the data set 'nobody/nothing-here'"
    ) as caught:
        load_corpus("nobody/nothing-here")
    assert "\n" not in str(caught.value)


def test_hub_records_are_checked_like_lines(monkeypatch):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"body": ["one", "two"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda source, split: data)
    assert load_corpus("owner/name", field="body").documents == ("one", "two")
    with pytest.raises(UsageError, match="owner/name has no field 'text'"):
        load_corpus("owner/name")


@settings(deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=8),
    st.integers(2, 9),
    st.integers(1, 5) | st.just(-1),
    st.none() | st.integers(0, 2**32 - 1),
)
def test_rows_are_the_concatenation_cut(documents, length, num_rows, seed):
    order = range(len(documents))
    if seed is not None:
        order = np.random.RandomState(seed).permutation(len(documents))
    ids = [ord(letter) for i in order for letter in documents[i]]
    wanted = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
    if len(wanted) < max(num_rows, 1):
        with pytest.raises(
            UsageError, match=f"has {len(ids)} tokens.*= {max(num_rows, 1) * length}"
        ):
            token_rows(corpus(*documents), Letters(), num_rows, length, seed)
    else:
        rows = token_rows(corpus(*documents), Letters(), num_rows, length, seed)
        assert rows == (wanted if num_rows == -1 else wanted[:num_rows])


def test_rows_stop_reading_when_there_is_enough():
    class Once(Letters):
        def encode(self, text, add_special_tokens=True):
            assert text != "never"
            return super().encode(text, add_special_tokens)

    assert token_rows(corpus("abcd", "never"), Once(), 2, 2) == [[97, 98], [99, 100]]


def test_rows_of_a_tokenizer_wrapped_by_mlx_lm():
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    wrapper = pytest.importorskip("mlx_lm.tokenizer_utils").TokenizerWrapper
    vocabulary = {"<bos>": 0, "a": 1, "b": 2, "[UNK]": 3}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", unk_token="[UNK]"
    )
    assert fast.encode("a b") == [0, 1, 2]
    assert token_rows(corpus("a b", "b a"), wrapper(fast), -1, 2) == [[1, 2], [2, 1]]


@pytest.mark.parametrize(("num_rows", "length"), [(0, 4), (-2, 4), (1, 1)])
def test_impossible_rows(num_rows, length):
    with pytest.raises(UsageError, match=r"give 1 or more|at least 2"):
        token_rows(corpus("abcdefgh"), Letters(), num_rows, length)


rows_of_ids = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=4)


@settings(deadline=None)
@given(rows_of_ids, rows_of_ids, st.integers(1, 4))
def test_repetition_and_overlap_by_brute_force(rows, other, n):
    def grams(rows):
        return [tuple(row[i : i + n]) for row in rows for i in range(len(row) - n + 1)]

    mine, theirs = grams(rows), grams(other)
    seen_before = sum(gram in mine[:i] for i, gram in enumerate(mine))
    assert repetition(rows, n) == pytest.approx(seen_before / len(mine) if mine else 0)
    shared = sum(gram in theirs for gram in mine)
    assert overlap(rows, other, n) == pytest.approx(shared / len(mine) if mine else 0)


def test_records_survive_as_json_lines(tmp_path):
    texts = ["a\u2028b", 'quote " and \\', "emoji 🙂"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
    assert load_corpus(str(path)).documents == tuple(texts)
