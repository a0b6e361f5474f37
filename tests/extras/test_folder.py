# SPDX-License-Identifier: Apache-2.0
"""Views as a folder of SQL files: what is exported is what is there, and what is applied is what the files say."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from airflow_mv.actions import refresh_views
from airflow_mv.common.status import status
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import Requester
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.folder.files import KEYS, queries, read_folder
from tests.builders import LAYOUTS, QUERY, Lake
from tests.cli.support import Ended, call
from tests.core.ivm.tpch import QUERIES
from tests.engine.incremental.test_column_types import TPCH
from tests.engine.support import as_arrow

DAILY = f"---\ndescription: orders by region\n---\n{QUERY}\n"
TOP = "SELECT region FROM lake.sales.daily WHERE orders > 1\n"


@pytest.fixture
def home(configured: Lake) -> Lake:
    """The only configured catalog, with a base table."""
    configured.table()
    return configured


@pytest.fixture
def views(tmp_path: Path) -> Path:
    folder = tmp_path / "views"
    put(folder, "lake/sales/daily.sql", DAILY)
    put(folder, "lake/sales/a_top.sql", TOP)  # before `daily` by name, after it by what it reads
    return folder


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def plan(folder: Path, *options: str) -> dict[str, str]:
    """The action of each view."""
    document = call("apply", str(folder), "--plan", "--json", *options).json
    return {change["view"].rpartition(".")[2]: change["action"] for change in document["changes"]}


def apply(folder: Path, *options: str) -> Ended:
    return call("apply", str(folder), "--yes", *options)


def test_a_folder_is_applied_in_the_order_in_which_views_read_each_other(home: Lake, views: Path) -> None:
    checked = call("apply", str(views), "--check")
    assert checked.code == 3
    assert "+ create    lake.sales.daily" in checked.stdout
    assert home.catalog.list() == []
    done = apply(views, "--json").json["applied"]
    assert [item["view"] for item in done] == ["lake.sales.daily", "lake.sales.a_top"]
    again = call("apply", str(views), "--check")
    assert (again.code, again.stdout) == (0, "2 unchanged\n")
    assert apply(views).code == 0


def test_a_plan_says_what_each_edit_does(home: Lake, views: Path) -> None:
    apply(views)
    put(views, "lake/sales/daily.sql", f"---\ndescription: new\nmax_staleness: 1 hour\n---\n{QUERY}")
    put(views, "lake/sales/a_top.sql", TOP.replace("> 1", "> 2"))
    assert plan(views) == {"daily": "metadata", "a_top": "rebuild"}
    shown = call("apply", str(views), "--plan").stdout
    assert "description" not in shown
    assert "    comment: 'orders by region' → 'new'\n" in shown
    assert "    read by lake.sales.a_top\n" in shown
    marked = call("apply", str(views), "--plan", "--markdown").stdout
    assert "| metadata | lake.sales.daily | comment: 'orders by region' → 'new'<br>" in marked
    assert apply(views).code == 0
    assert plan(views) == {"daily": "unchanged", "a_top": "unchanged"}


def test_what_no_file_says_is_kept_or_dropped_only_on_request(home: Lake, views: Path) -> None:
    apply(views)
    (views / "lake/sales/a_top.sql").unlink()
    assert plan(views) == {"daily": "unchanged", "a_top": "unmanaged"}
    assert call("apply", str(views), "--check").code == 0
    assert plan(views, "--prune") == {"daily": "unchanged", "a_top": "drop"}
    put(views, "lake/sales/a_top.sql", TOP)
    (views / "lake/sales/daily.sql").unlink()
    assert plan(views, "--prune") == {"daily": "refused", "a_top": "unchanged"}  # it is read
    (views / "lake/sales/a_top.sql").unlink()
    put(views, "lake/sales/other.sql", QUERY)
    assert apply(views, "--prune").code == 0
    assert [view.name for view in home.catalog.list()] == ["other"]


def test_a_view_that_is_renamed_keeps_its_uuid_and_its_rows(home: Lake, views: Path) -> None:
    """By `renamed_from`, or by the uuid that `export --uuid` writes. What still reads the old name is refused."""
    apply(views)
    home.refresh()
    before = home.catalog.load("sales.daily").metadata.view_uuid
    (views / "lake/sales/daily.sql").unlink()
    put(views, "lake/sales/by_region.sql", DAILY.replace("---\n", "---\nrenamed_from: daily\n", 1))
    assert plan(views) == {"by_region": "rename", "a_top": "refused"}
    shown = call("apply", str(views), "--check")
    assert shown.code == 4
    assert "> rename    lake.sales.by_region from lake.sales.daily  (" in shown.stdout
    assert "it reads lake.sales.daily, which is renamed to lake.sales.by_region" in shown.stdout
    put(views, "lake/sales/a_top.sql", TOP.replace("daily", "by_region"))
    assert plan(views) == {"by_region": "rename", "a_top": "rebuild"}
    assert "renamed lake.sales.daily to lake.sales.by_region\n" in apply(views).stdout
    assert home.catalog.load("sales.by_region").metadata.view_uuid == before
    assert len(home.read("sales.by_region")) == 2
    assert plan(views) == {"by_region": "unchanged", "a_top": "unchanged"}  # the line may stay

    folder = views.parent / "out"
    call("export", "lake.sales", str(folder), "--uuid")
    (folder / "lake/sales/by_region.sql").rename(folder / "lake/sales/third.sql")
    (folder / "lake/sales/a_top.sql").unlink()
    edited = folder / "lake/sales/third.sql"
    edited.write_text(edited.read_text().replace("by region", "by its region").replace("count(*)", "count(id)"))
    change = call("apply", str(folder), "--plan", "--json").json["changes"][0]
    assert (change["action"], change["renamed_from"], change["rebuilds"]) == ("rename", "lake.sales.by_region", True)
    assert change["readers"] == ["lake.sales.a_top"]  # no file defines it, and it still reads the old name
    assert apply(folder).code == 0
    third = home.catalog.load("sales.third").metadata
    assert (third.view_uuid, third.properties["comment"]) == (before, "orders by its region")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_new_version_with_the_same_rows_keeps_them(home: Lake, views: Path, layout: Any) -> None:
    """Comments, dialects and the text of the query; not if the query means something else."""
    put(views, "lake/sales/daily.sql", f"---\nlayout: {layout}\n---\n{QUERY}")
    apply(views)
    home.refresh()
    refreshed, first = home.storage().record, home.catalog.load("sales.daily").metadata.current_version_id
    text = QUERY.replace("SELECT", "select -- by region\n ").replace("region,", "region ,")
    put(views, "lake/sales/daily.sql", f"---\nlayout: {layout}\ncolumn_comments: {{region: where}}\n---\n{text}")
    assert plan(views) == {"daily": "in-place", "a_top": "unchanged"}
    shown = call("apply", str(views), "--check")
    assert (shown.code, "recomputes all rows" in shown.stdout) == (3, False)
    assert "the rows are kept: the new version gives the same" in apply(views).stdout
    now, record = home.catalog.load("sales.daily").metadata, home.storage().record
    assert (now.current_version_id, now.schema_.fields[0]["doc"]) == (first + 1, "where")
    assert record is not None
    assert refreshed is not None
    assert (record.version_id, record.refresh_id) == (first + 1, refreshed.refresh_id)
    assert status(home.catalog, "sales.daily").state == State.FRESH
    assert home.refresh().outcome == "fresh"
    home.append()
    assert home.refresh().outcome == "refreshed"
    put(views, "lake/sales/daily.sql", f"---\nlayout: {layout}\n---\n{text.replace('count(*)', 'count(id)')}")
    assert plan(views) == {"daily": "rebuild", "a_top": "unchanged"}
    apply(views)
    assert status(home.catalog, "sales.daily").state == State.DEFINITION_CHANGED


def test_a_rename_is_never_guessed(home: Lake, views: Path) -> None:
    apply(views)
    put(views, "lake/sales/copy.sql", DAILY.replace("---\n", "---\nrenamed_from: daily\n", 1))
    assert plan(views) == {"daily": "unchanged", "copy": "refused", "a_top": "unchanged"}  # a file defines it
    (views / "lake/sales/daily.sql").rename(views / "lake/sales/other.sql")
    (views / "lake/sales/copy.sql").unlink()
    assert plan(views)["other"] == "create"
    for name in ("other", "another"):
        put(views, f"lake/sales/{name}.sql", DAILY.replace("---\n", "---\nrenamed_from: daily\n", 1))
    assert plan(views) == {"other": "refused", "another": "refused", "a_top": "refused"}
    (views / "lake/sales/another.sql").unlink()
    put(views, "lake/sales/other.sql", DAILY.replace("---\n", "---\nrenamed_from: gone\n", 1))
    assert plan(views)["other"] == "create"
    assert [view.name for view in home.catalog.list()] == ["a_top", "daily"]


def test_a_plan_says_what_a_rebuild_costs_and_whom_it_concerns(home: Lake, views: Path) -> None:
    put(views, "lake/sales/daily.sql", DAILY.replace("---\n", "---\nowner: sales\n", 1))
    apply(views)
    refresh_views(home.catalog, ["sales.daily"], stager=home.stager, requester=Requester(dag_id="nightly"))
    put(views, "lake/sales/daily.sql", "SELECT region, sum(amount) AS amount FROM lake.sales.orders GROUP BY region")
    shown = call("apply", str(views), "--check")
    assert shown.code == 4
    size = home.load().current_snapshot().summary["total-files-size"]
    change = next(item for item in call("apply", str(views), "--plan", "--json").json["changes"] if item["rebuilds"])
    assert (change["loses"], change["cost"]["bytes_read"]) == (["orders"], int(size))
    assert change["touched"][0] == {"view": "lake.sales.daily", "owner": "sales", "dags": ["nightly"]}
    for line in (
        "    the next refresh recomputes all rows: it reads ",
        "    readers lose orders\n",
        "    owner sales, refreshed by the DAG nightly\n    read by lake.sales.a_top\n",
        "it reads the column orders of lake.sales.daily, which no longer has it",
    ):
        assert line in shown.stdout
    put(views, "lake/sales/a_top.sql", "SELECT region FROM lake.sales.daily WHERE amount > 1\n")
    assert plan(views) == {"daily": "rebuild", "a_top": "rebuild"}


def test_of_a_broken_file_nothing_is_changed_and_the_others_are(home: Lake, views: Path) -> None:
    """A view that reads the broken one is skipped. The next run does what is left."""
    put(views, "lake/sales/daily.sql", "---\nproperties: {airflow-mv.max-stalenes: 1 h}\n---\n" + QUERY)
    put(views, "lake/sales/alone.sql", "SELECT id FROM lake.sales.orders")
    assert call("apply", str(views), "--check").code == 4
    done = apply(views)
    assert done.code == 1
    assert "did you mean 'airflow-mv.max-staleness'?" in done.stdout
    assert "skipped: skipped, because lake.sales.daily was not changed" in done.stdout
    assert [view.name for view in home.catalog.list()] == ["alone"]
    put(views, "lake/sales/daily.sql", DAILY)
    assert apply(views).code == 0
    assert len(home.catalog.list()) == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_exported_is_what_is_there(home: Lake, tmp_path: Path, layout: Any) -> None:
    """Applied at once it changes nothing, and applied to an empty catalog it makes equal views."""
    home.layout = layout
    travel = {"airflow-mv.sort-by": "region", "airflow-mv.max-staleness": "2 hours", "x": "a: 'b' # c", "owner": "né"}
    home.view("daily", QUERY, properties=travel, time_travel=True, comment="--- \n é", allow_stale_data=True)
    home.view("parts", QUERY, partition_by=("region",), columns=("r", "o", "a"), column_comments={"r": "where: it is"})
    home.view("`it's a.b`", "SELECT id FROM lake.sales.orders", checks=None)
    folder = tmp_path / "out"
    call("export", "lake.sales", str(folder))
    assert len(list(folder.rglob("*.sql"))) == 3
    assert call("apply", str(folder), "--check").stdout == "3 unchanged\n"
    assert set(plan(folder).values()) == {"unchanged"}
    before = {file.view: file for file in read_folder(folder)}
    for view in home.catalog.list():
        call("drop", str(view), "--yes")
    assert apply(folder).code == 0
    call("export", "lake.sales", str(tmp_path / "again"))
    after = {file.view: file for file in read_folder(tmp_path / "again")}
    assert {view: file.definition for view, file in after.items()} == {
        view: file.definition for view, file in before.items()
    }


def test_the_queries_of_tpch_go_in_and_out(home: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 22 are created from one folder, without Spark; what is exported then changes nothing."""
    monkeypatch.setattr("airflow_mv.extras.spark.session.open_session", lambda *_, **__: pytest.fail("Spark starts"))
    for name, columns in TPCH.items():
        if name != "orders":
            home.iceberg.create_table(f"sales.{name}", as_arrow(columns.replace("string", "varchar")).schema)
    home.iceberg.drop_table("sales.orders")
    home.iceberg.create_table("sales.orders", as_arrow(TPCH["orders"].replace("string", "varchar")).schema)
    for number, query in QUERIES.items():
        put(tmp_path / "in", f"lake/sales/q{number}.sql", query)
    assert apply(tmp_path / "in").code == 0
    assert call("export", "lake.sales", str(tmp_path / "out"), "--json").json[0]["written"]
    assert call("apply", str(tmp_path / "out"), "--check").stdout == "22 unchanged\n"
    shorter = {path.name for path in (tmp_path / "out").rglob("*.sql") if "columns:" not in path.read_text()}
    assert len(shorter) == 22


