# SPDX-License-Identifier: Apache-2.0
"""The registry at the command line, and its settings in their layers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_mv.actions import refresh_views
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.registry.model import KINDS
from airflow_mv.extras.registry.questions import QUESTIONS
from airflow_mv.extras.registry.settings import DEFAULTS, registry_settings
from tests.builders import Lake, lake
from tests.cli.support import call
from tests.engine.support import configure, reload_configuration


@pytest.fixture(params=["airflow_mv"])
def configured(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """The only configured catalog, which has its settings from the environment, with two refreshes."""
    given = {"AIRFLOW_MV__REGISTRY": request.param, "AIRFLOW_MV__REGISTRY__MAX_FILES": "4"}
    variables = {f"PYICEBERG_CATALOG__LAKE__{key}": value for key, value in given.items()}
    for name, value in {**configure(tmp_path, "lake"), **variables}.items():
        monkeypatch.setenv(name, value)
    reload_configuration()
    place = {"airflow-mv.registry": request.param}
    with lake(f"sqlite:///{tmp_path}/lake.db", tmp_path / "lake", layout="pointed", **place) as found:
        found.action = refresh_views
        found.table()
        found.view()
        found.refresh()
        found.append()
        found.refresh()
        yield found
    monkeypatch.undo()
    reload_configuration()


def test_the_commands_answer_and_the_history_is_whole(configured: Lake) -> None:
    """Without the registry too, but for those that the view no longer records."""
    whole = call("history", "lake.sales.daily", "--json").json
    assert [item["rows_written"] for item in whole] == [2, 3]
    assert [item["current"] for item in whole] == [False, True]
    assert whole[0].keys() == whole[1].keys()
    assert [item["executor_seconds"] for item in whole] == [0.5, 0.5]
    assert whole[0]["refresh_id"] in call("history", "lake.sales.daily").stdout
    assert "2 refreshes written, 1 views" in call("registry", "sync", "--catalog", "lake").stdout
    assert call("history", "lake.sales.daily", "--json").json == whole
    (cost,) = call("registry", "costs", "--json", "--catalog", "lake").json
    assert (cost["view"], cost["refreshes"], cost["cost_seconds"]) == ("lake.sales.daily", 2, 1.0)
    assert "lake.sales.daily" in call("registry", "costs", "--days", "1", "--catalog", "lake").stdout
    text = "SELECT mode, count(*) AS n FROM refreshes GROUP BY mode"
    assert call("registry", "query", text, "--catalog", "lake", "--json").json == [{"mode": "full", "n": 2}]
    refused = call("registry", "query", "DROP TABLE views", "--catalog", "lake")
    assert (refused.code, refused.error) == (1, "a query of the registry is one SELECT: nothing is changed by SQL")
    assert call("registry", "rebuild", "--purge", "--json", "--catalog", "lake").json["refreshes"] == 2
    recorded = call("history", "lake.sales.daily", "--json").json
    assert all(item["seconds"] > 0 for item in recorded)
    # The record is written by the publication, which is part of the duration that the process measures.
    assert [{**item, "seconds": None} for item in recorded] == [{**item, "seconds": None} for item in whole]


def test_rows_are_read_added_and_deleted_by_their_keys(configured: Lake, tmp_path: Path) -> None:
    """What one command prints another one takes; a row is there once, and what was purged stays away."""
    call("registry", "sync")
    rows = call("registry", "read", "refreshes", "--where", "view = 'lake.sales.daily'", "--json").json
    first, second = sorted(rows, key=lambda row: row["rows_written"])
    few = call("registry", "read", "refreshes", "--where", f"refresh_id = '{first['refresh_id']}'", "--columns", "mode")
    assert few.stdout.split() == ["mode", "full"]
    assert len(call("registry", "read", "refreshes", "--limit", "1", "--json").json) == 1
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    twice = call("registry", "add", "refreshes", str(file))
    assert (twice.code, "would have two rows with the refresh_id" in twice.error) == (1, True)
    deleted = call("registry", "delete", "refreshes", "--where", f"refresh_id = '{first['refresh_id']}'")
    assert deleted.stdout == "refreshes  1 rows deleted\n"
    assert call("registry", "add", "refreshes", str(file), "--overwrite", "--json").json["rows"] == len(rows)
    assert sorted(call("registry", "read", "refreshes", "--json").json, key=str) == sorted([first, second], key=str)
    configured.append()
    configured.refresh()  # its row is staged
    assert call("registry", "purge", "--yes").stdout == "lake.airflow_mv  3 rows deleted\n"
    assert call("registry", "sync", "--json").json["refreshes"] == 0
    assert call("registry", "read", "refreshes", "--json").json == []
    assert call("registry", "expire", "--json").json == {
        "expired_snapshots": dict.fromkeys(("views", "refreshes", "tables"), 0)
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("read", "refresh"),
            "component is 'refresh'; it must be views, refreshes or tables; did you mean 'refreshes'?",
        ),
        (("read", "views", "--columns", "stat"), "the component views has no column 'stat'; did you mean 'state'?"),
        (("read", "views", "--where", "state ="), "the filter is not valid at character 1"),
        (("read", "views", "--where", "stat = 'x'"), "the filter does not fit the component views: "),
        (("read", "views", "--where", "checked_at > 'today'"), "Invalid timestamp with zone: today"),
        (("delete", "views", "--where", "state = 'fresh'"), "the filter names state, but rows of the component views"),
    ],
)
def test_a_wrong_component_column_or_filter_is_named(
    configured: Lake, arguments: tuple[str, ...], message: str
) -> None:
    call("registry", "sync")
    ended = call("registry", *arguments)
    assert ended.code == 1
    assert message in ended.error


def test_a_line_that_is_no_row_is_named(configured: Lake, tmp_path: Path) -> None:
    """Nothing of the file is added. A partition column is never empty."""
    file = tmp_path / "rows.jsonl"
    good = {"catalog": "lake", "namespace": "sales", "view": "lake.sales.x", "checked_at": "2026-01-01T00:00:00Z"}
    for bad in ({**good, "state": ""}, {**good, "namespace": None, "state": "fresh"}):
        file.write_text(f"{json.dumps({**good, 'state': 'fresh'})}\n{json.dumps(bad)}\n")
        ended = call("registry", "add", "views", str(file))
        assert ended.code == 1
        assert f"{file}, line 2: field {'namespace' if bad['state'] else 'state'}" in ended.error.replace("'", "")
    call("registry", "sync")
    assert "lake.sales.x" not in call("registry", "read", "views").stdout


def test_the_doctor_shows_each_setting_and_its_layer(configured: Lake) -> None:
    (found,) = [item for item in call("doctor", "lake", "--json").json if item["check"] == "registry of lake"]
    assert found["ok"]
    assert found["found"].startswith(
        "lake.airflow_mv, 2 refreshes wait for a sync. airflow-mv.registry = 'airflow_mv' "
    )
    assert "airflow-mv.registry.max-files = '4' (environment)" in found["found"]
    assert "airflow-mv.registry.sync-after = '0' (default)" in found["found"]


def test_a_component_overrides_what_is_common_and_that_overrides_the_default() -> None:
    given = {
        "airflow-mv.registry.expire-after": "1 d",
        "airflow-mv.registry.views.expire-after": "0",
        "airflow-mv.registry.views.location": "s3://bucket/views",
        "airflow-mv.registry.table.write.parquet.compression-codec": "gzip",
        "airflow-mv.registry.refreshes.table.write.parquet.compression-codec": "snappy",
    }
    found = registry_settings(given).components
    assert (found["views"].expire_after, found["refreshes"].expire_after) == (None, timedelta(days=1))
    assert (found["views"].location, found["refreshes"].location) == ("s3://bucket/views", None)
    codecs = [item.properties["write.parquet.compression-codec"] for item in found.values()]
    assert codecs == ["gzip", "snappy", "gzip"]
    for never in ("", "0", "-1 d"):
        assert registry_settings({"airflow-mv.registry.expire-after": never}).components["views"].expire_after is None
    assert {item.max_files for item in found.values()} == {int(DEFAULTS["airflow-mv.registry.max-files"])}
    with pytest.raises(ConfigurationError, match=r"airflow-mv\.registry\.max-files: '0' is not"):
        registry_settings({"airflow-mv.registry.max-files": "0"})


def test_a_relative_path_is_below_the_base_path() -> None:
    """A full path is not, and without a base path a name is a namespace."""
    base = {"airflow-mv.registry.base-path": "/data/"}
    for given, place in (("team/mv", "/data/team/mv"), ("mv", "/data/mv"), ("/own", "/own"), ("", "")):
        found = registry_settings({"airflow-mv.registry": given, **base})
        assert (found.place, found.is_folder) == (place, bool(place))
    assert not registry_settings({"airflow-mv.registry": "mv"}).is_folder


@pytest.mark.parametrize("configured", [""], indirect=True)
def test_a_catalog_without_a_registry_says_how_to_get_one(configured: Lake) -> None:
    assert (
        "Set its property airflow-mv.registry to a namespace" in call("registry", "lagging", "--catalog", "lake").error
    )
    assert "none: airflow-mv.registry is not set" in call("doctor", "lake").stdout


def test_the_page_lists_every_column_and_every_question() -> None:
    page = (Path(__file__).parents[3] / "docs" / "registry.md").read_text(encoding="utf-8")
    for kind in KINDS:
        rows = page.partition(f"### `{kind.name}`\n")[2].partition("\n#")[0].splitlines()
        listed = [line for line in rows if line.startswith("| `")]
        assert listed == [f"| `{name}` | {field.description} |" for name, field in kind.model.model_fields.items()]
    words = re.findall(r"`(?:registry )?([a-z-]+)`", page.partition("| command | answers |")[2].partition("\n\n")[0])
    assert set(QUESTIONS) <= set(words)


def test_tables_shows_what_makes_refreshes_slow_and_who_pays(configured: Lake) -> None:
    """Each append is a small file. The view joins or filters by nothing."""
    for number in range(8):
        configured.append((number, "north", 1))
    configured.view("filtered", "SELECT id FROM lake.sales.orders WHERE amount > 5")
    call("registry", "sync")
    shown = call("tables", "lake.sales.orders").stdout
    assert "10 data files of less than 32.0 MiB in 1 partition" in shown
    assert "CALL lake.system.rewrite_data_files(table => 'sales.orders')\n" in shown
    assert "read by lake.sales.daily: " in shown
    assert "a value of amount, by which views join or filter" in shown
    (document,) = call("tables", "lake.sales.orders", "--files", "--json").json
    assert [item["view"] for item in document["views"]] == ["lake.sales.daily", "lake.sales.filtered"]
    assert [unit["unit"] for unit in document["units"]].count("file") == document["data_files"] == 10
    assert "region" not in str(document["findings"])
    missing = call("tables", "lake.sales.nope")
    assert (missing.code, missing.error) == (1, "there is no table lake.sales.nope")
