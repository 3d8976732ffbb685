"""What a transform may be, where its results come from, its randomness, and its errors."""

import importlib
import pickle
import sys
import textwrap

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from meshfeed.pipeline.data.formats.records import BadRecord
from meshfeed.pipeline.data.tokenizers import TokenBatch
from meshfeed.pipeline.data.transforms import load_transforms
from meshfeed.pipeline.data.transforms.applying import apply_to_records, apply_to_tokens
from meshfeed.pipeline.data.transforms.origins import Origins, RecordGenerator, record_seeds
from meshfeed.pipeline.data.transforms.record_table import records_of, table_of
from meshfeed.pipeline.plan.config import BadRecords
from meshfeed.pipeline.plan.errors import ConfigError, DataError

MODULE = """
import grain
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from meshfeed.pipeline.data.transforms import (
    RECORD_INDEX, after_tokenizer, needs, randomized, vectorized)

def upper(record):
    return {**record, "text": record["text"].upper()}

def long_enough(record):
    return len(record["text"]) > 1

def drop_b(record):
    return None if "b" in record["text"] else record

def words(record):
    return [{"text": word} for word in record["text"].split()]

@needs("lang")
def english(record):
    return record if record["lang"] == "en" else False

def fails_on_b(record):
    if record["text"] == "b":
        raise ValueError("no b, please")
    return record

def words_or_fail(record):
    for word in record["text"].split():
        if word == "bad":
            raise ValueError("bad word")
        yield {"text": word}

def returns_number(record):
    return 7

def returns_none_text(record):
    return {"text": None if record["text"] == "b" else 3 if record["text"] == "c" else "x"}

def loses_text(record):
    return {"words": 1}

def reads_file(record):
    raise ConnectionError("down")

@randomized
def noise(record, rng):
    return {**record, "text": record["text"] + str(rng.integers(1 << 60))}

@vectorized
def shout(table):
    text = pc.binary_join_element_wise(table.column("text"), "!", "")
    return table.set_column(table.column_names.index("text"), "text", text)

@vectorized
def without_a(table):
    return table.filter(pc.invert(pc.match_substring(table.column("text"), "a")))

@vectorized
def twice(table):
    index = np.repeat(np.arange(len(table)), 2)
    return table.drop_columns([RECORD_INDEX]).take(pa.array(index)), index

@vectorized
@randomized
def seeds(table, seeds):
    text = pa.array([str(seed) for seed in seeds.tolist()])
    return table.set_column(table.column_names.index("text"), "text", text)

@vectorized
def forgets_index(table):
    return table.select(["text"])

@vectorized
def wrong_index(table):
    return table.select(["text"]), np.arange(len(table)) + 1

@vectorized
def fails_on_table_with_b(table):
    if pc.any(pc.equal(table.column("text"), "b")).as_py():
        raise ValueError("b in table")
    return table

@vectorized
def wants_company(table):
    if len(table) > 1:
        raise ValueError("too many")
    return table

@vectorized
def makes_numbers(table):
    return table.set_column(0, "text", pa.array(range(len(table))))

@after_tokenizer
def reverse(record):
    record["tokens"] = record["tokens"][::-1]
    return record

@after_tokenizer
def mask_first(record):
    mask = record["loss_mask"].copy()
    mask[0] = 0
    return {**record, "loss_mask": mask}

@after_tokenizer
def halves(record):
    middle = len(record["tokens"]) // 2
    return [{k: v[:middle] for k, v in record.items()}, {k: v[middle:] for k, v in record.items()}]

@after_tokenizer
def plus_one(record):
    return {"tokens": [int(i) + 1 for i in record["tokens"]]}

@after_tokenizer
def short_mask(record):
    return {"tokens": record["tokens"], "loss_mask": [1]}

@after_tokenizer
@vectorized
def keep_short(table):
    return table.filter(pc.less(pc.list_value_length(table.column("tokens")), 3))

class Strip(grain.transforms.Map):
    version = "2"
    def map(self, element):
        return {**element, "text": element["text"].strip("a")}

class NoB(grain.transforms.Filter):
    def filter(self, element):
        return "b" not in element["text"]

class Pair(grain.experimental.FlatMapTransform):
    max_fan_out = 2
    def flat_map(self, element):
        return [element] * len(element["text"])

class Noise(grain.transforms.RandomMap):
    def __init__(self, top):
        self.top = top
    def random_map(self, element, rng):
        return {"text": str(rng.integers(self.top))}

noise_map = Noise(1 << 60)

class Indexed(grain.transforms.MapWithIndex):
    def map_with_index(self, index, element):
        return element

constant = 3
def two_arguments(record, rng):
    return record
"""


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Load transforms of the module above by their short names."""
    (tmp_path / "my_transforms.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_transforms", raising=False)
    importlib.invalidate_caches()
    return lambda *names: load_transforms(
        [f"my_transforms:{name}" for name in names], setting="sources.a.transforms"
    )


def origins(count, **changes):
    values = {
        "seed": 3,
        "source": "a",
        "epoch": 0,
        "shards": np.zeros(count, np.int32),
        "places": np.arange(count, dtype=np.int64) * 10,
        "unit": "byte",
        "address": lambda shard: f"/data/{shard}.jsonl",
    }
    return Origins(**{**values, **changes})


def run(chain, texts, on_bad=BadRecords.FAIL, **changes):
    table = (
        texts if isinstance(texts, pa.Table) else pa.table({"text": pa.array(texts, pa.string())})
    )
    return apply_to_records(
        chain, table, origins(len(table), **changes), columns=["text"], on_bad=on_bad
    )


def texts_of(result):
    return result.table.column("text").to_pylist()


@pytest.mark.parametrize(
    ("names", "texts", "source"),
    [
        ([], ["a b", "b", "ca"], [0, 1, 2]),
        (["upper"], ["A B", "B", "CA"], [0, 1, 2]),
        (["long_enough"], ["a b", "ca"], [0, 2]),
        (["drop_b"], ["ca"], [2]),
        (["words"], ["a", "b", "b", "ca"], [0, 0, 1, 2]),
        (["words", "drop_b", "upper"], ["A", "CA"], [0, 2]),
        (["words", "without_a"], ["b", "b"], [0, 1]),
        (["without_a", "words", "shout"], ["b!"], [1]),
        (["twice", "words"], ["a", "b", "a", "b", "b", "b", "ca", "ca"], [0, 0, 0, 0, 1, 1, 2, 2]),
        (["shout", "without_a", "upper"], ["B!"], [1]),
        (["NoB", "Strip"], ["c"], [2]),
        (["long_enough", "NoB", "Pair"], ["ca", "ca"], [2, 2]),
        (["drop_b", "NoB", "without_a"], [], []),
    ],
)
def test_results_know_their_records(named, names, texts, source):
    result = run(named(*names), ["a b", "b", "ca"])
    assert texts_of(result) == texts
    assert result.source.tolist() == source
    assert result.bad == ()


def test_no_records_stay_none(named):
    result = run(named("upper", "shout", "twice"), [])
    assert (texts_of(result), result.source.tolist()) == ([], [])


def test_columns_that_transforms_need_are_named_and_then_left_out(named):
    chain = named("english", "upper")
    assert chain.needs == ("lang",)
    table = pa.table({"text": ["x", "y", "z"], "lang": ["en", "de", "en"]})
    result = run(chain, table)
    assert result.table.column_names == ["text"]
    assert texts_of(result) == ["X", "Z"]
    with pytest.raises(DataError, match=r"(?s)KeyError: 'lang'.*@needs"):
        run(chain, ["x"])


def test_a_column_with_nulls_first_keeps_its_type(named):
    """As does case 26: a column's first values do not fix its type."""
    table = pa.table({"text": ["x", "y"], "lang": pa.array([None, "en"], pa.string())})
    result = run(named("upper", "twice", "english", "shout"), table)
    assert texts_of(result) == ["Y!", "Y!"]


