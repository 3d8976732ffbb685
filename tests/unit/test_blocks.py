import pickle

import numpy as np
import pytest

from meshfeed.pipeline.data.memory import ALIGNMENT, aligned_empty
from meshfeed.pipeline.data.packing.blocks import BlockFormat, RowBlock, set_bits
from meshfeed.pipeline.data.packing.pack import pack
from meshfeed.pipeline.plan.errors import ConfigError, DataError


def some_block(loss_mask=False, token_dtype="uint16", seq_len=9):
    format = BlockFormat(seq_len=seq_len, token_dtype=token_dtype, loss_mask=loss_mask)
    ids = np.arange(1, 51, dtype=np.int32)
    return pack(ids, np.array([0, 3, 20, 50]), format=format, packing="concat").block


@pytest.mark.parametrize("loss_mask", [False, True])
@pytest.mark.parametrize("token_dtype", ["uint16", "int32"])
@pytest.mark.parametrize("seq_len", [1, 7, 8, 9, 64])
def test_a_block_survives_its_buffer(loss_mask, token_dtype, seq_len):
    block = some_block(loss_mask, token_dtype, seq_len)
    assert len(block.buffer) == block.format.nbytes(block.rows)
    memory = bytearray(len(block.buffer) + 100)
    assert block.to_buffer(memory) == len(block.buffer)
    again = RowBlock.from_buffer(bytes(memory))
    assert again.format == block.format
    assert again.rows == block.rows == -(-50 // seq_len)
    assert not again.tokens.flags.writeable
    for name in ("tokens", "lengths", "starts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(block, name), strict=True)
    assert (again.loss is None) == (not loss_mask)
    if loss_mask:
        np.testing.assert_array_equal(again.loss, block.loss)


def test_views_share_the_buffer_and_are_aligned():
    block = some_block(loss_mask=True)
    for array in (block.tokens, block.lengths, block.starts, block.loss):
        assert np.shares_memory(array, block.buffer)
        assert array.ctypes.data % ALIGNMENT == 0


def test_the_bits_are_what_the_module_says():
    block = some_block(
        seq_len=9
    )  # records of 3, 17, 30 tokens; rows [0, 9), [9, 18), ..., [45, 50)
    bits = np.unpackbits(block.starts, axis=1, bitorder="little")
    assert bits.shape == (6, 16)
    set_in_row = [np.flatnonzero(row).tolist() for row in bits]
    assert set_in_row == [[0, 3], [0], [0, 2], [0], [0], [0, 5, 9]]
    assert block.tokens[:, 9].tolist() == [10, 19, 28, 37, 46, 0]
    assert block.lengths.tolist() == [9, 9, 9, 9, 9, 5]


def test_what_is_no_block_is_refused():
    block = some_block()
    good = bytearray(block.buffer)
    with pytest.raises(DataError, match="are left of"):
        RowBlock.from_buffer(good[:-1])
    with pytest.raises(DataError, match="less than the header"):
        RowBlock.from_buffer(good[:10])
    for place in (0, 8, 24):  # magic, version, dtype
        bad = bytearray(good)
        bad[place] ^= 0x55
        with pytest.raises(DataError, match="unknown"):
            RowBlock.from_buffer(bad)
    with pytest.raises(ConfigError, match="cannot hold"):
        block.to_buffer(bytearray(10))
    with pytest.raises(ConfigError, match="cannot hold"):
        RowBlock.allocate(block.format, 6, bytearray(10))


def test_formats():
    assert BlockFormat.for_vocab(8, 1 << 16).token_dtype == "uint16"
    assert BlockFormat.for_vocab(8, (1 << 16) + 1).token_dtype == "int32"
    with pytest.raises(ConfigError, match="vocab_size"):
        BlockFormat.for_vocab(8, 0)
    with pytest.raises(ConfigError, match="seq_len"):
        BlockFormat(seq_len=0)
    with pytest.raises(ConfigError, match="int64"):
        BlockFormat(seq_len=8, token_dtype="int64")
    format = BlockFormat(seq_len=8, token_dtype="uint16", loss_mask=True)
    assert pickle.loads(pickle.dumps(format)) == format


def test_set_bits_sets_just_those_bits():
    rng = np.random.default_rng(0)
    rows, bits = rng.integers(0, 5, 60), rng.integers(0, 30, 60)
    bitmap = np.zeros((5, 4), np.uint8)
    set_bits(bitmap, rows, bits)
    expected = np.zeros((5, 32), np.uint8)
    expected[rows, bits] = 1
    np.testing.assert_array_equal(np.unpackbits(bitmap, axis=1, bitorder="little"), expected)


def test_aligned_memory_is_aligned_and_writable():
    for nbytes in (1, 63, 64, 1000):
        memory = aligned_empty(nbytes)
        assert len(memory) == nbytes
        assert memory.ctypes.data % ALIGNMENT == 0
        memory[:] = 1
