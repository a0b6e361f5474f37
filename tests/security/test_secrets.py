# SPDX-License-Identifier: Apache-2.0
"""I20: a secret of a catalog or of Spark is in no argument, log, XCom, rendered field or file.

Canaries are set wherever a secret may be given; then real programs run, and all their results are searched.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from sqlalchemy import create_engine, make_url, text

from airflow_mv.extras.spark.settings import spark_settings
from airflow_mv.extras.spark.submit import write_properties
from tests.airflow.conftest import Airflow, _airflow, airflow
from tests.builders import lake
from tests.cli.support import call, execute
from tests.security.sinks import Canary, command_lines, files, found

__all__ = ["_airflow", "airflow"]

VIEW = "lake.sales.daily"
MARKER = "planted-for-control-4711"
#: Properties by which pyiceberg's catalogs take secrets.
KEYS = (
    "token",
    "credential",
    "header.Authorization",
    "header.X-Api-Key",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "adls.sas-token",
    "adls.account-key",
    "gcs.oauth2.token",
    "rest.sigv4.secret",
    "auth.password",
)
#: Spark settings with secrets, in forms that need no cloud's jars.
SPARK_KEYS = (
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.fixed.token.x",
    "spark.sql.catalog.lake.s3.access-key-id",
    "spark.sql.catalog.lake.s3.secret-access-key",
    "spark.sql.catalog.lake.adls.sas-token.x",
    "spark.sql.catalog.lake.header.Authorization",
    "spark.sql.catalog.lake.credential",
)


def event_log(folder: Path) -> dict[str, str]:
    """Let Spark write its event log as plain text; with a setting that must be found in it."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.planted.marker": MARKER,
    }


@pytest.fixture
def canaries() -> list[Canary]:
    return [Canary("uri"), *(Canary(key) for key in (*KEYS, *SPARK_KEYS))]


