# SPDX-License-Identifier: Apache-2.0
"""A sort order is read as Spark's ORDER BY would read it, or refused."""

from __future__ import annotations

import pytest

from airflow_mv.core.spec.properties import SORT_PROPERTY, SortColumn, sort_order
from airflow_mv.errors import ConfigurationError

COLUMNS = ("day", "Region", "a, b`c")


def read(text: str) -> tuple[SortColumn, ...] | None:
    return sort_order({SORT_PROPERTY: text}, COLUMNS, view="v")


def test_a_sort_order_names_columns_with_directions() -> None:
    """The defaults for nulls are those of Spark: the smallest value. Names ignore case, as in Spark."""
    assert read("day, region DESC") == (SortColumn("day"), SortColumn("Region", descending=True, nulls_first=False))
    assert read(" REGION desc nulls first ,`a, b``c` asc Nulls Last ") == (
        SortColumn("Region", descending=True),
        SortColumn("a, b`c", nulls_first=False),
    )
    assert SortColumn("a, b`c").sql() == "`a, b``c` ASC NULLS FIRST"
    assert read("  ") == ()
    assert sort_order({}, COLUMNS, view="v") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("day,", "is not a list of columns"),
        (",day", "is not a list of columns"),
        ("day DESC ASC", "is not a list of columns"),
        ("day; DROP TABLE x", "is not a list of columns"),
        ("`day", "is not a list of columns"),
        ("days(day)", r"there is no column 'days\(day\)'"),
        ("day, DAY DESC", "'DAY' occurs twice"),
    ],
)
def test_other_text_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"view v, property {SORT_PROPERTY}: .*{problem}"):
        read(text)
