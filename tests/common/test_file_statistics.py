# SPDX-License-Identifier: Apache-2.0
"""File statistics exclude a file only if none of its rows can match."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_mv.common.file_statistics import FileStatistics, added_rows_may_match, fields_without_nulls
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.ivm import Comparison
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import InvalidMetadataError, MetadataFileNotFoundError
from airflow_mv.extras.fleet.ranges import ranges_of

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
COLUMNS = pa.schema(
    [
        ("n", pa.int64()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("word", pa.string()),
        ("x", pa.float64()),
    ]
)
days = st.integers(0, 20).map(lambda number: date(2026, 1, 1) + timedelta(days=number))
prices = st.integers(-300, 300).map(lambda number: Decimal(number).scaleb(-2))
words = st.text(max_size=20)
rows = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-5, 5),
        "price": st.none() | prices,
        "day": st.none() | days,
        "word": st.none() | words,
        "x": st.none() | st.floats(-1, 1),
    }
)
comparisons = st.one_of(
    st.tuples(st.just("n"), st.integers(-6, 6), st.just("number")),
    st.tuples(st.just("price"), prices, st.just("number")),
    st.tuples(st.just("day"), days, st.just("date")),
    st.tuples(st.just("word"), words, st.just("text")),
    st.tuples(st.just("x"), st.floats(-1, 1), st.just("number")),
)
filters = st.lists(st.tuples(comparisons, st.sampled_from(list(OPERATORS))), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    folder: Path = tmp_path_factory.mktemp("statistics")
    found = SqlCatalog("lake", uri="sqlite://", warehouse=f"file://{folder}", init_catalog_tables="true")
    found.create_namespace("s")
    yield found
    found.engine.dispose()


def may_match(
    catalog: SqlCatalog, stored: list[dict[str, Any]], *wanted: tuple[Comparison, ...], metrics: str = "truncate(16)"
) -> bool:
    """Whether an appended file with these rows may contain a row that passes the filter."""
    if catalog.table_exists("s.t"):
        catalog.drop_table("s.t")
    table = catalog.create_table("s.t", COLUMNS, properties={"write.metadata.metrics.default": metrics})
    table.append(pa.Table.from_pylist(stored, COLUMNS))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return added_rows_may_match(MetadataFiles({}), table.metadata_location, {snapshot.snapshot_id}, wanted)


def table_of_one_row(catalog: SqlCatalog) -> tuple[Table, Snapshot]:
    """Return a new table, and its only snapshot."""
    row = {"n": 3, "price": Decimal(1), "day": date(2026, 1, 5), "word": "b", "x": 0.5}
    assert may_match(catalog, [row], (Comparison("n", "=", "3", "number"),))
    table = catalog.load_table("s.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return table, snapshot


def passes(row: dict[str, Any], wanted: list[tuple[tuple[str, Any, str], str]]) -> bool:
    return all(row[name] is not None and OPERATORS[symbol](row[name], value) for (name, value, _), symbol in wanted)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=1, max_size=4), filters)
def test_a_row_that_passes_the_filter_is_never_excluded(
    catalog: SqlCatalog, stored: list[dict[str, Any]], wanted: list[tuple[tuple[str, Any, str], str]]
) -> None:
    """A change that is skipped by mistake leaves wrong rows in the view."""
    comparisons = tuple(Comparison(name, symbol, str(value), kind) for (name, value, kind), symbol in wanted)  # type: ignore[arg-type]
    if not may_match(catalog, stored, comparisons):
        assert not any(passes(row, wanted) for row in stored)


def test_rows_outside_the_bounds_are_excluded(catalog: SqlCatalog) -> None:
    row = {"n": 3, "price": Decimal("1.50"), "day": date(2026, 1, 5), "word": "b", "x": 0.5}
    for out in (
        Comparison("n", ">", "3", "number"),
        Comparison("price", "<", "1.50", "number"),
        Comparison("day", ">=", "2026-01-06", "date"),
        Comparison("word", "=", "a", "text"),
    ):
        assert not may_match(catalog, [row], (out,)), out
        assert may_match(catalog, [row], (out,), (Comparison("n", "=", "3", "number"),)), (
            "the row matches one of the two filters"
        )


@pytest.mark.parametrize(
    "comparison",
    [
        Comparison("x", ">", "9", "number"),
        Comparison("n", "=", "1.5", "number"),
        Comparison("n", "=", "7", "text"),
        Comparison("day", "=", "no day", "date"),
        Comparison("gone", "=", "1", "number"),
    ],
    ids=str,
)
def test_a_comparison_that_needs_a_conversion_or_has_no_statistics_may_match(
    catalog: SqlCatalog, comparison: Comparison
) -> None:
    row = {"n": 3, "price": Decimal(1), "day": date(2026, 1, 5), "word": "b", "x": 0.5}
    assert may_match(catalog, [row], (comparison,))


@pytest.mark.parametrize("role", ["manifest", "manifest list"])
@pytest.mark.parametrize(
    ("spoil", "error"),
    [(Path.unlink, MetadataFileNotFoundError), (lambda path: path.write_bytes(b"no"), InvalidMetadataError)],
)
def test_an_unreadable_manifest_raises_an_error_that_names_it(
    catalog: SqlCatalog, spoil: Callable[[Path], Any], error: type[Exception], role: str
) -> None:
    """A plan that reads another writer's broken file fails with an error of one line."""
    table, snapshot = table_of_one_row(catalog)
    location = snapshot.manifest_list if role == "manifest list" else snapshot.manifests(table.io)[0].manifest_path
    spoil(Path(urlsplit(location).path))
    wanted = [(Comparison("n", "=", "3", "number"),)]
    with pytest.raises(error, match=f"{role}: (the file )?{location}"):
        added_rows_may_match(MetadataFiles({}), table.metadata_location, {snapshot.snapshot_id}, wanted)