def test_failing_record_names_transform_shard_place_and_line(named):
    with pytest.raises(DataError) as error:
        run(named("fails_on_b"), ["a", "b"], places=np.array([0, 77]))
    message = str(error.value)
    line = MODULE[: MODULE.index('raise ValueError("no b')].count("\n") + 1
    for part in (
        "/data/0.jsonl, byte 77",
        "my_transforms:fails_on_b",
        "ValueError: no b, please",
        f"my_transforms.py line {line}",
        "bad_records: skip",
    ):
        assert part in message
    assert isinstance(error.value.__cause__, ValueError)
    assert str(pickle.loads(pickle.dumps(error.value))) == message


@pytest.mark.parametrize("name", ["fails_on_b", "fails_on_table_with_b"])
def test_skipped_records_are_listed_and_the_others_kept(named, name):
    result = run(
        named(name, "upper"),
        ["a", "b", "c", "b"],
        BadRecords.SKIP,
        shards=np.array([4, 5, 6, 7], np.int32),
    )
    assert texts_of(result) == ["A", "C"]
    assert result.source.tolist() == [0, 2]
    assert [bad[:3] for bad in result.bad] == [(5, 10, "byte"), (7, 30, "byte")]
    assert all(isinstance(bad, BadRecord) and f":{name} failed" in bad.reason for bad in result.bad)


