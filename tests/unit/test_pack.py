from collections import Counter

import numpy as np
import packing_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.pipeline.data.batches.leaves import derive
from meshfeed.pipeline.data.batches.regions import cut_region, view_region
from meshfeed.pipeline.data.memory import aligned_empty
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.pack import pack
from meshfeed.pipeline.plan.config import Overlong, Packing
from meshfeed.pipeline.plan.errors import ConfigError, DataError

PACKINGS = list(Packing)


def flat(records, dtype=np.int32):
    """Records as ids and offsets."""
    ids = np.array([t for r in records for t in r], dtype)
    return ids, np.cumsum([0, *(len(r) for r in records)])


def numbered(lengths):
    """Records of these lengths in which every token is another number, from 1."""
    starts = np.cumsum([1, *lengths])
    return [list(range(a, a + n)) for a, n in zip(starts.tolist(), lengths, strict=False)]


def whole(block):
    """All leaves of a block."""
    rows, seq_len = block.rows, block.format.seq_len
    buffer = cut_region(
        [block], np.zeros(rows, int), np.arange(rows), 0, seq_len, format=block.format
    )
    return derive(view_region(buffer, block.format, rows, seq_len))


@st.composite
def packings(draw):
    seq_len = draw(st.integers(1, 20))
    lengths = draw(st.lists(st.one_of(st.integers(0, 6), st.integers(0, 3 * seq_len)), max_size=25))
    return {
        "records": numbered(lengths),
        "seq_len": seq_len,
        "packing": draw(st.sampled_from(PACKINGS)),
        "overlong": draw(st.sampled_from(list(Overlong))),
        "max_segments": draw(st.integers(0, 4)),
    }


def run(case, **options):
    loss_mask = options.get("loss") is not None
    format = BlockFormat(seq_len=case["seq_len"], token_dtype="uint16", loss_mask=loss_mask)
    return pack(
        *flat(case["records"]),
        format=format,
        packing=case["packing"],
        overlong=case["overlong"],
        max_segments=case["max_segments"],
        **options,
    )


@settings(max_examples=400, deadline=None)
@given(packings())
def test_rows_leaves_and_provenance_are_those_of_the_reference(case):
    packed = run(case)
    rows = reference.pack(**case)
    expected = reference.leaves(rows, case["seq_len"])
    got = whole(packed.block)
    assert set(got) == set(expected)
    for name in got:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name, strict=True)
    np.testing.assert_array_equal(
        packed.block.lengths, [sum(len(s.tokens) for s in row) for row in rows]
    )
    places = []
    for r, row in enumerate(rows):
        starts = np.cumsum([0, *(len(s.tokens) for s in row)]).tolist()
        places += [(r, a, s.record, s.offset) for a, s in zip(starts, row, strict=False)]
    assert list(zip(*(c.tolist() for c in packed.segments), strict=True)) == places
    assert all(column.dtype == np.int32 for column in packed.segments)


@settings(max_examples=200, deadline=None)
@given(packings())
def test_nothing_is_lost_and_the_limits_hold(case):
    packed = run(case)
    records, seq_len = case["records"], case["seq_len"]
    leaves = whole(packed.block)
    real = leaves["segment_ids"] > 0
    tokens = Counter(leaves["tokens"][real].tolist())
    given = Counter(t for r in records for t in r)
    assert not tokens - given
    assert sum((given - tokens).values()) == packed.truncated_tokens
    assert packed.tokens == tokens.total()
    assert packed.padding == real.size - tokens.total()
    assert packed.empty_records == sum(not r for r in records)
    assert packed.overlong_records == sum(len(r) > seq_len for r in records)
    truncates = case["overlong"] is Overlong.TRUNCATE and case["packing"] is not Packing.CONCAT
    assert packed.truncated_tokens == (
        sum(max(0, len(r) - seq_len) for r in records) if truncates else 0
    )
    # every token but a record's first is a target exactly once
    targets = Counter(leaves["targets"][leaves["loss_weights"] > 0].tolist())
    firsts = Counter(r[0] for r in records if r)
    assert targets == tokens - firsts
    for ids in leaves["segment_ids"]:
        used = ids[ids > 0]
        assert sorted(set(used.tolist())) == list(range(1, used.max() + 1))
        assert (np.diff(used) >= 0).all()
        assert (ids[len(used) :] == 0).all()
        if case["packing"] is Packing.NONE:
            assert used.max() == 1
        if case["max_segments"]:
            assert used.max() <= case["max_segments"]


