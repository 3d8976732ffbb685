import numpy as np
import pytest

from meshfeed.pipeline.data.batches.regions import cut_region, region_nbytes, view_region
from meshfeed.pipeline.data.packing.blocks import BlockFormat
from meshfeed.pipeline.data.packing.pack import pack
from meshfeed.pipeline.plan.errors import ConfigError

FORMAT = BlockFormat(seq_len=16, token_dtype="uint16")


@pytest.fixture
def block():
    ids = np.arange(1, 61, dtype=np.int32)
    return pack(ids, np.array([0, 5, 12, 40, 60]), format=FORMAT, packing="concat").block


def test_the_size_is_what_travels_and_little_more():
    # 3 header integers, cols + 1 tokens and cols + 1 bits a row
    assert region_nbytes(FORMAT, 1024, 16) == 1024 * (12 + 17 * 2 + 3)
    assert region_nbytes(FORMAT, 1024, 7) == 1024 * (12 + 8 * 2 + 1)
    masked = BlockFormat(seq_len=16, loss_mask=True)
    assert region_nbytes(masked, 1024, 16) == 1024 * (12 + 17 * 4 + 2 * 3)
    assert region_nbytes(FORMAT, 1, 16) == 52  # 49, and the next region begins at a multiple of 4
    assert region_nbytes(FORMAT, 0, 16) == 0


def test_the_header_carries_what_columns_before_say(block):
    region = view_region(cut_region([block], [0] * 4, range(4), 8, 14, format=FORMAT), FORMAT, 4, 6)
    # records of 5, 7, 28 and 20 tokens: row 0 holds columns 0..4, 5..11 and 12..15 of three, so
    # that column 8 is at position 3 of the second; the next rows begin within a record each, and
    # column 8 of row 2 begins another; row 3 has 12 tokens
    assert region.header.tolist() == [[2, 3, 6], [1, 8, 6], [1, 8, 6], [1, 8, 4]]
    assert (region.rows, region.cols) == (4, 6)


def test_regions_of_column_blocks_cover_a_row(block):
    rows = [2, 0, 3]
    tokens = np.concatenate(
        [
            view_region(
                cut_region([block], [0] * 3, rows, c, c + 4, format=FORMAT), FORMAT, 3, 4
            ).tokens[:, :4]
            for c in range(0, 16, 4)
        ],
        axis=1,
    )
    np.testing.assert_array_equal(tokens, block.tokens[rows, :16])


def test_what_does_not_fit_is_refused(block):
    for c0, c1 in ((-1, 4), (4, 4), (0, 17)):
        with pytest.raises(ConfigError, match="is not within"):
            cut_region([block], [0], [0], c0, c1, format=FORMAT)
    with pytest.raises(ConfigError, match="a block has"):
        cut_region([block], [0], [0], 0, 4, format=BlockFormat(seq_len=16))
    with pytest.raises(ConfigError, match="bytes are not the 24 of 1 rows"):
        cut_region([block], [0], [0], 0, 4, format=FORMAT, out=np.empty(60, np.uint8))
    with pytest.raises(ConfigError, match="same format"):
        view_region(bytes(65), FORMAT, 1, 4)
    with pytest.raises(ConfigError, match="row"):
        cut_region([block], [0], [4], 0, 4, format=FORMAT)
    with pytest.raises(ConfigError, match="row"):
        cut_region([block], [1], [0], 0, 4, format=FORMAT)