def test_an_export_replaces_no_file_that_someone_has_edited(home: Lake, tmp_path: Path) -> None:
    home.view()
    call("export", "lake.sales", str(tmp_path / "out"))
    file = tmp_path / "out/lake/sales/daily.sql"
    file.write_text(file.read_text() + "-- mine\n")
    refused = call("export", "lake.sales", str(tmp_path / "out"))
    assert (refused.code, refused.error) == (
        1,
        f"{file} exists with another content, and is kept: --overwrite replaces it",
    )
    assert call("export", "lake.sales", str(tmp_path / "out"), "--overwrite").code == 0
    assert "-- mine" not in file.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nstrategie: full\n---\nSELECT 1", "a.sql, line 2: there is no key 'strategie'; did you mean 'strategy'?"),
        ("---\nlayout: table\n\ntags: x\n---\nSELECT 1", "a.sql, line 4: tags must be a list of texts"),
        (
            "---\nproperties: {a: 1}\n---\nSELECT 1",
            "a.sql, line 2: properties must be a mapping of texts; quote numbers",
        ),
        ("---\nlayout: table\nlayout: table\n---\nSELECT 1", "a.sql, line 3: the key 'layout' is there twice"),
        ("---\na: &x [1]\nb: *x\n---\nSELECT 1", "a.sql: YAML aliases (*name) are not read"),
        (
            "---\na: !!python/object/apply:os.system [x]\n---\nSELECT 1",
            "a.sql, line 2: the part in YAML cannot be read",
        ),
        ("---\na: [\n---\nSELECT 1", "the part in YAML cannot be read"),
        (f"---\na: {'[' * 9000}\n---\nSELECT 1", "the part in YAML is nested too deeply"),
        ("---\nlayout: table\nSELECT 1", "a.sql, line 1: a line with --- must also end the part in YAML"),
        ("---\nlayout: table\n---\n  \n", "a.sql has no query"),
        ("---\nchecks: [{not_nul: [id]}]\n---\nSELECT 1", "did you mean 'not_null'?"),
        ("---\nname: daily\n---\nSELECT 1", "its view is daily, without a catalog or a namespace: give --namespace"),
        ("---\nsort_by: a\nproperties: {airflow-mv.sort-by: b}\n---\nSELECT 1", "are the same: give one"),
    ],
)
def test_a_file_that_is_not_valid_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    put(tmp_path, "lake/sales/a.sql", text)
    with pytest.raises(MaterializedViewError) as raised:
        read_folder(tmp_path)
    assert message in str(raised.value)


