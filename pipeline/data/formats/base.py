"""What a format module offers, and what a look at one shard tells of a source.

A module of ``meshfeed.pipeline.data.formats`` has

- ``read_chunk(file, ref, spec) -> ChunkRecords``: the records of ``shard_index`` that start in
  [begin, end), and no others, so that every record belongs to exactly one chunk;
- ``sample(file, spec) -> Sample``: from a footer or the first bytes, a bounded number of them.
  Raises DataError where the used columns are not there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Densities of a source, estimated from one shard. A unit is a byte of the file, or a record.

    Attributes:
        text_bytes: bytes of text in the used column for each unit; 0 for token ids.
        tokens: token ids in the used column for each unit; 0 for text.
        record: units of a typical record.
        piece: units of a typical row group or record batch, which cannot be cut; 0: cut anywhere.
        used_fraction: share of the file that a read of the used columns brings in.
        index_bytes: bytes of the footer.
    """

    text_bytes: float
    tokens: float
    record: float
    piece: float = 0.0
    used_fraction: float = 1.0
    index_bytes: int = 0

    def tokens_per_unit(self, tokens_per_byte: float) -> float:
        """Tokens in a unit, with ``tokens_per_byte`` tokens in a byte of text."""
        return self.tokens + self.text_bytes * tokens_per_byte
