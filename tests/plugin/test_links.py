# SPDX-License-Identifier: Apache-2.0
"""URLs of the page, and how Airflow finds it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points

import pytest

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.plugin import AirflowMvPlugin
from airflow_mv.provider_info import get_provider_info
from airflow_mv.tasks.links import MaterializedViewLink, application_url, page_url, show_link
from tests.older import PLUGINS


@pytest.mark.parametrize(
    ("base_url", "address"),
    [
        ("http://airflow:8080", "http://airflow:8080/plugin/materialized-views/airflow-mv/?view=lake.sales.daily"),
        (
            "https://one.net/team/",
            "https://one.net/team/plugin/materialized-views/team/airflow-mv/?view=lake.sales.daily",
        ),
        ("/", "/plugin/materialized-views/airflow-mv/?view=lake.sales.daily"),
    ],
)
def test_a_link_opens_the_page_in_airflow_s_frame_also_below_a_path(base_url: str, address: str) -> None:
    """Airflow's UI derives the frame's URL from the part after its own route."""
    assert page_url("lake.sales.daily", base_url=base_url) == address


def test_a_running_task_already_has_its_link() -> None:
    """Airflow itself creates links only when a task has ended."""
    pushed: dict[str, str] = {}

    class Instance:
        def xcom_push(self, key: str, value: str) -> None:
            pushed[key] = value

    show_link({"ti": Instance()}, Identifier("lake", ("sales",), "daily"))  # type: ignore[typeddict-item]
    (address,) = [pushed[MaterializedViewLink().xcom_key]]
    assert address.endswith("/airflow-mv/?view=lake.sales.daily")


def test_a_name_cannot_change_the_rest_of_a_url() -> None:
    """This holds for any name of a view."""
    assert page_url("lake.s.`a&dag_id=x#y`", base_url="/").endswith("?view=lake.s.%60a%26dag_id%3Dx%23y%60")


def test_an_application_has_a_url_if_the_setting_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id comes from a file in the view's store: only a valid id is used in the URL."""
    assert application_url("local-1700000000000") == ""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_MV__SPARK_APPLICATION_URL", "https://spark/history/{application_id}/jobs/")
    assert application_url("local-1700000000000") == "https://spark/history/local-1700000000000/jobs/"
    assert [application_url(item) for item in (None, "", "../x", "a b", "x?y#z")] == [""] * 5


def test_airflow_finds_the_plugin_by_its_entry_point() -> None:
    """It does not load plugins from the provider info."""
    (found,) = [item for item in entry_points(group="airflow.plugins") if item.name == "airflow_mv"]
    assert found.load() is AirflowMvPlugin
    assert issubclass(AirflowMvPlugin, import_module(PLUGINS).AirflowPlugin)
    AirflowMvPlugin.validate()
    assert all(view["icon"].startswith("data:image/svg+xml,") for view in AirflowMvPlugin.external_views)
    assert "data:" not in str(AirflowMvPlugin.external_views), "as `airflow plugins` prints them"
    assert "data:image/svg+xml,%3Csvg" in json.dumps(AirflowMvPlugin.external_views), "as Airflow's UI gets them"
    routes = [view["url_route"] for view in AirflowMvPlugin.external_views]
    assert len(set(routes)) == len(routes)


def test_processes_that_serve_no_page_import_no_web_framework() -> None:
    """Workers load plugins for every task."""
    code = (
        f"import {PLUGINS}, sys; before = set(sys.modules); import airflow_mv.plugin; "
        "print(sorted({'fastapi', 'pyiceberg', 'sqlalchemy', 'pyspark', 'sqlglot'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_page_s_options_are_documented_in_airflow_s_configuration() -> None:
    """`airflow config list` shows them with their defaults."""
    options = get_provider_info()["config"]["airflow_mv"]["options"]
    assert options["page_conn_ids"]["default"] == "iceberg_default"
    assert float(options["page_cache_seconds"]["default"]) == 10