def test_a_circle_and_a_name_that_is_there_twice_are_named(home: Lake, tmp_path: Path) -> None:
    put(tmp_path / "c", "lake/sales/a.sql", "SELECT * FROM lake.sales.b")
    put(tmp_path / "c", "lake/sales/b.sql", "SELECT * FROM lake.sales.a")
    assert "the views read each other in a circle: lake.sales." in call("apply", str(tmp_path / "c")).error
    put(tmp_path / "d", "lake/sales/a.sql", QUERY)
    put(tmp_path / "d", "lake/other.sql", f"---\nname: lake.sales.a\n---\n{QUERY}")
    assert "both define lake.sales.a" in call("apply", str(tmp_path / "d")).error


def test_a_dag_file_takes_the_queries_of_a_folder(views: Path) -> None:
    from airflow_mv.dags import materialized_views_dag

    dag = materialized_views_dag("views", queries(views), schedule=None)
    tasks = {task.task_id for task in dag.tasks}
    assert {"refresh_daily", "refresh_a_top"} <= {task.rpartition(".")[2] for task in tasks}, tasks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_after_a_kill_at_any_time_the_next_apply_does_what_is_left(home: Lake, tmp_path: Path, seed: int) -> None:
    dice, folder, partly = Random(seed), tmp_path / "views", 0
    for round_ in range(4):
        for number in range(8):
            put(folder, f"lake/sales/v{number}.sql", QUERY.replace("sum", dice.choice(("sum", "max", "min"))))
        command = [sys.executable, "-c", "from airflow_mv.cli import main; main()", "apply", str(folder), "--yes"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(1, 6))
        process.kill()
        assert process.communicate()[1] == b""
        before = call("apply", str(folder), "--plan", "--json").json["counts"]["unchanged"]
        partly += 0 < before < 8
        assert apply(folder).code == 0, round_
        assert call("apply", str(folder), "--check").stdout == "8 unchanged\n"
        home.refresh("lake.sales.v0")
    assert partly


