# SPDX-License-Identifier: Apache-2.0
"""The package as Airflow sees it: its commands, its plugin manager, its rule for assets."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.sdk import Asset

from airflow_mv.provider_info import get_provider_info

INFO = get_provider_info()
COMMANDS = (
    "providers list",
    "providers get airflow-mv --full",
    "providers links",
    "providers triggers",
    "providers configs",
    "providers hooks",
    "plugins",
    "config get-value airflow_mv page_conn_ids",
)
#: The commands themselves, in one process: each takes seconds to start.
RUN = """
import contextlib, io, json, sys
from airflow.cli.cli_parser import get_parser
printed = {}
for line in json.loads(sys.argv[1]):
    output = ["-o", "json"] if not line.startswith("config ") else []
    with contextlib.redirect_stdout(io.StringIO()) as text:
        arguments = get_parser().parse_args([*line.split(), *output])
        arguments.func(arguments)
    printed[line] = text.getvalue()
print("<<<printed>>>" + json.dumps(printed))
"""


@cache
def _outputs() -> dict[str, str]:
    environment = {**os.environ, "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(COMMANDS)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "airflow_mv" not in done.stderr, done.stderr  # Airflow warns here if an import fails
    return json.loads(done.stdout.partition("<<<printed>>>")[2])


def _rows(command: str) -> list[dict[str, Any]]:
    printed = _outputs()[command]
    return json.loads(printed[printed.index("[") :])


def test_the_provider_is_listed_with_its_description() -> None:
    """`airflow providers list` is what users of Airflow run first."""
    (row,) = [row for row in _rows("providers list") if row["package_name"] == "airflow-mv"]
    assert row["description"].startswith("Incremental materialized views in Apache Iceberg")
    printed = _outputs()["providers get airflow-mv --full"]
    assert "Iceberg materialized views" in printed
    assert all(name in printed for name in ("airflow_mv.operators", "airflow_mv.sensors", "airflow_mv.triggers"))


def test_links_triggers_settings_and_the_page_are_found() -> None:
    """Airflow omits what it cannot import, with only a warning in a log."""
    links = str(_rows("providers links"))
    assert all(f"airflow_mv.tasks.links.{name}" in links for name in ("MaterializedViewLink", "SparkApplicationLink"))
    assert any("airflow_mv.triggers" in str(row) for row in _rows("providers triggers"))
    assert "page_conn_ids" in _outputs()["providers configs"]
    assert _outputs()["config get-value airflow_mv page_conn_ids"].strip().endswith("iceberg_default")
    (plugin,) = [row for row in _rows("plugins") if row["name"] == "airflow_mv"]
    assert "/airflow-mv" in str(plugin)


def test_the_form_of_iceberg_connections_is_the_iceberg_provider_s() -> None:
    """If two providers define one connection type, the one whose name is first in the alphabet is used."""
    (row,) = [row for row in _rows("providers hooks") if row["connection_type"] == "iceberg"]
    assert "airflow.providers.apache.iceberg" in str(row)


def test_the_description_matches_airflow_s_schema() -> None:
    """An invalid provider removes the complete list of providers."""
    schema = Path(airflow.__file__).with_name("provider_info.schema.json")
    jsonschema.validate(INFO, json.loads(schema.read_text()))


def _names() -> list[str]:
    modules = [
        name for kind in ("operators", "sensors", "hooks", "triggers") for name in INFO[kind][0]["python-modules"]
    ]
    (uris,) = INFO["asset-uris"]
    return [*modules, *INFO["extra-links"], uris["handler"], uris["to_openlineage_converter"]]


@pytest.mark.parametrize("name", _names())
def test_everything_that_the_description_names_exists(name: str) -> None:
    """Nothing else would detect a module that was moved."""
    module, _, last = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        assert hasattr(importlib.import_module(module), last)


@pytest.mark.parametrize("uri", ["iceberg-mv://lake", "iceberg-mv://lake/sales", "iceberg-mv:///sales/daily"])
def test_an_asset_that_names_no_view_is_refused_when_the_dag_is_parsed(uri: str) -> None:
    """A DAG that is scheduled by it would never start."""
    with pytest.raises(ValueError, match="iceberg-mv://catalog/namespace/name"):
        Asset(name="x", uri=uri)