def test_a_record_that_fails_in_part_is_left_out_whole(named):
    texts = ["a b", "c bad d", "e"]
    result = run(named("words_or_fail"), texts, BadRecords.SKIP)
    assert texts_of(result) == ["a", "b", "e"]
    later = run(named("words", "fails_on_b"), ["a b", "c"], BadRecords.SKIP)
    assert (texts_of(later), later.source.tolist()) == (["c"], [1])
    assert len(later.bad) == 1


def test_wrong_values_are_bad_records_with_what_was_wrong(named):
    result = run(named("returns_none_text"), ["a", "b", "c"], BadRecords.SKIP)
    assert texts_of(result) == ["x"]
    assert "column 'text' is None" in result.bad[0].reason
    assert "column 'text' is of type int, not str" in result.bad[1].reason
    with pytest.raises(DataError, match="returned int, not a dict"):
        run(named("returns_number"), ["a"])
    with pytest.raises(DataError, match="max_fan_out is 2"):
        run(named("Pair"), ["abc"])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("loses_text", "left out column 'text'; it returned words"),
        ("forgets_index", "without the column __record_index__"),
        ("wrong_index", r"within 0\.\.1"),
        ("makes_numbers", "comes out of the transforms as int64"),
    ],
)
def test_what_no_transform_may_do_is_a_config_error_even_where_bad_records_are_skipped(
    named, name, problem
):
    with pytest.raises(ConfigError, match=f"sources.a.transforms: .*{problem}"):
        run(named(name), ["a", "b"], BadRecords.SKIP)


def test_errors_of_the_surroundings_never_skip_a_record(named):
    with pytest.raises(ConnectionError) as error:
        run(named("reads_file"), ["a"], BadRecords.SKIP)
    assert error.value.__notes__ == [
        "in transform my_transforms:reads_file on /data/0.jsonl, byte 0"
    ]


def test_vectorized_transform_that_fails_only_on_many_rows_is_no_bad_record(named):
    with pytest.raises(DataError, match="2 records together, though on none of them alone"):
        run(named("wants_company"), ["a", "b"], BadRecords.SKIP)


@pytest.mark.parametrize("name", ["noise", "seeds", "noise_map"])
def test_randomness_belongs_to_the_record_alone(named, name):
    chain = named(name)
    texts = [str(i) for i in range(40)]
    whole = texts_of(run(chain, texts))
    assert len(set(whole)) == 40
    for part in (slice(0, 1), slice(7, 23), slice(39, None), slice(None, None, -1)):
        places = np.arange(40, dtype=np.int64)[part] * 10
        assert texts_of(run(chain, texts[part], places=places)) == whole[part]
    others = [
        texts_of(run(chain, texts, **change))
        for change in (
            {"seed": 4},
            {"source": "b"},
            {"epoch": 1},
            {"shards": np.ones(40, np.int32)},
            {"places": np.arange(40, dtype=np.int64) * 10 + 1},
        )
    ]
    assert not set(whole) & {text for other in others for text in other}


def test_records_made_out_of_one_and_transforms_after_another_draw_apart(named):
    numbers = texts_of(run(named("twice", "noise"), ["", ""]))
    assert len(set(numbers)) == 4
    twice = texts_of(run(named("noise", "noise"), [""]))[0]
    once = texts_of(run(named("noise"), [""]))[0]
    assert twice.startswith(once)
    assert twice != once + once


def test_reused_generator_is_a_new_one_at_each_seed():
    seeds = record_seeds(origins(3), np.arange(3), 0)
    generator = RecordGenerator(origins(3), 0)
    drawn = []
    for seed in (*seeds, seeds[0]):
        rng = generator.seeded(seed)
        drawn.append((rng.integers(10, size=3).tolist(), rng.normal(), rng.bytes(3)))
    assert drawn[3] == drawn[0]
    assert drawn[1] != drawn[0]


def test_seeds_are_pinned_since_they_decide_what_a_run_trains_on():
    seeds = record_seeds(origins(2), np.array([0, 1, 1]), 5)
    assert seeds.tolist() == [6105569081577935018, 2071748639126404069, 15275284070137234898]


def test_fingerprint_is_version_or_source_and_changes_with_it(named, tmp_path):
    upper, strip, noise = named("upper", "Strip", "noise").fingerprints
    assert strip == ("my_transforms:Strip", "version 2")
    assert upper[1].startswith("source ")
    assert "numpy" in noise[1]
    again = named("upper").fingerprints[0]
    assert again == upper
    (tmp_path / "other.py").write_text("def upper(record):\n    return record\n")
    changed = load_transforms(["other:upper"]).fingerprints[0]
    assert changed[1] != upper[1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("my_transforms", "is no module:function"),
        ("nowhere.at.all:f", "cannot be imported: ModuleNotFoundError"),
        ("my_transforms:uper", "Did you mean upper"),
        ("__main__:f", "main script"),
        ("my_transforms:constant", "is of type int"),
        ("my_transforms:two_arguments", "@randomized"),
        ("my_transforms:Noise", "cannot be made without arguments"),
        ("my_transforms:Indexed", "MapWithIndex"),
        ("math:sqrt", "version attribute"),
    ],
)
def test_names_that_are_no_transform_are_refused(named, name, problem):
    with pytest.raises(ConfigError, match=f"transforms: .*{problem}"):
        load_transforms([name])