@pytest.fixture
def secret_uri(postgres_uri: str, canaries: list[Canary]) -> Iterator[str]:
    """The test's database, for a role whose password is a canary."""
    (password,) = (item for item in canaries if item.place == "uri")
    engine = create_engine(postgres_uri)
    role = f"r{password.core}"[:20]
    literal = password.text.replace("'", "''")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{literal}'"))
    url = make_url(postgres_uri)
    yield f"postgresql+psycopg2://{role}:{password.url}@{url.host}:{url.port}/{url.database}"
    with engine.begin() as connection:
        connection.execute(text(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}"))
    engine.dispose()


def test_the_search_finds_a_planted_secret_in_every_form(tmp_path: Path) -> None:
    """Positive control: plain, in a URL, in JSON, in base64, compressed, in a file's name, in an argument."""
    canary = Canary("here")
    basic = base64.b64encode(f"user:{canary.text}".encode()).decode()
    for content in (canary.text, canary.url, json.dumps(canary.text), repr(canary.text), basic, canary.core.upper()):
        assert found([canary], {"log": f"before {content} after"}) == ["here in log"], content
    (tmp_path / f"{canary.core}.txt").write_text("nothing")
    assert len(found([canary], files(tmp_path))) == 1
    assert found([Canary("other")], files(tmp_path)) == []


def test_every_listed_secret_is_distinguished_from_a_plain_setting(canaries: list[Canary], tmp_path: Path) -> None:
    """A secret that is not recognized would be passed as an argument."""
    secrets = {item.place: item.text for item in canaries if item.place != "uri"}
    settings = spark_settings("lake", {"type": "rest", "uri": "https://h", "adls.account-name": "x", **secrets})
    assert found(canaries, {"confs": repr(settings.confs), "repr": repr(settings)}) == []
    kept = files(write_properties(tmp_path, settings.confs, settings.secrets).parent)
    assert found(canaries, kept), "the driver must get them"
    assert (tmp_path / "spark.properties").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_i20_no_secret_is_left_by_the_command_line_with_real_spark(
    secret_uri: str, canaries: list[Canary], tmp_path: Path
) -> None:
    """All steps on PostgreSQL in a separate program, with Spark's event log; then all other commands."""
    catalog = load_catalog("lake", type="sql", uri=secret_uri, warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("sales")
    rows = pa.table({"day": ["mon", "mon", "tue"], "amount": [1, 2, 4]})
    catalog.create_table("sales.orders", rows.schema).append(rows)
    plain = {"type": "sql", "uri": secret_uri, "warehouse": f"file://{tmp_path}/warehouse"}
    given = {item.place: item.text for item in canaries if item.place in ("token", "credential", *SPARK_KEYS)}
    home = tmp_path / "home"
    home.mkdir()
    properties = {**plain, **given}
    # pyiceberg makes the keys of its configuration lower case, which such Spark settings are not.
    (tmp_path / "conf").mkdir()
    lines = "".join(f"{key} {value}\n" for key, value in event_log(tmp_path / "events").items())
    (tmp_path / "conf" / "spark-defaults.conf").write_text(lines)
    (home / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"lake": properties}}))
    (tmp_path / "tmp").mkdir()
    variables = {"TMPDIR": str(tmp_path / "tmp"), "SPARK_CONF_DIR": str(tmp_path / "conf")}
    sql = "SELECT day, sum(amount) AS amount FROM lake.sales.orders GROUP BY day"

    sinks: dict[str, str | bytes] = {}
    with command_lines() as seen:
        created = execute("create", VIEW, "--sql", sql, "--refresh", "-v", "--json", folder=home, variables=variables)
        sinks |= {"create, stdout": created.stdout, "create, stderr": created.stderr}
        for arguments in (
            ("status", VIEW),
            ("plan", VIEW, "--json"),
            ("show", VIEW),
            ("show", VIEW, "--json"),
            ("history", VIEW),
            ("read", VIEW, "-v"),
            ("refresh", VIEW, "--json"),
            ("doctor", "lake"),
            ("doctor", "lake", "--json"),
        ):
            ended = _called(arguments, home)
            sinks[" ".join(arguments)] = ended
    assert created.code == 0, created.stderr
    result = {key: json.loads(created.stdout)[key] for key in ("outcome", "mode", "rows_written")}
    assert result == {"outcome": "refreshed", "mode": "full", "rows_written": 2}
    assert '"mode": "noop"' in sinks[f"refresh {VIEW} --json"]
    assert all(row in sinks[f"read {VIEW} -v"] for row in ("mon", "tue"))
    with catalog.engine.connect() as connection:
        sinks["iceberg_tables"] = repr(connection.execute(text("SELECT * FROM iceberg_tables")).fetchall())
    catalog.engine.dispose()
    left = files(tmp_path / "warehouse", tmp_path / "events", tmp_path / "tmp", home)
    configuration = left.pop(str(home / ".pyiceberg.yaml"))

    assert found(canaries, {**sinks, **left, **seen}) == []
    # The search covers the right places: the marker is in the event log, the program is among the arguments.
    assert any(MARKER.encode() in data for name, data in left.items() if "/events/" in name)
    assert any("org.apache.spark" in data for data in seen.values())
    assert found(canaries, {"configuration": configuration})
    assert any(name.endswith(".metadata.json") for name in left)


