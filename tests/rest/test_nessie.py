# SPDX-License-Identifier: Apache-2.0
"""Nessie as a REST catalog: no materialized views. Its tables as base tables: tests/engine/test_matrix.py."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import load_catalog

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import UnsupportedError
from tests.builders import Lake
from tests.duck import DuckStager


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["table", "registered"])
def test_a_server_that_drops_branches_is_refused_with_the_cure_and_nothing_is_left(
    nessie: dict[str, str], layout: str
) -> None:
    """It answers to the creation of a branch and a tag with success."""
    iceberg = load_catalog("lake", **nessie, **{"view-endpoints-supported": "true"})
    iceberg.create_namespace("sales")
    catalog = MaterializedViewCatalog(iceberg)
    home = Lake(iceberg, catalog, DuckStager(catalog, iceberg), layout)
    home.table()
    with pytest.raises(UnsupportedError, match=r"did not keep them.*(Nessie's does not)"):
        home.view()
    assert iceberg.list_tables("sales") == [("sales", "orders")]
    assert not iceberg.list_views("sales")


@pytest.mark.slow
def test_a_server_that_lists_no_endpoints_is_believed_to_have_no_views_and_the_error_has_the_cure(
    nessie: dict[str, str],
) -> None:
    catalog = MaterializedViewCatalog(load_catalog("lake", **nessie))
    assert catalog.layouts == ("table",)
    with pytest.raises(
        UnsupportedError, match=r"has no support for views .*set .*'view-endpoints-supported' to 'true'"
    ):
        create(catalog, "sales.daily", Definition("SELECT 1 AS one", layout="registered"), stager=unused)


def unused(_: Script) -> Outcome:
    raise AssertionError("nothing may run")