def test_records_behind_tokens_are_refused(named):
    with pytest.raises(ConfigError, match=r"upper works on records but stands behind .*reverse"):
        named("reverse", "upper")


def test_a_module_that_fails_at_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_transforms(["broken_module:f"])


def test_loading_does_not_import_jax(tmp_path):
    import subprocess

    (tmp_path / "plain_module.py").write_text("def f(record):\n    return record\n")
    script = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from meshfeed.pipeline.data.transforms.applying import apply_to_records
    from meshfeed.pipeline.data.transforms import load_transforms
    load_transforms(["plain_module:f"])
    print("jax" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def tokens(*lists):
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]).astype(np.int64)
    return TokenBatch(ids=np.array([i for ids in lists for i in ids], np.int32), offsets=offsets)


def run_tokens(chain, batch, loss=None, has_loss=False, on_bad=BadRecords.FAIL):
    return apply_to_tokens(
        chain, batch, loss, origins(len(batch)), has_loss=has_loss, vocab_size=10, on_bad=on_bad
    )


@pytest.mark.parametrize(
    ("names", "want", "source"),
    [
        ([], [[1, 2, 3], [4], [], [5, 6]], [0, 1, 2, 3]),
        (["reverse"], [[3, 2, 1], [4], [], [6, 5]], [0, 1, 2, 3]),
        (["halves"], [[1], [2, 3], [], [4], [], [], [5], [6]], [0, 0, 1, 1, 2, 2, 3, 3]),
        (["keep_short", "plus_one"], [[5], [], [6, 7]], [1, 2, 3]),
        (["plus_one", "keep_short", "reverse"], [[5], [], [7, 6]], [1, 2, 3]),
    ],
)
def test_tokens_after_the_tokenizer(named, names, want, source):
    result = run_tokens(named(*names), tokens([1, 2, 3], [4], [], [5, 6]))
    assert [result.batch.record(i).tolist() for i in range(len(result.batch))] == want
    assert result.source.tolist() == source
    assert result.batch.ids.dtype == np.int32
    assert result.loss is None


def test_loss_mask_goes_with_its_tokens(named):
    batch = tokens([1, 2, 3], [4, 5])
    made = run_tokens(named("halves"), batch, np.array([1, 0, 1, 0, 1], np.uint8), True)
    assert made.loss.tolist() == [1, 0, 1, 0, 1]
    assert made.loss.dtype == np.uint8
    made = run_tokens(named("mask_first", "reverse"), batch, has_loss=True)
    assert made.loss.tolist() == [0, 1, 1, 0, 1]
    assert run_tokens(named(), batch, has_loss=True).loss.tolist() == [1] * 5
    with pytest.raises(ConfigError, match=r"returned a column 'loss_mask'.*loss_mask_column"):
        run_tokens(named("short_mask"), batch)


def test_wrong_tokens_are_bad_records(named):
    batch = tokens([1, 9], [2], [9])
    made = run_tokens(named("plus_one"), batch, on_bad=BadRecords.SKIP)
    assert [made.batch.record(i).tolist() for i in range(len(made.batch))] == [[3]]
    assert made.source.tolist() == [1]
    assert [bad.place for bad in made.bad] == [0, 20]
    assert r"token 10 is not within 0..9" in made.bad[0].reason
    with pytest.raises(DataError, match="1 entries of loss_mask for 2 tokens"):
        run_tokens(named("short_mask"), batch, has_loss=True)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "text": st.text(),
                "ids": st.lists(st.integers(-(2**15), 2**15 - 1), max_size=4),
                "score": st.one_of(st.none(), st.floats(allow_nan=False)),
            }
        ),
        max_size=8,
    )
)
def test_records_survive_the_way_to_dicts_and_back(records):
    types = {"text": pa.string(), "ids": pa.list_(pa.int16()), "score": pa.float64()}
    table = pa.table({n: pa.array([r[n] for r in records], types[n]) for n in types})
    dicts = records_of(pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    assert all(isinstance(d["ids"], np.ndarray) for d in dicts)
    back, faults = table_of(dicts, list(types), types, required=True)
    assert faults == {}
    assert back.to_pylist() == records