@settings(max_examples=100, deadline=None)
@given(packings(), st.randoms(use_true_random=False))
def test_a_loss_mask_goes_with_its_tokens(case, random):
    counts = [[random.random() < 0.5 for _ in r] for r in case["records"]]
    packed = run(case, loss=np.array([c for r in counts for c in r], np.uint8))
    rows = reference.pack(**case)
    expected = reference.leaves(rows, case["seq_len"], counts)
    for name, leaf in whole(packed.block).items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_format_with_a_loss_mask_counts_all_tokens_where_none_is_given(packing):
    ids, offsets = flat(numbered([3, 20, 9, 8]))
    plain, masked = (
        pack(ids, offsets, format=BlockFormat(seq_len=8, loss_mask=mask), packing=packing)
        for mask in (False, True)
    )
    for name, leaf in whole(plain.block).items():
        np.testing.assert_array_equal(whole(masked.block)[name], leaf)


@pytest.mark.parametrize("packing", PACKINGS)
def test_case_22_max_segments_holds_and_positions_restart(packing):
    ids, offsets = flat(numbered([1] * 100))
    packed = pack(ids, offsets, format=BlockFormat(seq_len=16), packing=packing, max_segments=4)
    leaves = whole(packed.block)
    assert leaves["segment_ids"].max() == (1 if packing is Packing.NONE else 4)
    assert packed.block.rows == (100 if packing is Packing.NONE else 25)
    assert sorted(leaves["tokens"][leaves["segment_ids"] > 0].tolist()) == list(range(1, 101))
    assert not leaves["positions"].any()

    packed = pack(*flat(numbered([5, 3, 7, 2])), format=BlockFormat(seq_len=20), packing="concat")
    leaves = whole(packed.block)
    assert leaves["segment_ids"][0].tolist() == [1] * 5 + [2] * 3 + [3] * 7 + [4] * 2 + [0] * 3
    expected = [*range(5), *range(3), *range(7), *range(2), 0, 0, 0]
    assert leaves["positions"][0].tolist() == expected


@pytest.mark.parametrize("packing", PACKINGS)
def test_case_23_a_record_longer_than_a_row_is_split_or_truncated_and_counted(packing):
    ids, offsets = flat(numbered([40]))
    options = {"format": BlockFormat(seq_len=16), "packing": packing}
    split = pack(ids, offsets, overlong=Overlong.SPLIT, **options)
    assert split.block.lengths.tolist() == [16, 16, 8]
    assert (split.overlong_records, split.truncated_tokens) == (1, 0)
    assert split.segments.offset.tolist() == [0, 16, 32]
    assert whole(split.block)["targets"].ravel()[:40].tolist() == [*range(2, 41), 0]

    truncated = pack(ids, offsets, overlong=Overlong.TRUNCATE, **options)
    if packing is Packing.CONCAT:
        assert truncated.block.buffer.tobytes() == split.block.buffer.tobytes()
        assert (truncated.overlong_records, truncated.truncated_tokens) == (1, 0)
    else:
        assert truncated.block.lengths.tolist() == [16]
        assert (truncated.overlong_records, truncated.truncated_tokens) == (1, 24)
        assert whole(truncated.block)["loss_weights"][0].tolist() == [1.0] * 15 + [0.0]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("lengths", [[], [0, 0, 0]])
