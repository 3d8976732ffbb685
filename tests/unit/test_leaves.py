import itertools

import numpy as np
import packing_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfeed.pipeline.data.batches import leaves as leaves_module
from meshfeed.pipeline.data.batches.leaves import derive
from meshfeed.pipeline.data.batches.regions import NO_BLOCK, cut_region, region_nbytes, view_region
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.pack import pack
from meshfeed.pipeline.plan.config import LEAVES, Packing
from meshfeed.pipeline.plan.errors import ConfigError


def one_block(lengths, format, packing, max_segments=0, first=1, counts=None):
    ids = np.arange(first, first + sum(lengths), dtype=np.int32)
    return pack(
        ids,
        np.cumsum([0, *lengths]),
        format=format,
        packing=packing,
        max_segments=max_segments,
        loss=counts,
    ).block


@st.composite
def batches(draw):
    """Blocks with their reference leaves, and rows chosen from them in any order."""
    seq_len = draw(st.integers(1, 40))
    loss_mask = draw(st.booleans())
    dtype = draw(st.sampled_from(["uint16", "int32"]))
    format = BlockFormat(seq_len=seq_len, token_dtype=dtype, loss_mask=loss_mask)
    blocks, full, first = [], [], 1
    for _ in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
        packing = draw(st.sampled_from(list(Packing)))
        limit = draw(st.integers(0, 3))
        counts = None
        if loss_mask:
            n = sum(lengths)
            counts = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        blocks.append(one_block(lengths, format, packing, limit, first, counts))
        starts = np.cumsum([0, *lengths]).tolist()
        spans = list(itertools.pairwise(starts))
        records = [list(range(first + a, first + b)) for a, b in spans]
        rows = reference.pack(records, seq_len, packing, "split", limit)
        masks = None if counts is None else [counts[a:b].tolist() for a, b in spans]
        full.append(reference.leaves(rows, seq_len, masks))
        first += sum(lengths)
    places = [(b, r) for b, block in enumerate(blocks) for r in range(block.rows)]
    places.append((NO_BLOCK, 0))
    if draw(st.booleans()):
        begin = draw(st.integers(0, len(places) - 1))
        chosen = places[begin : draw(st.integers(begin, len(places)))]
    else:
        chosen = draw(st.lists(st.sampled_from(places), max_size=20))
    c0 = draw(st.integers(0, seq_len - 1))
    c1 = draw(st.integers(c0 + 1, seq_len))
    expected = {
        name: np.array(
            [
                np.zeros(seq_len, full[0][name].dtype) if b == NO_BLOCK else full[b][name][r]
                for b, r in chosen
            ],
            full[0][name].dtype,
        ).reshape(len(chosen), seq_len)
        for name in LEAVES
    }
    return format, blocks, chosen, c0, c1, expected


@settings(max_examples=500, deadline=None)
@given(batches())
def test_a_region_gives_exactly_its_columns_of_the_full_leaves(batch):
    format, blocks, chosen, c0, c1, expected = batch
    which, rows = [b for b, _ in chosen], [r for _, r in chosen]
    dirty = np.full(region_nbytes(format, len(rows), c1 - c0), 0xAB, np.uint8)
    cut = cut_region(blocks, which, rows, c0, c1, format=format, out=dirty)
    assert not rows or np.shares_memory(cut, dirty)
    clean = cut_region(blocks, which, rows, c0, c1, format=format)
    assert cut.tobytes() == clean.tobytes()
    region = view_region(cut.tobytes(), format, len(rows), c1 - c0)
    for bitmap in (region.starts, region.loss):
        if bitmap is not None:
            assert not np.unpackbits(bitmap, axis=1, bitorder="little")[:, c1 - c0 + 1 :].any()
    for name, leaf in derive(region).items():
        np.testing.assert_array_equal(leaf, expected[name][:, c0:c1], err_msg=name, strict=True)


@pytest.mark.parametrize("tokens_at_once", [1, 8, 33, 64])
def test_a_large_region_is_done_in_parts(monkeypatch, tokens_at_once):
    format = BlockFormat(seq_len=8, loss_mask=True)
    counts = np.arange(70) % 3 > 0
    block = one_block([9, 1, 30, 5, 5, 20], format, "concat", counts=counts)
    cut = cut_region([block], np.zeros(block.rows, int), np.arange(block.rows), 2, 7, format=format)
    region = view_region(cut, format, block.rows, 5)
    at_once = derive(region)
    monkeypatch.setattr(leaves_module, "_TOKENS_AT_ONCE", tokens_at_once)
    for name, leaf in derive(region).items():
        np.testing.assert_array_equal(leaf, at_once[name])


@pytest.fixture
def region():
    format = BlockFormat(seq_len=8, token_dtype="uint16")
    block = one_block([5, 3, 2, 9], format, "concat")
    cut = cut_region([block], np.zeros(block.rows, int), np.arange(block.rows), 0, 8, format=format)
    return view_region(cut, format, block.rows, 8)


def test_leaves_are_new_aligned_memory_each_time(region):
    first, second = derive(region), derive(region)
    for name in LEAVES:
        assert first[name].ctypes.data % 64 == 0
        assert first[name].flags.c_contiguous
        assert first[name].flags.writeable
        assert not np.shares_memory(first[name], second[name])
        assert not np.shares_memory(first[name], region.tokens)


def test_only_what_is_wanted_is_made(region):
    assert list(derive(region, ["positions", "tokens"])) == ["positions", "tokens"]
    assert derive(region, []) == {}


def test_integer_weights_are_segment_ids(region):
    plain = derive(region)
    weights = derive(region, ["loss_weights"], {"loss_weights": np.int32})["loss_weights"]
    expected = np.where(plain["loss_weights"] > 0, plain["segment_ids"], 0)
    np.testing.assert_array_equal(weights, expected.astype(np.int32), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
@pytest.mark.parametrize("loss_mask", [False, True])
def test_weights_of_other_float_types(dtype, loss_mask):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    format = BlockFormat(seq_len=8, loss_mask=loss_mask)
    counts = np.arange(19) % 4 > 0 if loss_mask else None
    block = one_block([5, 3, 2, 9], format, "concat", counts=counts)
    cut = cut_region([block], np.zeros(block.rows, int), np.arange(block.rows), 0, 8, format=format)
    region = view_region(cut, format, block.rows, 8)
    weights = derive(region, ["loss_weights"], {"loss_weights": dtype})["loss_weights"]
    assert weights.dtype == dtype
    expected = derive(region)["loss_weights"]
    np.testing.assert_array_equal(weights.astype(np.float32), expected)


def test_leaves_are_written_where_they_are_wanted(region):
    out = {name: np.full((3, 8), 7, leaf.dtype) for name, leaf in derive(region).items()}
    written = derive(region, out=out)
    for name, leaf in derive(region).items():
        assert written[name] is out[name]
        np.testing.assert_array_equal(out[name], leaf)


def test_what_does_not_fit_is_refused(region):
    with pytest.raises(ConfigError, match="'masks' is unknown"):
        derive(region, ["masks"])
    with pytest.raises(ConfigError, match=r"int32\[2, 8\] was given to hold int32\[3, 8\]"):
        derive(region, out={"tokens": np.zeros((2, 8), np.int32)})
    with pytest.raises(ConfigError, match="C-contiguous"):
        derive(region, out={"tokens": np.zeros((8, 3), np.int32).T})
    with pytest.raises(ConfigError, match="positions: uint32"):
        derive(region, dtypes={"positions": np.uint32})