_EDITS: tuple[dict[str, Any], ...] = (
    {"description": "x"}, {"strategy": "full"}, {"strategy": "incremental"}, {"allow_stale_data": True},
    {"time_travel": True}, {"max_staleness": "3 hours"}, {"owner": "a"}, {"tags": ["t"]}, {"sort_by": "region"},
    {"properties": {"p": "q"}}, {"partition_by": ["region"]}, {"checks": ["orders > 0"]},
)  # fmt: skip


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_edits_end_in_what_a_fresh_create_makes(home: Lake, tmp_path: Path, seed: int) -> None:
    """Random edits of a file, each applied; then the view has the definition of one that is created from the file."""
    dice, folder = Random(seed), tmp_path / "views"
    keys: dict[str, Any] = {}
    for _ in range(5):
        keys |= dice.choice(_EDITS)
        query = dice.choice((QUERY, QUERY.replace("sum(amount)", "max(amount)")))
        head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
        for name in ("edited", f"fresh_{len(list(folder.rglob('*.sql')))}"):
            put(folder, f"lake/sales/{name}.sql", f"---\n{head}---\n{query}")
        assert apply(folder).code == 0
        assert set(plan(folder).values()) == {"unchanged"}
    call("export", "lake.sales", str(tmp_path / "out"))
    found = {file.view.name: file.definition for file in read_folder(tmp_path / "out")}
    assert found["edited"] == found[name]
    assert keys.keys() <= KEYS.keys()
