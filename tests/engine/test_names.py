# SPDX-License-Identifier: Apache-2.0
"""The names of a run's catalog, branch and temporary views are never mistaken for the owner's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from airflow_mv.checks import condition, sql
from airflow_mv.core.refresh.choose import plan_refresh
from airflow_mv.core.script import STAGING_CATALOG, Outcome, Script
from airflow_mv.core.spec.materialized_view import staging_branch
from airflow_mv.errors import CheckFailedError, MaterializedViewError
from airflow_mv.extras.read import read_rows, readable
from tests.builders import LAYOUTS
from tests.engine.support import Lake

#: The public names in statements and errors.
STAGING = "airflow_mv_staging"
COLUMN = f"`{STAGING}`"
TABLE = f"{{ns}}.`{STAGING}`"
TEXTS = f"'{STAGING}', '`{STAGING}`.`staged`.`storage`', '`{STAGING}-t0__new`', '{STAGING}_0123456789ab'"
GROUPED = f"SELECT {COLUMN}, array({TEXTS}) AS src, sum(v) AS v FROM {TABLE} GROUP BY {COLUMN}"
ROWS = f"SELECT {COLUMN}, array({TEXTS}) AS src, v FROM {TABLE} WHERE {COLUMN} <> '{STAGING}_'"
STORED = [STAGING, f"`{STAGING}`.`staged`.`storage`", f"`{STAGING}-t0__new`", f"{STAGING}_0123456789ab"]
INCREMENTAL: dict[str, Any] = {
    "refresh_strategy": "incremental",
    "properties": {"airflow-mv.incremental-up-to": "1000"},
}
BOTH = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture
def base(lake: Lake) -> Lake:
    lake.table(STAGING, f"{STAGING} varchar, v bigint", f"('{STAGING}', 1), ('other', 2)")
    return lake


def stored(base: Lake) -> list[tuple[Any, ...]]:
    found = read_rows(base.catalog, readable(base.catalog, base("v")))
    return sorted(tuple(row) for row in found.rows())


@BOTH
@pytest.mark.parametrize(("query", "mode"), [(GROUPED, "merge"), (ROWS, "append")])
def test_the_name_of_the_staging_catalog_is_text_like_any_other(base: Lake, layout: str, query: str, mode: str) -> None:
    """As a literal, a column and a base table: it is stored unchanged, by a full and by an incremental refresh."""
    base.create("v", query, layout=layout, **INCREMENTAL)
    none = sql(f"SELECT count(*) = 0 FROM {{rows}} WHERE src[0] <> '{STAGING}'")
    base.refresh("v", checks=(condition(f"src[0] = '{STAGING}'"), none))
    assert stored(base) == [(STAGING, STORED, 1), ("other", STORED, 2)]
    base.insert(STAGING, "('new', 7)")
    assert base.refresh("v").mode == mode
    assert stored(base) == [(STAGING, STORED, 1), ("new", STORED, 7), ("other", STORED, 2)]


@BOTH
def test_the_keys_of_replaced_rows_may_have_the_name_of_the_staging_catalog(base: Lake, layout: str) -> None:
    query = f"SELECT {COLUMN}, array({TEXTS}) AS src, max(v) AS v FROM {TABLE} GROUP BY {COLUMN}"
    base.create("v", query, layout=layout, **INCREMENTAL)
    base.refresh("v")
    base.run(f"DELETE FROM {TABLE} WHERE v = 1", f"INSERT INTO {TABLE} VALUES ('{STAGING}', 0)")
    assert base.refresh("v").mode == "replace-keys"
    assert stored(base) == [(STAGING, STORED, 0), ("other", STORED, 2)]


def test_the_name_of_the_branch_is_text_like_any_other(base: Lake) -> None:
    """Each run's branch has its own name; a literal of the owner is not changed."""
    base.create("v", GROUPED, layout="registered")
    branch = staging_branch(plan_refresh(base.catalog, base("v")).refresh_id)
    parts = branch[:20], branch[20:]
    base.refresh("v", checks=(condition(f"'{branch}' = concat('{parts[0]}', '{parts[1]}')"),))
    assert stored(base) == [(STAGING, STORED, 1), ("other", STORED, 2)]


@BOTH
def test_errors_and_check_results_have_public_names_instead_of_a_run_s(base: Lake, layout: str) -> None:
    """A name that exists in no other session is useless to users, and two messages of one failure would differ."""
    base.create("v", GROUPED, layout=layout, **INCREMENTAL)
    scripts: list[Script] = []
    outcomes: list[Outcome] = []

    def stager(script: Script) -> Outcome:
        scripts.append(script)
        outcomes.append(base.stager(script))
        return outcomes[-1]

    broken = (condition("v / (v - 1) > 0 OR assert_true(false) IS NULL"), condition("no_such_function(v) > 0"))
    with pytest.raises(CheckFailedError) as found:
        base.refresh("v", stager=stager, checks=broken)
    problems = [result.problem or "" for result in outcomes[-1].checks]
    assert len(list(filter(None, problems))) == 2
    _assert_public(str(found.value), outcomes[-1].to_json(), *scripts[-1].statements)


@BOTH
@pytest.mark.parametrize(
    "tamper", [lambda text: text.replace("storage", "nothing").replace("`branch_", "`no_"), lambda text: f"{text} +"]
)
def test_the_error_of_a_statement_has_public_names(base: Lake, layout: str, tamper: Callable[[str], str]) -> None:
    base.create("v", GROUPED, layout=layout)
    lost: list[Outcome] = []

    def stager(script: Script) -> Outcome:
        lost.append(base.stager(_tampered(script, tamper)))
        return lost[-1]

    with suppress(MaterializedViewError):
        base.refresh("v", stager=stager)
    assert lost[-1].error
    _assert_public(lost[-1].to_json())


def _tampered(script: Script, tamper: Callable[[str], str]) -> Script:
    last = script.steps[-1]
    return replace(script, steps=(*script.steps[:-1], replace(last, sql=tamper(last.sql), query="")))


def _assert_public(*texts: str) -> None:
    assert STAGING_CATALOG == STAGING
    for text in texts:
        assert not re.search(rf"{STAGING}_[0-9a-f]{{12}}", text.replace(f"{STAGING}_0123456789ab", "")), text
