"""Running transforms over the records of a window, so that each result knows its record.

What comes out depends on each record, the settings and (seed, source, epoch, shard, place) alone.
A transform that raises makes its record a bad record, like broken content: that is the same
wherever it runs. What may be different elsewhere (``OSError``, ``MemoryError``) is never one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshfeed.pipeline.data import transforms
from meshfeed.pipeline.data.formats.records import BadRecord
from meshfeed.pipeline.data.transforms import RECORD_INDEX, Record, Transform, TransformChain
from meshfeed.pipeline.data.transforms.origins import Origins, RecordGenerator, record_seeds
from meshfeed.pipeline.data.transforms.record_table import records_of, table_of
from meshfeed.pipeline.plan.config import BadRecords
from meshfeed.pipeline.plan.errors import ConfigError, DataError, MeshfeedError

Ints = npt.NDArray[np.int64]
Seeds = npt.NDArray[np.uint64]
Check = Callable[[pa.Table], Mapping[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """m records made out of n.

    Attributes:
        table: the columns asked for; m rows.
        source: int64 [m], which of the n records each was made out of.
        bad: records that a transform failed on, one entry each; none of their results is kept.
    """

    table: pa.Table
    source: Ints
    bad: tuple[BadRecord, ...] = ()


class _Rows:
    """Records on their way through a chain: as a table or as dicts, whichever was last."""

    def __init__(self, table: pa.Table) -> None:
        self._types = {field.name: field.type for field in table.schema}
        self._table: pa.Table | None = table
        self._records: list[Record] | None = None
        self.source: Ints = np.arange(len(table), dtype=np.int64)

    def columns(self) -> list[str]:
        """Columns that any row has."""
        if self._records is None and self._table is not None:
            return list(self._table.column_names)
        return list(dict.fromkeys(name for r in self._records or () for name in r))

    def as_records(self) -> list[Record]:
        if self._records is None:
            self._records = records_of(self._table)
        return self._records

    def set_records(self, records: list[Record], source: Sequence[int]) -> None:
        self._records, self._table = records, None
        self.source = np.array(source, np.int64)

    def set_table(self, table: pa.Table, source: Ints) -> None:
        self._table, self._records, self.source = table, None, source
        self._types |= {field.name: field.type for field in table.schema}

    def as_table(self, columns: Sequence[str] | None) -> tuple[pa.Table, dict[int, str]]:
        """The table of some columns, which must be there, or of all (None); faults by row."""
        if self._table is None and self._records is not None:
            wanted = self.columns() if columns is None else columns
            return table_of(self._records, wanted, self._types, required=columns is not None)
        table: Any = self._table
        return (table if columns is None else table.select(columns)), {}

    def leave_out(self, rows: Sequence[int]) -> None:
        keep = np.ones(len(self.source), bool)
        keep[list(rows)] = False
        if self._records is not None:
            self._records = [r for r, good in zip(self._records, keep, strict=True) if good]
        if self._table is not None:
            self._table = self._table.filter(pa.array(keep))
        self.source = self.source[keep]


class TransformRun:
    """One pass of a chain's stage over the records of one window.

    Args:
        chain: for the name of the setting.
        origins: of the n records.
        on_bad: whether a record that a transform fails on ends the run or is left out.
    """

    def __init__(self, chain: TransformChain, origins: Origins, on_bad: BadRecords) -> None:
        self._setting = chain.setting
        self._origins = origins
        self._on_bad = on_bad
        self._bad: dict[int, str] = {}

    def run(
        self,
        steps: Sequence[tuple[int, Transform]],
        table: pa.Table,
        columns: Sequence[str],
        check: Check,
        *,
        refused: Mapping[str, str] = MappingProxyType({}),
    ) -> Transformed:
        """Apply transforms to the n records of ``table`` and keep ``columns`` of the result.

        Args:
            steps: (position in the chain, transform).
            table: n records.
            columns: to keep.
            check: gives what is wrong with some rows of the result.
            refused: columns that the result must not have, with what to do instead.

        Raises:
            DataError: a transform fails on a record and ``on_bad`` is ``FAIL``.
            ConfigError: a transform returns what none may, whatever the record.
        """
        rows = _Rows(table)
        for position, transform in steps:
            if len(rows.source) == 0:
                break
            if transform.vectorized:
                self._vectorized(rows, position, transform)
            else:
                self._one_by_one(rows, position, transform)
        if len(rows.source) == 0 or not steps:
            return Transformed(
                table=table.select(columns).slice(0, len(rows.source)),
                source=rows.source,
                bad=self._bad_records(),
            )
        last = steps[-1][1]
        self._require(rows, last, columns, refused)
        result = self._tabled(rows, last, columns)
        self._leave_out(rows, last, check(result))
        if self._bad:  # with them what else was made out of the same records
            rows.leave_out(np.flatnonzero(np.isin(rows.source, list(self._bad))).tolist())
            result = rows.as_table(columns)[0]
        return Transformed(table=result, source=rows.source, bad=self._bad_records())

    def _one_by_one(self, rows: _Rows, position: int, transform: Transform) -> None:
        seeds = record_seeds(self._origins, rows.source, position) if transform.randomized else None
        generator = RecordGenerator(self._origins, position) if transform.randomized else None
        results: list[Record] = []
        source: list[int] = []
        for i, (record, origin) in enumerate(
            zip(rows.as_records(), rows.source.tolist(), strict=True)
        ):
            try:
                if generator is None or seeds is None:
                    made = transform.call(record)
                else:
                    made = transform.call(record, generator.seeded(seeds[i]))
                made = _as_records(made, record)
            except Exception as error:  # noqa: BLE001 - whatever a user's code raises; reported
                self._failed(origin, transform, error)
                continue
            results += made
            source += [origin] * len(made)
        rows.set_records(results, source)

    def _vectorized(self, rows: _Rows, position: int, transform: Transform) -> None:
        table = self._tabled(rows, transform, None)
        seeds = record_seeds(self._origins, rows.source, position) if transform.randomized else None
        try:
            made, index = self._call_on(transform, table, seeds)
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises; reported
            parts = self._row_by_row(transform, table, seeds, rows.source, error)
            made = pa.concat_tables([p[0] for p in parts], promote_options="default")
            index = np.concatenate([p[1] for p in parts])
        rows.set_table(made, rows.source[index])

    def _row_by_row(
        self,
        transform: Transform,
        table: pa.Table,
        seeds: Seeds | None,
        source: Ints,
        error: Exception,
    ) -> list[tuple[pa.Table, Ints]]:
        """Find the rows on which a vectorized transform fails by giving it each alone."""
        if not _is_content(error):
            error.add_note(f"in transform {transform.name}")
            raise error
        parts: list[tuple[pa.Table, Ints]] = [(table.slice(0, 0), np.empty(0, np.int64))]
        failed = 0
        for i in range(len(table)):
            one = None if seeds is None else seeds[i : i + 1]
            try:
                made, index = self._call_on(transform, table.slice(i, 1), one)
            except Exception as own:  # noqa: BLE001 - whatever a user's code raises; reported
                self._failed(int(source[i]), transform, own)
                failed += 1
                continue
            parts.append((made, index + i))
        if not failed:
            raise DataError(
                self._origins.address(int(self._origins.shards[source[0]])),
                f"transform {transform.name} fails on {len(table)} records together, though on "
                f"none of them alone: {_in_words(error)}",
                hint="A vectorized transform must treat each row by itself",
            ) from error
        return parts[1:] or parts

    def _call_on(
        self, transform: Transform, table: pa.Table, seeds: Seeds | None
    ) -> tuple[pa.Table, Ints]:
        rows = len(table)
        given = table.append_column(RECORD_INDEX, pa.array(np.arange(rows, dtype=np.int64)))
        result = transform.call(given) if seeds is None else transform.call(given, seeds)
        made, index = _table_and_index(result)
        if not isinstance(made, pa.Table):
            raise ConfigError(
                self._setting,
                f"{transform.name} is vectorized and returned {type(made).__name__}",
                "Return a pyarrow.Table, or a table and the indices of its rows",
            )
        if RECORD_INDEX in made.column_names:
            index = made.column(RECORD_INDEX) if index is None else index
            made = made.drop_columns([RECORD_INDEX])
        if index is None:
            raise ConfigError(
                self._setting,
                f"{transform.name} returned a table without the column {RECORD_INDEX}",
                "Keep that column, or return (table, indices), so that rows can be traced",
            )
        index = np.asarray(index, np.int64)
        if len(index) != len(made) or (len(index) and not 0 <= index.min() <= index.max() < rows):
            raise ConfigError(
                self._setting,
                f"{transform.name} returned {len(made)} rows with {len(index)} indices, which must "
                f"be as many and within 0..{rows - 1}",
            )
        return made, index

    def _tabled(self, rows: _Rows, transform: Transform, columns: Sequence[str] | None) -> pa.Table:
        table, faults = rows.as_table(columns)
        if faults:
            self._leave_out(rows, transform, faults)
            table, _ = rows.as_table(columns)
        return table

    def _leave_out(self, rows: _Rows, transform: Transform, faults: Mapping[int, str]) -> None:
        for row, reason in sorted(faults.items()):
            self._failed(int(rows.source[row]), transform, ValueError(reason))
        if faults:
            rows.leave_out(list(faults))

    def _require(
        self, rows: _Rows, last: Transform, columns: Sequence[str], refused: Mapping[str, str]
    ) -> None:
        """Columns that no result at all has: the transform is wrong, not the records."""
        there = rows.columns()
        for name in columns:
            if name not in there:
                raise ConfigError(
                    self._setting,
                    f"{last.name} left out column {name!r}; it returned {', '.join(there)}",
                    "The source's columns must come out of its transforms",
                )
        for name in there:
            if name in refused:
                raise ConfigError(
                    self._setting, f"{last.name} returned a column {name!r}", refused[name]
                )

    def _failed(self, origin: int, transform: Transform, error: Exception) -> None:
        shard = int(self._origins.shards[origin])
        place = f"{self._origins.unit} {int(self._origins.places[origin])}"
        where = f"{self._origins.address(shard)}, {place}"
        if not _is_content(error):
            error.add_note(f"in transform {transform.name} on {where}")
            raise error
        reason = f"transform {transform.name} failed: {_in_words(error)}"
        if self._on_bad is BadRecords.FAIL:
            hint = "Correct the transform, or set bad_records: skip"
            if isinstance(error, KeyError):
                hint = "Mark the transform @needs(...) for columns besides the source's own"
            raise DataError(self._origins.address(shard), reason, place=place, hint=hint) from error
        self._bad.setdefault(origin, reason)

    def _bad_records(self) -> tuple[BadRecord, ...]:
        shards, places = self._origins.shards, self._origins.places
        return tuple(
            BadRecord(int(shards[i]), int(places[i]), self._origins.unit, reason)
            for i, reason in sorted(self._bad.items())
        )


def _table_and_index(result: Any) -> tuple[Any, Any]:
    if isinstance(result, tuple) and len(result) == 2:
        return result[0], result[1]
    return result, None


def _as_records(made: Any, record: Record) -> list[Record]:
    if made is None or made is False:
        return []
    if made is True:
        return [record]
    if isinstance(made, dict):
        return [made]
    if isinstance(made, bool | np.bool_):
        return [record] if made else []
    if isinstance(made, str | bytes) or not hasattr(made, "__iter__"):
        raise TypeError(
            f"it returned {type(made).__name__}, not a dict, a list of them, True, False or None"
        )
    results = list(made)
    for result in results:
        if not isinstance(result, dict):
            raise TypeError(f"it returned a list that holds {type(result).__name__}, not a dict")
    return results


def _is_content(error: Exception) -> bool:
    """Whether an error is the same wherever the record is read."""
    environment = isinstance(error, OSError | MemoryError)
    return not environment and (
        isinstance(error, DataError) or not isinstance(error, MeshfeedError)
    )


def _in_words(error: Exception) -> str:
    """Type, message and the line of the user's function that an error came through."""
    ours = (__file__, transforms.__file__)
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in ours]
    where = f" ({lines[0].filename.rpartition('/')[2]} line {lines[0].lineno})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"
