"""Every engine against its own library, the frame around records, and the errors."""

import base64
import io
import itertools
import json
import pickle
import subprocess
import sys

import fastokens
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
import tiktoken
import tokenizers
from hypothesis import given
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from meshfeed.pipeline.data.tokenizers import (
    TextError,
    choose_engine,
    keep_tokenizer,
    load_tokenizer,
)
from meshfeed.pipeline.data.tokenizers.base import Frame, TokenBatch, calls
from meshfeed.pipeline.data.tokenizers.choose import difference
from meshfeed.pipeline.plan.config import Engine, TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError, DataError

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "def window(index):\n    return index + 1\n",
    "windows, shards and records; rows and steps",
    "Ärger mit Öl, naïve café 東京 😀",
] * 20
TEXTS = [*CORPUS[:4], "", "x", " leading", "trailing\n", "a<|endoftext|>b", "日本語", "word " * 500]


def train(path, *, specials=("<s>", "</s>"), normalizer=None, unk=None, **model):
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=unk, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(path))
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def huggingface(folder):
    train(folder / "tokenizer.json")
    return str(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def spm(folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=400,
        minloglevel=2,
        model_type="bpe",
        byte_fallback=True,
    )
    (folder / "spm.model").write_bytes(model.getvalue())
    return str(folder / "spm.model")


def write_ranks(path):
    pieces = [bytes([i]) for i in range(256)] + [b"th", b"the", b" the", b"in", b"ow"]
    lines = [base64.b64encode(piece) + b" %d\n" % rank for rank, piece in enumerate(pieces)]
    path.write_bytes(b"".join(lines))
    return {piece: rank for rank, piece in enumerate(pieces)}


def records(batch):
    return [batch.record(i).tolist() for i in range(len(batch))]


def config(path, **kwargs):
    return TokenizerConfig(path=path, **{"eos": False, **kwargs})


@pytest.mark.parametrize("engine", [Engine.REFERENCE, Engine.FAST])
@pytest.mark.parametrize(
    ("bos", "eos"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_huggingface_ids_are_the_librarys_with_bos_and_eos_around_each_record(
    huggingface, engine, bos, eos
):
    reference = tokenizers.Tokenizer.from_file(huggingface)
    tokenizer = load_tokenizer(config(huggingface, bos=bos, eos=eos), engine)
    batch = tokenizer.encode(pa.array(TEXTS))
    assert batch.ids.dtype == np.int32
    assert batch.offsets.dtype == np.int64
    want = [reference.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert records(batch) == [[0] * bos + ids + [1] * eos for ids in want]


@pytest.mark.parametrize("engine", [Engine.REFERENCE, Engine.FAST])
def test_records_beyond_one_call_and_every_arrow_layout_give_the_same_tokens(huggingface, engine):
    texts = [f"record {i} " + "the " * (i % 7) for i in range(2500)]
    tokenizer = load_tokenizer(config(huggingface, eos=True), engine)
    want = tokenizer.encode(pa.array(texts))
    assert len(want) == 2500
    assert records(want)[2499] == tokenizer.encode(pa.array(texts[2499:])).ids.tolist()
    whole = pa.array(["x", *texts, "y"])
    long = ["a text of more than its chunk's share. " * 8000, "b" * 300_000]
    apart = pa.chunked_array([long[:1], long[1:]], pa.string())
    np.testing.assert_array_equal(tokenizer.encode(apart).ids, tokenizer.encode(pa.array(long)).ids)
    for layout in (
        pa.array(texts, pa.large_string()),
        pa.array(texts, pa.string_view()),
        pa.array(texts).dictionary_encode(),
        pa.array([t.encode() for t in texts]),
        pa.chunked_array([texts[:700], [], texts[700:]], pa.string()),
        whole.slice(1, 2500),
    ):
        got = tokenizer.encode(layout)
        np.testing.assert_array_equal(got.ids, want.ids)
        np.testing.assert_array_equal(got.offsets, want.offsets)


@pytest.mark.parametrize("path", ["bytes", "huggingface", "spm"])
def test_no_records_give_no_tokens(request, path):
    path = path if path == "bytes" else request.getfixturevalue(path)
    tokenizer = load_tokenizer(config(path, eos=True, eos_id=1))
    for empty in (pa.array([], pa.string()), pa.chunked_array([], pa.string())):
        batch = tokenizer.encode(empty)
        assert batch.ids.tolist() == []
        assert batch.offsets.tolist() == [0]


@given(
    st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8),
    st.one_of(st.none(), st.integers(0, 2**31 - 1)),
    st.one_of(st.none(), st.integers(0, 2**31 - 1)),
    st.integers(0, 3),
    st.integers(0, 8),
)
def test_frame_puts_bos_and_eos_around_each_record(lists, bos, eos, before, cut):
    flat = np.array([7] * before + [i for ids in lists for i in ids], np.int32)
    offsets = before + np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]).astype(
        np.int64
    )
    parts = [
        TokenBatch(ids=flat, offsets=offsets[begin : end + 1])
        for begin, end in itertools.pairwise(sorted({0, min(cut, len(lists)), len(lists)}))
    ]
    batch = Frame(bos=bos, eos=eos).around(parts)
    around = [[] if i is None else [i] for i in (bos, eos)]
    assert records(batch) == [around[0] + ids + around[1] for ids in lists]


@given(st.lists(st.text(max_size=40), max_size=30), st.integers(1, 8), st.integers(1, 64))
def test_calls_cover_all_records_within_both_limits(texts, count, max_bytes):
    array = pa.array(["padding", *texts], pa.string()).slice(1)
    ranges = list(calls(array, count, max_bytes))
    assert [i for begin, end in ranges for i in range(begin, end)] == list(range(len(texts)))
    for begin, end in ranges:
        size = sum(len(t.encode()) for t in texts[begin:end])
        assert end - begin <= count
        assert size <= max_bytes or end - begin == 1


@given(st.lists(st.text(), max_size=10))
def test_bytes_are_utf8_and_decode_to_the_text(texts):
    tokenizer = load_tokenizer(TokenizerConfig(bos=True))
    batch = tokenizer.encode(pa.array(["skipped", *texts], pa.string()).slice(1))
    assert records(batch) == [[256, *text.encode(), 257] for text in texts]
    for i, text in enumerate(texts):
        assert tokenizer.decode(batch.record(i)[1:-1]) == text
    assert tokenizer.vocab_size == 258
    assert tokenizer.decode([256, 104, 105, 257]) == "<bos>hi<eos>"


@pytest.mark.parametrize("path", ["bytes", "huggingface", "spm"])
def test_null_and_broken_texts_are_all_named(request, path):
    path = path if path == "bytes" else request.getfixturevalue(path)
    tokenizer = load_tokenizer(config(path))
    broken = pa.array([b"good"] * 300 + [b"a\xff\xfe", b"good", b"\xe4\xb8"], pa.binary())
    with pytest.raises(TextError, match="not UTF-8") as error:
        tokenizer.encode(broken.view(pa.string()))
    assert [index for index, _ in error.value.bad] == [300, 302]
    with pytest.raises(TextError, match="null") as error:
        tokenizer.encode(pa.array(["a", None, "b", None]))
    assert [index for index, _ in error.value.bad] == [1, 3]
    assert isinstance(error.value, DataError)
    assert pickle.loads(pickle.dumps(error.value)).bad == error.value.bad


def test_vocab_size_bounds_added_tokens_and_overruling_ids(folder, huggingface):
    tokenizer = train(folder / "added.json")
    size = tokenizer.get_vocab_size()
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save(str(folder / "added.json"))
    for engine in (Engine.REFERENCE, Engine.FAST):
        loaded = load_tokenizer(config(str(folder / "added.json")), engine)
        assert loaded.vocab_size == size + 1
        assert loaded.encode(pa.array(["<extra>"])).ids.tolist() == [size]
        assert load_tokenizer(config(huggingface, eos_id=999), engine).vocab_size == 1000


def test_truncation_and_padding_in_the_file_do_nothing(folder):
    tokenizer = train(folder / "cut.json")
    want = tokenizer.encode(TEXTS[-1]).ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=2000)
    tokenizer.save(str(folder / "cut.json"))
    for engine in (Engine.REFERENCE, Engine.FAST):
        loaded = load_tokenizer(config(str(folder / "cut.json")), engine)
        assert records(loaded.encode(pa.array([TEXTS[-1], "x"])))[0] == want