def test_no_tokens_give_no_rows(packing, lengths):
    packed = pack(*flat(numbered(lengths)), format=BlockFormat(seq_len=16), packing=packing)
    assert packed.block.rows == packed.tokens == packed.padding == 0
    assert packed.empty_records == len(lengths)
    assert whole(packed.block)["tokens"].shape == (0, 16)


@pytest.mark.parametrize("packing", PACKINGS)
def test_records_may_lie_anywhere_in_the_ids(packing):
    records = numbered([4, 9, 30, 0, 2])
    ids, offsets = flat(records)
    around = np.concatenate([np.full(7, 999), ids, np.full(5, 999)]).astype(np.uint32)
    format = BlockFormat(seq_len=8, token_dtype="int32")
    a = pack(ids, offsets, format=format, packing=packing)
    b = pack(around, (offsets + 7).astype(np.int32), format=format, packing=packing)
    assert a.block.buffer.tobytes() == b.block.buffer.tobytes()


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_block_is_the_same_bytes_in_memory_that_was_used_before(packing):
    ids, offsets = flat(numbered([3, 20, 9, 8, 1, 1]))
    options = {
        "format": BlockFormat(seq_len=8, loss_mask=True),
        "packing": packing,
        "max_segments": 3,
    }
    memory = []

    def allocate(nbytes):
        memory.append(aligned_empty(nbytes))
        memory[-1][:] = 0xAB
        return memory[-1]

    used = pack(ids, offsets, allocate=allocate, **options)
    assert len(memory) == 1
    assert np.shares_memory(used.block.tokens, memory[0])
    assert used.block.buffer.tobytes() == pack(ids, offsets, **options).block.buffer.tobytes()


def test_ids_that_do_not_fit_are_refused_by_record():
    ids, offsets = flat(numbered([3, 4, 5]))
    ids[8] = 70_000
    small = BlockFormat(seq_len=8, token_dtype="uint16")
    with pytest.raises(DataError, match=r"record 2 of the window: id 70000 is outside 0\.\.65535"):
        pack(ids, offsets, format=small, packing=Packing.CONCAT)
    pack(ids, offsets, format=BlockFormat(seq_len=8), packing=Packing.CONCAT)
    ids[8] = -1
    with pytest.raises(DataError, match="id -1 is outside"):
        pack(ids, offsets, format=small, packing=Packing.CONCAT)


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_ids_outside_of_the_vocabulary_are_refused_by_record(dtype):
    ids, offsets = flat(numbered([3, 4, 5]))
    format = BlockFormat(seq_len=8, token_dtype=dtype)
    pack(ids, offsets, format=format, packing=Packing.CONCAT, vocab_size=int(ids.max()) + 1)
    ids[5] = 500
    with pytest.raises(DataError, match=r"record 1 of .*: id 500 is outside 0\.\.499, the vocabul"):
        pack(ids, offsets, format=format, packing=Packing.CONCAT, vocab_size=500)
    ids[5] = -1
    with pytest.raises(DataError, match="id -1 is outside"):
        pack(ids, offsets, format=format, packing=Packing.CONCAT, vocab_size=500)


def test_offsets_and_masks_that_are_not_such_are_refused():
    ids, _ = flat(numbered([3, 4, 5]))
    format = BlockFormat(seq_len=8)
    for offsets in ([], [0, 5, 4], [-1, 4], [0, 13]):
        with pytest.raises(DataError, match="ascend"):
            pack(ids, np.array(offsets, np.int64), format=format, packing=Packing.CONCAT)
    with pytest.raises(ConfigError, match="loss_mask_column"):
        pack(ids, np.array([0, 12]), format=format, packing="concat", loss=np.ones(12))
    masked = BlockFormat(seq_len=8, loss_mask=True)
    with pytest.raises(DataError, match="11 values for 12 tokens"):
        pack(ids, np.array([0, 12]), format=masked, packing="concat", loss=np.ones(11))