def test_a_filter_without_comparisons_excludes_nothing(catalog: SqlCatalog) -> None:
    assert may_match(catalog, [{"n": 1, "price": None, "day": None, "word": None, "x": None}], ())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=3), st.booleans())
def test_a_column_is_without_nulls_only_if_each_row_of_both_snapshots_has_a_value(
    catalog: SqlCatalog, files: list[list[dict[str, Any]]], deletes: bool
) -> None:
    """A sum whose values are counted by count(*) would be wrong. Files that the later snapshot has lost count, too."""
    if catalog.table_exists("s.t"):
        catalog.drop_table("s.t")
    table = catalog.create_table("s.t", COLUMNS)
    for stored in files:
        table.append(pa.Table.from_pylist(stored, COLUMNS))
    first = table.current_snapshot()
    if deletes:
        table.delete()
        table.append(pa.Table.from_pylist([dict.fromkeys(COLUMNS.names, None)], COLUMNS))
    last = table.current_snapshot()
    assert first is not None
    assert last is not None
    ids = {field.field_id: field.name for field in table.schema().fields}
    every = [row for stored in files for row in stored]
    for snapshots in ({first.snapshot_id}, {first.snapshot_id, last.snapshot_id}):
        found = fields_without_nulls(MetadataFiles({}), table.metadata_location, snapshots, {*ids, 99})
        full = {name for name in COLUMNS.names if all(row[name] is not None for row in every)}
        assert {ids[field] for field in found} == (set() if deletes and len(snapshots) > 1 else full)