def test_dropout_is_refused_since_its_ids_are_random(folder):
    train(folder / "dropout.json", dropout=0.1)
    with pytest.raises(ConfigError, match=r"dropout of 0\.1"):
        load_tokenizer(config(str(folder / "dropout.json")))


def test_eos_comes_from_the_file_beside_then_from_a_usual_name(tmp_path):
    train(tmp_path / "tokenizer.json", specials=["<|endoftext|>", "<|im_end|>"])
    path = str(tmp_path)
    assert load_tokenizer(config(path)).eos_id == 0
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|endoftext|>"})
    )
    tokenizer = load_tokenizer(config(path, bos=True, eos=True))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)
    assert load_tokenizer(config(path, eos_id=7)).eos_id == 7


def test_missing_eos_names_setting_and_special_tokens(tmp_path):
    train(tmp_path / "tokenizer.json", specials=["<|im_start|>", "<|im_end|>"])
    with pytest.raises(ConfigError) as error:
        load_tokenizer(config(str(tmp_path), eos=True))
    for part in ("tokenizer.eos_id", "<|im_start|> = 0, <|im_end|> = 1", "tokenizer.eos to false"):
        assert part in str(error.value)
    ambiguous = tmp_path / "two.json"
    train(ambiguous, specials=["</s>", "<|endoftext|>"])
    with pytest.raises(ConfigError, match="eos_id"):
        load_tokenizer(config(str(ambiguous), eos=True))
    with pytest.raises(ConfigError, match="-5 is not a token id"):
        load_tokenizer(config(str(ambiguous), eos=True, eos_id=-5))


