# SPDX-License-Identifier: Apache-2.0
"""I21 and I24: text from a catalog is never imported as a class, and never rendered as a template."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Context
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import MaterializedViewCatalog, TableChange
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.script import Script
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.extras.read import read_rows, readable
from airflow_mv.operators import CommitRefreshOperator, CreateMaterializedViewOperator, PlanRefreshOperator
from airflow_mv.operators.task import log_plan
from tests.builders import QUERY, Lake, lake
from tests.cli.support import call
from tests.security.conftest import VIEW, Shop

#: Keys by which pyiceberg, Java's Iceberg or an old version of one of them loads a class.
CLASS_KEYS = (
    "py-io-impl",
    "py-catalog-impl",
    "py-location-provider-impl",
    "write.py-location-provider.impl",
    "s3.retry-strategy-impl",
    "io-impl",
    "file-io-impl",
    "metrics-reporter-impl",
    "catalog-impl",
    "write.location-provider.impl",
    "rest.client.tls.configurer-impl",
    "auth.impl",
    "auth",
    "client.factory",
    "client.credentials-provider",
)
MODULE = "airflow_mv_canary_module"
TRANSPORT = {
    "s3.endpoint": "http://127.0.0.1:1",
    "s3.signer.uri": "http://127.0.0.1:1",
    "s3.proxy-uri": "http://127.0.0.1:1",
}


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A module that records its import, and properties that name a class in it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(
        "class Evil:\n    def __init__(self, *a, **k):\n        raise SystemExit('imported')\n"
    )
    monkeypatch.syspath_prepend(folder)
    yield {**dict.fromkeys(CLASS_KEYS, f"{MODULE}.Evil"), **TRANSPORT}
    sys.modules.pop(MODULE, None)


def test_i21_an_import_of_the_canary_module_is_detected(canary: dict[str, str]) -> None:
    """Positive control: pyiceberg imports the classes that a catalog's own properties name."""
    with pytest.raises(SystemExit, match="imported"):
        load_catalog("x", type="in-memory", **{"py-io-impl": canary["py-io-impl"]}).create_namespace(
            "a"
        ) or load_catalog("y", **{"py-catalog-impl": canary["py-catalog-impl"]})
    assert MODULE in sys.modules


def test_i21_class_keys_of_views_and_tables_import_nothing(shop: Shop, canary: dict[str, str]) -> None:
    """In properties of the view, the storage table and the base table; and no address is taken from there."""
    base = json.loads(Path(shop.table_file.removeprefix("file://")).read_text())
    shop.point(
        shop.put({**base, "properties": {**base.get("properties", {}), **canary}}, "base.metadata.json"), "orders"
    )
    storage = shop.storage_document
    location = shop.put({**storage, "properties": {**storage["properties"], **canary}}, "storage.metadata.json")
    document = shop.document
    settings = json.dumps({"storage-table-location": location, **canary})
    properties = {**document["properties"], **canary, "materialized_view_metadata": settings}
    shop.with_view({**document, "properties": properties})

    for command in ("status", "plan", "history", "show", "read"):
        assert call(command, VIEW, "--json").code == 0
    plan = plan_refresh(shop.lake.catalog, shop.lake.catalog.identify(VIEW))
    assert plan.mode in ("noop", "fast-forward")
    assert read_rows(shop.lake.catalog, readable(shop.lake.catalog, VIEW)).to_arrow().num_rows == 2
    assert MODULE not in sys.modules


def test_i21_class_keys_of_a_storage_table_in_the_catalog_import_nothing(
    registered_shop: Shop, canary: dict[str, str]
) -> None:
    """Anyone who may write to it can set them, and pyiceberg opens it for every read and commit."""
    shop = registered_shop
    shop.with_storage_properties(canary)
    for command in ("status", "plan", "history", "show", "read"):
        assert call(command, VIEW, "--json").code == 0
    catalog = MaterializedViewCatalog(shop.lake.iceberg)
    assert catalog.load_storage(catalog.load(VIEW)).open(catalog.tables).scan().to_arrow().num_rows == 2
    assert MODULE not in sys.modules
    shop.lake.append()
    plan = plan_refresh(catalog, catalog.identify(VIEW))
    assert plan.storage_table is not None
    with pytest.raises(InvalidMetadataError, match=r"'write\.py-location-provider\.impl' names a class"):
        catalog.tables.commit(plan.storage_table, "", TableChange(properties={"a": "b"}))
    assert MODULE not in sys.modules


def test_i21_a_table_that_pyiceberg_opens_imports_nothing(shop: Shop, canary: dict[str, str]) -> None:
    """pyiceberg chooses a table's FileIO by the table's own properties, unless the catalog prevents it."""
    base = json.loads(Path(shop.table_file.removeprefix("file://")).read_text())
    shop.point(shop.put({**base, "properties": canary}, "base.metadata.json"), "orders")
    properties = {key: shop.lake.iceberg.properties[key] for key in ("uri", "warehouse")}
    iceberg = SqlCatalog("lake", **properties)
    MaterializedViewCatalog(iceberg)
    table = iceberg.load_table("sales.orders")
    assert table.properties["py-io-impl"] == canary["py-io-impl"]
    assert "s3.endpoint" not in table.io.properties
    assert MODULE not in sys.modules
    # Positive control: without this package it does.
    with pytest.raises(SystemExit, match="imported"):
        SqlCatalog("lake", **properties).load_table("sales.orders")