def test_fields_of_too_many_files_or_of_an_unknown_snapshot_are_not_known(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, snapshot = table_of_one_row(catalog)

    def known(number: int) -> frozenset[int]:
        return fields_without_nulls(MetadataFiles({}), table.metadata_location, {number}, {1, 2})

    assert (known(snapshot.snapshot_id), known(7)) == ({1, 2}, frozenset())
    monkeypatch.setattr("airflow_mv.common.file_statistics._MAX_FILES", 0)
    assert known(snapshot.snapshot_id) == frozenset()


def test_how_many_rows_were_copied_is_not_known_without_the_manifests(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only an estimate needs the number. Files without statistics of the rows' versions have no copies."""
    table, snapshot = table_of_one_row(catalog)
    statistics, name = FileStatistics(MaterializedViewCatalog(catalog)), Identifier(catalog.name, ("s",), "t")

    def copied() -> int | None:
        return statistics.rows_copied(name, table.metadata_location, {snapshot.snapshot_id})

    assert copied() == 0
    with monkeypatch.context() as patch:
        patch.setattr("airflow_mv.core.catalog.manifest_changes.MAX_MANIFESTS", 0)
        assert copied() is None
    Path(urlsplit(snapshot.manifest_list).path).unlink()
    assert copied() is None
    assert f"Could not count the changed rows of {name}" in caplog.text


# ------------------------------------------------------------------------ statistics that are wrong or left out
ROWS_AT, VALUES_AT, NULLS_AT, LOW_AT, HIGH_AT = 4, 7, 8, 10, 11
#: What a writer may have done to the statistics of column 1, of two rows with the values 3 and NULL: (place, value).
FALSE = {
    "no counts": {VALUES_AT: None, NULLS_AT: None},
    "no bounds": {LOW_AT: None, HIGH_AT: None},
    "only an upper bound": {LOW_AT: None},
    "nothing but NULL": {NULLS_AT: 2},
    "more NULLs than rows": {NULLS_AT: 7},
    "a negative number of NULLs": {NULLS_AT: -1},
    "fewer values than rows": {VALUES_AT: 1, NULLS_AT: 0},
    "more values than rows": {VALUES_AT: 7, NULLS_AT: 0},
    "bounds in the wrong order": {LOW_AT: (9).to_bytes(8, "little"), HIGH_AT: (1).to_bytes(8, "little")},
    "bounds of another type": {LOW_AT: b"\x09", HIGH_AT: b"\x09\x00\x00"},
    "bounds from before a promotion": {LOW_AT: (3).to_bytes(4, "little"), HIGH_AT: (3).to_bytes(4, "little")},
    "no rows": {ROWS_AT: 0},
}


@pytest.mark.parametrize("name", FALSE)
def test_statistics_that_contradict_each_other_prove_nothing(catalog: SqlCatalog, name: str) -> None:
    """No file is skipped, and no column taken for one without NULL, because of what a writer left out or made up."""
    if catalog.table_exists("s.t"):
        catalog.drop_table("s.t")
    table = catalog.create_table("s.t", COLUMNS)
    row = {"n": 3, "price": Decimal(1), "day": date(2026, 1, 5), "word": "b", "x": math.nan}
    (file,) = _dataframe_to_data_files(
        table.metadata, pa.Table.from_pylist([row, {**row, "n": None}], COLUMNS), table.io
    )
    for place, value in FALSE[name].items():
        if place == ROWS_AT:
            file[place] = value
        elif value is None:
            file[place] = {key: kept for key, kept in file._data[place].items() if key != 1}
        else:
            file[place] = {**file._data[place], 1: value}
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    snapshot, location = table.current_snapshot(), table.metadata_location
    assert snapshot is not None

    def matches(*comparisons: Comparison) -> bool:
        return added_rows_may_match(MetadataFiles({}), location, {snapshot.snapshot_id}, [comparisons])

    assert matches(Comparison("n", "=", "3", "number"))
    assert matches(Comparison("n", ">=", "3", "number"), Comparison("day", "=", "2026-01-05", "date"))
    assert fields_without_nulls(MetadataFiles({}), location, {snapshot.snapshot_id}, {1}) == frozenset()
    known = ranges_of(MetadataFiles({}), location, snapshot.snapshot_id, "n", [()])
    assert known in (None, [(3, 3)])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(rows, min_size=1, max_size=4),
    filters,
    st.sampled_from(["none", "counts", "truncate(1)", "truncate(3)", "full"]),
)
def test_a_row_that_passes_is_never_excluded_in_any_metrics_mode(
    catalog: SqlCatalog, stored: list[dict[str, Any]], wanted: list[tuple[tuple[str, Any, str], str]], metrics: str
) -> None:
    """Also with bounds of a part of a text, or without any."""
    comparisons = tuple(Comparison(name, symbol, str(value), kind) for (name, value, kind), symbol in wanted)  # type: ignore[arg-type]
    if not may_match(catalog, stored, comparisons, metrics=metrics):
        assert not any(passes(row, wanted) for row in stored)