def _called(arguments: tuple[str, ...], home: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYICEBERG_HOME", str(home))
        for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
            patch.delenv(name)
        patch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        ended = call(*arguments)
    assert ended.code == 0, ended.stderr
    return ended.stdout + ended.stderr


FAILING: dict[str, dict[str, str]] = {
    "a database that is down": {"type": "sql", "uri": "postgresql+psycopg2://me:{}@127.0.0.1:1/x"},
    "a database by no driver": {"type": "sql", "uri": "nonsense+psycopg2://me:{}@127.0.0.1:1/x"},
    "not a URL": {"type": "sql", "uri": "postgresql://me:{}@127.0.0.1:port/x"},
    "a REST server that is down": {"type": "rest", "uri": "http://me:{}@127.0.0.1:1/"},
    "another scheme": {"type": "rest", "uri": "gopher://me:{}@127.0.0.1:1/"},
    "a file that cannot be a database": {"type": "sql", "uri": "sqlite:////proc/nowhere/{}.db?password={}"},
}


@pytest.mark.parametrize("way", FAILING)
def test_i20_no_secret_is_in_the_message_of_a_failed_connection(
    way: str, canaries: list[Canary], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Drivers and clients include their URL in errors."""
    (password,) = (item for item in canaries if item.place == "uri")
    properties = {key: value.replace("{}", password.url) for key, value in FAILING[way].items()}
    properties |= {item.place: item.text for item in canaries if item.place in KEYS}
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"lake": properties}}))
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(name)  # catalogs of other tests in this process
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    for arguments in (("status", VIEW, "-v"), ("refresh", VIEW, "--json", "-v"), ("doctor", "lake")):
        ended = call(*arguments)
        assert ended.code == 1, ended
        assert found(canaries, {way: ended.stdout + ended.stderr}) == [], ended.stderr


def test_i20_no_secret_is_left_by_an_airflow_run_with_real_spark_submit(
    airflow: Airflow, secret_uri: str, canaries: list[Canary], tmp_path: Path
) -> None:
    """Plan and refresh, a refresh that fails, and connections that fail: log, XCom, rendered fields, events, files."""
    for name in ("warehouse", "scratch"):
        (tmp_path / name).mkdir()
    url = make_url(secret_uri)
    given = {item.place: item.text for item in canaries if item.place in ("token", "credential", *SPARK_KEYS)}
    extra = {"type": "sql", "uri": f"{url.drivername}://{url.host}:{url.port}/{url.database}", **given}
    extra["warehouse"] = f"file://{tmp_path}/warehouse"
    airflow.connect("iceberg_default", conn_type="iceberg", login=url.username, password=url.password, extra=extra)
    airflow.connect("spark_default", conn_type="spark", host="local[2]")
    (password,) = (item for item in canaries if item.place == "uri")
    keys = {item.place: item.text for item in canaries if item.place in KEYS}
    for number, failing in enumerate(("a database that is down", "not a URL", "a REST server that is down")):
        broken = {key: value.replace("{}", password.url) for key, value in FAILING[failing].items()} | keys
        airflow.connect(f"down_{number}", conn_type="iceberg", extra=broken)
    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", **event_log(tmp_path / "events")}

    with lake(secret_uri, tmp_path / "warehouse") as found_lake, command_lines() as seen:
        found_lake.table()
        found_lake.view()
        run = airflow.run(f"""
            plan = PlanRefreshOperator(task_id="plan", view="{VIEW}")
            refresh = RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf={conf}, verbose=True)
            chain(plan, refresh)
            for number in range(3):
                RefreshMaterializedViewOperator(
                    task_id=f"down_{{number}}", view="{VIEW}", iceberg_conn_id=f"down_{{number}}"
                )
                MaterializedViewFreshSensor(
                    task_id=f"wait_{{number}}", view="{VIEW}", iceberg_conn_id=f"down_{{number}}", timeout=1,
                    # No triggerer runs here to end a deferred one in time.
                    deferrable=False, poke_interval=1,
                )
        """)
    left = files(tmp_path / "warehouse", tmp_path / "events", tmp_path / "scratch")
    sinks: Mapping[str, Any] = {
        "log": run.log,
        "XComs": repr(run.xcoms),
        "rendered fields": repr(run.rendered),
        "asset events": repr(run.events),
    }

    assert run.states["refresh"] == "success", run.log
    assert {run.states[f"down_{number}"] for number in range(3)} <= {"failed", "up_for_retry"}
    assert found(canaries, {**sinks, **left, **seen}) == []
    # The search covers the right places: the marker is a plain setting, so it is in all of them.
    assert MARKER in sinks["rendered fields"]
    assert any(MARKER in data for data in seen.values()), "spark-submit was never observed"
    assert any(MARKER.encode() in data for name, data in left.items() if "/events/" in name)