def test_files_that_are_none_are_refused_with_what_would_do(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello")
    (tmp_path / "broken.json").write_text("{ no json")
    (tmp_path / "broken.model").write_bytes(b"\x0a\xff\xff\xff")
    (tmp_path / "folder").mkdir()
    for name, problem in (
        ("missing", "there is no file"),
        ("empty", "is empty"),
        ("text", "begins with b'hello'"),
        ("broken.json", "tokenizers .* cannot load"),
        ("broken.model", "sentencepiece cannot load"),
        ("folder", "holds none of tokenizer.json"),
    ):
        with pytest.raises(ConfigError, match=f"(?s)tokenizer.path: .*{problem}"):
            load_tokenizer(config(str(tmp_path / name)))
    with pytest.raises(ConfigError, match="could not be read"):
        load_tokenizer(config("nosuchscheme://bucket/tokenizer.json"))


def test_files_are_read_through_fsspec_addresses(huggingface):
    here = load_tokenizer(config(huggingface, eos=True))
    there = load_tokenizer(config(f"file://{huggingface}", eos=True))
    assert here.fingerprint == there.fingerprint


def test_fingerprint_changes_with_engine_file_and_frame(folder, huggingface, tmp_path):
    train(tmp_path / "other.json", specials=["<s>", "</s>", "<pad>"])
    prints = [
        load_tokenizer(config(huggingface)).fingerprint,
        load_tokenizer(config(huggingface), Engine.FAST).fingerprint,
        load_tokenizer(config(huggingface, eos=True)).fingerprint,
        load_tokenizer(config(str(tmp_path / "other.json"))).fingerprint,
        load_tokenizer(config("bytes")).fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    assert tokenizers.__version__ in prints[0]


def test_kept_tokenizer_is_the_same_without_the_original(tmp_path):
    original = tmp_path / "original"
    original.mkdir()
    train(original / "tokenizer.json", specials=["<|endoftext|>", "<|im_end|>"])
    (original / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    given_config = config(str(original), eos=True)
    want = load_tokenizer(given_config).fingerprint
    kept = keep_tokenizer(given_config, tmp_path / "run" / "tokenizer")
    for file in original.iterdir():
        file.unlink()
    assert load_tokenizer(kept).fingerprint == want
    assert keep_tokenizer(config("bytes"), tmp_path).path == "bytes"


@pytest.mark.parametrize("engine", [Engine.REFERENCE, Engine.FAST])
def test_tiktoken_takes_pattern_and_special_tokens_from_the_file_beside(tmp_path, engine):
    ranks = write_ranks(tmp_path / "own.tiktoken")
    special = {"<|endoftext|>": 300, "<|start|>": 301}
    pattern = r" ?\p{L}+|\p{N}{1,3}|[^\p{L}\p{N}]+"
    path = str(tmp_path / "own.tiktoken")
    with pytest.raises(ConfigError, match=r"own\.tiktoken\.json beside it"):
        load_tokenizer(config(path), engine)
    beside = {"pattern": pattern, "special_tokens": special, "bos": "<|start|>"}
    (tmp_path / "own.tiktoken.json").write_text(json.dumps(beside))
    tokenizer = load_tokenizer(config(path, bos=True, eos=True), engine)
    library = tiktoken.Encoding(
        name="own", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
    )
    want = [[301, *library.encode_ordinary(text), 300] for text in TEXTS]
    assert records(tokenizer.encode(pa.array(TEXTS))) == want
    assert tokenizer.vocab_size == 302
    assert tokenizer.decode(want[0]) == f"<|start|>{TEXTS[0]}<|endoftext|>"


def test_tiktoken_knows_published_files_by_name(tmp_path):
    write_ranks(tmp_path / "cl100k_base.tiktoken")
    path = str(tmp_path / "cl100k_base.tiktoken")
    tokenizer = load_tokenizer(config(path, eos=True))
    assert tokenizer.eos_id == 100257
    assert tokenizer.vocab_size == 100277
    choice = choose_engine(config(path), pa.array(TEXTS))
    assert choice.engine is Engine.FAST


def test_tiktoken_names_broken_lines_and_sidecars(tmp_path):
    path = tmp_path / "broken.tiktoken"
    write_ranks(path)
    (tmp_path / "broken.tiktoken.json").write_text(
        json.dumps({"pattern": ".", "special_tokens": {"<e>": 300}, "eos": "<f>"})
    )
    with pytest.raises(ConfigError, match="names '<f>' as eos"):
        load_tokenizer(config(str(path)))
    (tmp_path / "broken.tiktoken.json").write_text("[]")
    with pytest.raises(ConfigError, match="is not a JSON object"):
        load_tokenizer(config(str(path)))
    (tmp_path / "broken.tiktoken.json").write_text('{"pattern": 1}')
    with pytest.raises(ConfigError, match="string pattern"):
        load_tokenizer(config(str(path)))
    path.write_bytes(path.read_bytes() + b"no rank\n")
    with pytest.raises(ConfigError, match="line 262"):
        load_tokenizer(config(str(path)))


def test_sentencepiece_ids_are_the_librarys(spm):
    library = sentencepiece.SentencePieceProcessor(model_file=spm)
    tokenizer = load_tokenizer(config(spm, bos=True, eos=True))
    want = [[1, *library.encode(text), 2] for text in TEXTS]
    assert records(tokenizer.encode(pa.array(TEXTS))) == want
    assert tokenizer.vocab_size == 400
    assert tokenizer.decode(want[0]) == f"<s>{TEXTS[0]}</s>"


@pytest.mark.parametrize("engine", [Engine.REFERENCE, Engine.FAST])
def test_decode_gives_the_text_and_special_tokens_by_name(huggingface, engine):
    tokenizer = load_tokenizer(config(huggingface, eos=True), engine)
    batch = tokenizer.encode(pa.array(TEXTS))
    assert tokenizer.decode(batch.record(3)) == TEXTS[3] + "</s>"


def test_choice_is_fast_where_ids_are_the_same(huggingface):
    sample = pa.chunked_array([TEXTS, [None, "after"]])
    choice = choose_engine(config(huggingface, eos=True), sample)
    assert choice.engine is Engine.FAST
    assert "12 records" in choice.reason
    loaded = load_tokenizer(config(huggingface, eos=True), choice.engine)
    assert loaded.fingerprint == choice.fingerprint
    assert fastokens.__name__ in choice.fingerprint
    assert (choice.vocab_size, choice.bos_id, choice.eos_id) == (360, 0, 1)


def test_choice_is_reference_with_a_reason_where_fast_cannot_load(folder, spm):
    train(folder / "nfkc.json", normalizer=normalizers.NFKC())
    path = str(folder / "nfkc.json")
    choice = choose_engine(config(path), pa.array(TEXTS))
    assert choice.engine is Engine.REFERENCE
    assert "NFKC" in choice.reason
    with pytest.raises(ConfigError, match=r"(?s)tokenizer.engine: .*NFKC"):
        choose_engine(config(path, engine=Engine.FAST), pa.array(TEXTS))
    for other in (spm, "bytes"):
        assert choose_engine(config(other), pa.array(TEXTS)).engine is Engine.REFERENCE
        with pytest.raises(ConfigError, match="no fast engine"):
            choose_engine(config(other, engine=Engine.FAST), pa.array(TEXTS))


def test_one_record_with_other_ids_is_a_difference(folder, huggingface):
    path = folder / "prefix.json"
    train(path)
    raw = json.loads(path.read_text())
    raw["pre_tokenizer"]["add_prefix_space"] = True
    path.write_text(json.dumps(raw))
    with_prefix = load_tokenizer(config(str(path)), Engine.REFERENCE)
    without = load_tokenizer(config(huggingface), Engine.FAST)
    problem, _ = difference(with_prefix, without, pa.array(TEXTS))
    assert problem.startswith("fastokens gives other ids on hard text")
    problem, _ = difference(with_prefix, load_tokenizer(config("bytes")), pa.array(TEXTS))
    assert problem == "fastokens has vocab_size 258, the reference 360"


def test_reference_asked_for_is_not_overruled(huggingface):
    choice = choose_engine(config(huggingface, engine=Engine.REFERENCE), pa.array(TEXTS))
    assert choice.engine is Engine.REFERENCE


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_encoding_starts_no_threads_whatever_the_environment_says(huggingface, engine):
    script = f"""
import os, pyarrow as pa
from meshfeed.pipeline.data.tokenizers import load_tokenizer
from meshfeed.pipeline.plan.config import Engine, TokenizerConfig
before = len(os.listdir("/proc/self/task"))
tokenizer = load_tokenizer(TokenizerConfig(path={huggingface!r}, eos=False), Engine({engine!r}))
tokenizer.encode(pa.array(["some words and more " * 5000] * 20))
print(len(os.listdir("/proc/self/task")) - before)
"""
    env = {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "4", "FASTOKENS_BPE_THREADS": "4"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "0", ran.stderr


def test_case_35_fork_after_encoding_is_silent_and_works(huggingface):
    script = f"""
import os, sys, pyarrow as pa
from meshfeed.pipeline.data.tokenizers import load_tokenizer
from meshfeed.pipeline.plan.config import TokenizerConfig
tokenizer = load_tokenizer(TokenizerConfig(path={huggingface!r}))
texts = pa.array(["some words"] * 500)
want = tokenizer.encode(texts).ids.sum()
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode(texts).ids.sum() == want else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "0"
    assert "fork" not in ran.stderr