# ------------------------------------------------------------------------------------- templates

CANARIES = (
    "{{ 7*7 }}",
    "{% set x = 1 %}{{ x }}",
    "{0.__class__}",
    "{view}",
    "%(x)s %s %d",
    "$x ${HOME}x",
    "{# gone #}",
)
TEMPLATED_SQL = "SELECT region, '" + "', '".join(CANARIES).replace("${", "$ {") + "' AS t FROM lake.sales.orders"


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Lake]:
    """A lake with a view whose query, name, comment and properties contain templates."""
    (tmp_path / "w").mkdir()
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w") as found:
        found.table()
        sql = "SELECT region, '{{ 7*7 }}' AS `{% raw %}`, '%s {0}' AS f FROM lake.sales.orders"
        properties = {"comment": " ".join(CANARIES), "{{ 7*7 }}": "{{ 7*7 }}"}
        create(found.catalog, "sales.`{{ 7*7 }}`", Definition(sql, properties=properties), stager=found.stager)
        yield found


def test_i24_templates_in_sql_names_comments_and_properties_are_not_changed(odd: Lake) -> None:
    """Through creation, plan, script, JSON, refresh, record and reading."""
    view = odd.catalog.identify("sales.`{{ 7*7 }}`")
    plan = plan_refresh(odd.catalog, view)
    assert plan.script is not None
    statement = RefreshPlan.from_dict(json.loads(json.dumps(plan.to_dict()))).statements[-1]
    assert "'{{ 7*7 }}' AS `{% raw %}`, '%s {0}' AS f" in statement
    assert Script.from_json(plan.script.to_json()) == plan.script
    odd.refresh(view)
    loaded = odd.catalog.load(view)
    assert loaded.metadata.properties["comment"] == " ".join(CANARIES)
    assert loaded.metadata.properties["{{ 7*7 }}"] == "{{ 7*7 }}"
    assert {(row["{% raw %}"], row["f"]) for row in odd.read(view)} == {("{{ 7*7 }}", "%s {0}")}


def test_i24_log_lines_show_templates_and_format_characters_as_text(
    odd: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """A ``%s`` in them could fail the task with a formatting error, or show another text."""
    import logging

    caplog.set_level(logging.INFO)
    plan = plan_refresh(odd.catalog, odd.catalog.identify("sales.`{{ 7*7 }}`"))
    log_plan(logging.getLogger("task"), plan)
    assert "lake.sales.`{{ 7*7 }}`" in caplog.text
    assert "49" not in caplog.text.partition("Plan for")[2].partition("\n")[0]


@pytest.mark.parametrize("as_template", [True, False])
def test_i24_a_plan_that_crosses_an_xcom_is_not_rendered_again(odd: Lake, as_template: bool) -> None:
    """The commit task's field ``plan`` is templated, but the XCom's content must not be rendered."""
    document = plan_refresh(odd.catalog, odd.catalog.identify("sales.`{{ 7*7 }}`")).to_dict()
    with DAG("d", schedule=None, render_template_as_native_obj=True):
        produce = PlanRefreshOperator(task_id="plan", view=VIEW)
        given: Any = "{{ ti.xcom_pull('plan') }}" if as_template else produce.output
        commit = CommitRefreshOperator(task_id="commit", plan=given)

    class Instance:
        """The part of a task instance that a template uses."""

        def xcom_pull(self, *args: Any, **kwargs: Any) -> Any:
            return json.loads(json.dumps(document))

    commit.render_template_fields(Context(ti=Instance(), expanded_ti_count=None))  # type: ignore[typeddict-item]
    assert commit.plan == document


def test_i24_fields_with_sql_are_rendered_once_and_never_loaded_as_files() -> None:
    """A view may be named ``lake.reports.sql``, and SQL may end in ``.sql``: neither is a file to load."""
    task = CreateMaterializedViewOperator(task_id="c", view="lake.reports.sql", sql="SELECT '{{ '{{ 7*7 }}' }}' AS a")
    assert task.template_ext == ()
    task.render_template_fields(Context())
    assert task.view == "lake.reports.sql"
    assert task.sql == "SELECT '{{ 7*7 }}' AS a"


def test_i24_the_package_formats_and_renders_no_text_at_run_time() -> None:
    """``str.format``, ``Template`` and ``Environment`` are not used in the package: f-strings do not evaluate data."""
    import ast

    import airflow_mv

    found = []
    for path in Path(airflow_mv.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or node.attr not in ("format", "format_map", "from_string"):
                continue
            # `read` is Spark's reader, `super()` a log's formatter.
            if not isinstance(node.value, ast.Constant) and not ast.unparse(node.value).endswith((".read", "super()")):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
    assert QUERY
