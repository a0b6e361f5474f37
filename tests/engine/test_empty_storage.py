# SPDX-License-Identifier: Apache-2.0
"""A view that is created without Spark has the storage table that Spark would have made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_mv.core.catalog import LoadedView
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.extras.columns import empty_table as creation
from tests.builders import LAYOUTS
from tests.engine.support import Lake

_COLUMNS = (
    "id bigint COMMENT 'the order', region string COMMENT 'where', amount decimal(12, 2), at timestamp, "
    "seen timestamp_ntz, day date COMMENT 'of `at`', share double, weight float, few smallint, paid boolean, raw binary"
)
#: Each with the partitioning of its storage table.
_QUERIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "SELECT * FROM {ns}.orders": ("days(at)", "bucket(16, id)", "truncate(2, region)", "paid"),
    "SELECT day AS d, Region, sum(amount) AS amount, avg(amount) AS mean, count(*) AS n, max(few) AS few "
    "FROM {ns}.orders GROUP BY day, Region": ("years(d)", "`Region`"),
    "WITH t AS (SELECT id, seen, weight FROM {ns}.orders) SELECT id, seen, cast(weight AS int) AS w FROM t "
    "UNION SELECT id, seen, 1 FROM {ns}.orders": ("hours(seen)",),
    "SELECT o.id, p.region AS other FROM {ns}.orders o LEFT JOIN {ns}.orders p ON o.id = p.id": (),
}


_ONLY_SPARK = Reason(Code.UNSUPPORTED_OPERATOR, "only Spark knows")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_storage_table_is_the_one_that_spark_makes(
    lake: Lake, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.run(f"CREATE TABLE {{ns}}.orders ({_COLUMNS}) USING iceberg")
    for number, (sql, partition_by) in enumerate(_QUERIES.items()):
        given: dict[str, Any] = {"layout": layout, "partition_by": partition_by}
        before = len(lake.scripts)
        without = lake.create(f"planned{number}", sql, **given)
        assert len(lake.scripts) == before
        with monkeypatch.context() as patched:
            patched.setattr(creation, "known_table", lambda *_: _ONLY_SPARK)
            by_spark = lake.create(f"spark{number}", sql, **given)
        assert len(lake.scripts) == before + 1
        assert without.metadata.schema_ == by_spark.metadata.schema_
        assert _shape(lake, without) == _shape(lake, by_spark)
    lake.insert("orders", "(1, 'north', 1.5, now(), now()::timestamp, current_date, 1, 1, 1, true, NULL)")
    for number in range(len(_QUERIES)):
        lake.refresh(f"planned{number}", f"spark{number}")
        assert lake.rows(f"planned{number}") == lake.rows(f"spark{number}")


def _shape(lake: Lake, view: LoadedView) -> dict[str, Any]:
    """What a storage table's metadata file says, but what differs in any two tables, and the user, whom Spark notes."""
    storage = lake.catalog.load_storage(view)
    document = json.loads(lake.catalog.files.read(storage.location, what="storage table"))
    properties = document["properties"]
    kept = {key: value for key, value in properties.items() if not key.startswith("airflow-mv.") and key != "owner"}
    named = ("schemas", "partition-specs", "sort-orders", "format-version", "last-column-id", "current-schema-id")
    return {"properties": kept, **{key: document[key] for key in named}}
