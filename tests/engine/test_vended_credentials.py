# SPDX-License-Identifier: Apache-2.0
"""A REST server vends short-lived credentials for each table, and the catalog's properties have none."""

from __future__ import annotations

import logging
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import CLOCK_TEXT
from airflow_mv.core.catalog.vended import DEFAULT_CREDENTIALS
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish.layout import read_outcome
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import AccessDeniedError, ConfigurationError, NoCredentialsError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.deletion_log import read_log
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.maintenance.verify import verify, verify_files
from airflow_mv.extras.read import read_rows, readable
from airflow_mv.extras.spark.session import session_stager, settings_of
from airflow_mv.extras.spark.submit import build_package, jar_confs, main_file, write_properties
from airflow_mv.operators.submission_files import job_arguments, write_script
from tests.builders import QUERY, Lake
from tests.core.job.processes import SPARK_HOME
from tests.duck import DuckStager
from tests.protocol.foreign import BucketStore
from tests.rest.vending import Vending, vending
from tests.services import RestServers

VIEW = "sales.daily"
WIDER = "SELECT id, upper(region) AS amount, amount AS region FROM sales.orders"


@pytest.fixture
def server(request: pytest.FixtureRequest, rest_jvm: RestServers, s3_server: str, tmp_path: Path) -> Iterator[Vending]:
    bucket = BucketStore(s3_server, f"vended-{uuid.uuid4().hex[:8]}")
    with vending(rest_jvm, f"sqlite:///{tmp_path}/catalog.db", bucket) as found:
        yield found


def opened(server: Vending, layout: str, name: str = "lake", **properties: str) -> Lake:
    """The catalog."""
    iceberg = load_catalog(name, type="rest", uri=server.catalog, **properties)
    catalog = MaterializedViewCatalog(iceberg)
    iceberg.create_namespace_if_not_exists("sales")
    return Lake(iceberg, catalog, DuckStager(catalog, iceberg), layout)


@pytest.mark.slow
def test_spark_writes_with_vended_credentials_in_process_and_through_spark_submit(
    spark: SparkSession, server: Vending, tmp_path: Path
) -> None:
    """Also where the columns change, for which the rows are written in a staging catalog of the job."""
    home = opened(server, "table", f"vended{uuid.uuid4().hex[:8]}")  # the session does not know this name yet
    home.table()
    home.stager = session_stager(home.catalog, spark)  # type: ignore[assignment]
    home.view(sql="SELECT region, sum(amount) AS amount FROM sales.orders GROUP BY region")
    home.refresh()
    server.end()
    assert verify(home.catalog, VIEW, session=lambda: spark).equal

    wider = Definition(WIDER, layout="table")
    create(home.catalog, VIEW, wider, stager=home.stager, replace=True)
    said: list[str] = []

    def submit(script: Script) -> Outcome:
        said.append(script.to_json())
        outcome, output = submitted(home.catalog, script, tmp_path)
        said.append(output)
        return outcome

    home.stager = submit  # type: ignore[assignment]
    server.end()
    assert home.refresh().outcome == "refreshed"
    said.append(repr(server.bucket.files()))
    assert {row["amount"] for row in home.read()} == {"NORTH", "SOUTH"}
    assert not [secret for secret in server.every if any(secret in text for text in said)]
    create(
        home.catalog,
        VIEW,
        Definition("SELECT id FROM sales.orders", layout="table"),
        stager=session_stager(home.catalog, spark),
        replace=True,
    )
    home.stager = session_stager(home.catalog, spark)  # type: ignore[assignment]
    assert home.refresh().outcome == "refreshed"


def submitted(catalog: MaterializedViewCatalog, script: Script, folder: Path) -> tuple[Outcome, str]:
    """Run a script through spark-submit, and return its outcome and all that was printed."""
    settings = settings_of(catalog)
    confs = {**settings.session_confs(), **jar_confs(settings.session_confs())}
    properties = write_properties(folder, {key: value for key, value in confs.items() if value})
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]", "--properties-file", str(properties)]
    job = [str(main_file()), *job_arguments(catalog, script, write_script(catalog, script))]
    done = subprocess.run(
        [*command, "--py-files", str(build_package(folder)), *job], capture_output=True, text=True, check=False
    )
    outcome = read_outcome(catalog, script)
    assert outcome is not None, done.stdout + done.stderr
    return outcome, f"{job}{done.stdout}{done.stderr}{outcome.to_json()}"


@pytest.mark.parametrize(
    ("layout", "how"),
    [pytest.param("table", "config", marks=pytest.mark.slow), ("registered", "storage-credentials")],
)
def test_commands_without_spark_work_with_vended_credentials_that_end_in_between(
    server: Vending, layout: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """New ones are loaded when the store refuses the old. None opens anything but its own table's folder."""
    server.how = how
    caplog.set_level(logging.DEBUG)
    home = opened(server, layout)
    home.table()
    home.view(time_travel=True)
    first = home.refresh()
    home.append()
    home.refresh()
    folder = server.bucket.path(home.storage().table.location)
    server.end()
    assert list(read_rows(home.catalog, readable(home.catalog, VIEW)).rows())
    assert status(home.catalog, VIEW).state == State.FRESH
    storage = home.storage()
    server.end()
    assert home.catalog.files.now_ms(storage.table.location) > 0
    assert server.refused
    home.catalog.files.write(f"{storage.table.location}/clock-{uuid.uuid4()}.tmp", CLOCK_TEXT)
    maintain(home.catalog, VIEW, older_than=timedelta(days=1))
    found = read_log(home.catalog, home.catalog.load(VIEW), storage.table.location)
    assert len(found.marks) == 1, "the deletion log is where maintenance has put it"
    maintain(home.catalog, VIEW, older_than=timedelta(0))
    left_out = "not collecting orphan files in the view's own folder: no credentials are known for s3://"
    assert (left_out in caplog.text) == (layout == "registered")
    rollback(home.catalog, VIEW, first.refresh_id or "")
    purge(home.catalog, VIEW)
    assert not [path for path in server.bucket.files() if path.startswith(f"{folder}/")]
    assert not [secret for secret in server.every if secret in caplog.text]


@pytest.mark.parametrize("each", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_credentials_may_end_before_any_request_of_a_command(server: Vending, each: int) -> None:
    """A manifest list was read with the old ones, and a manifest, a footer or a row needs new ones."""
    home = opened(server, "table")
    home.table()
    home.view(time_travel=True)
    home.refresh()
    home.append()
    home.refresh()
    rows = Counter(map(str, read_rows(home.catalog, readable(home.catalog, VIEW)).rows()))

    def read() -> None:
        found = read_rows(home.catalog, readable(home.catalog, VIEW))
        assert Counter(map(str, found.rows())) == rows

    def check() -> None:
        assert verify_files(home.catalog, VIEW).intact

    def collect() -> None:
        maintain(home.catalog, VIEW, older_than=timedelta(0))

    for command in (read, check, collect):
        number = 1
        while True:
            server.ends_at = server.requests + number
            command()
            if server.requests < server.ends_at:
                break
            number += each
        assert number > each, "no request was refused"


def test_credentials_are_loaded_again_before_they_end(server: Vending) -> None:
    """The server has said when."""
    home = opened(server, "table")
    server.expires_ms = time.time_ns() // 1_000_000 + 30_000
    home.table()
    location, before = home.load().metadata.location, len(server.every)
    assert home.catalog.files.now_ms(location) > 0
    assert len(server.every) == before + 3
    assert not server.refused


@pytest.mark.parametrize("how", ["config", "storage-credentials"])
def test_credentials_may_end_after_a_few_requests(server: Vending, how: str) -> None:
    """The server says that they end in a minute, and they end sooner."""
    server.how = how
    home = opened(server, "table")
    home.table()
    server.uses = 8
    home.view(time_travel=True)
    server.uses = 0  # the tests' own writer begins nothing again
    first = home.refresh()
    home.append()
    home.refresh()
    server.uses = 8
    assert len(list(read_rows(home.catalog, readable(home.catalog, VIEW)).rows())) == 3
    assert verify_files(home.catalog, VIEW).intact
    rollback(home.catalog, VIEW, first.refresh_id or "")
    maintain(home.catalog, VIEW, older_than=timedelta(0))
    assert server.refused
    with pytest.raises(ConfigurationError, match=r"The view was dropped; the rest of its files is below s3://vended"):
        purge(home.catalog, VIEW)  # a table that was dropped has no new credentials


@pytest.mark.slow
@pytest.mark.parametrize("how", ["config", "storage-credentials"])
def test_the_credentials_of_a_running_job_are_renewed_if_the_server_names_an_endpoint_for_that(
    spark: SparkSession, server: Vending, how: str
) -> None:
    """Not those of a staging catalog, in which the rows are written where the columns change."""
    home = opened(server, "table", f"vended{uuid.uuid4().hex[:8]}")  # the session does not know this name yet
    home.table()
    home.stager = session_stager(home.catalog, spark)  # type: ignore[assignment]
    home.view(sql="SELECT region, sum(amount) AS amount FROM sales.orders GROUP BY region")
    server.how, server.renews = how, True
    home.append()
    server.uses = 8
    home.refresh()
    assert server.renewed > 0
    assert verify(home.catalog, VIEW, session=lambda: spark).equal
    create(home.catalog, VIEW, Definition(WIDER, layout="table"), stager=home.stager, replace=True)
    server.uses, server.expires_ms = 0, time.time_ns() // 1_000_000 + 60_000
    assert home.refresh().outcome == "refreshed"
    assert {row["amount"] for row in home.read()} == {"NORTH", "SOUTH", "EAST"}


@pytest.mark.parametrize("layout", ["table", "registered"])
def test_a_server_that_only_signs_requests_is_refused_by_name_and_nothing_is_left(server: Vending, layout: str) -> None:
    home = opened(server, layout)
    home.table()
    server.how = "signing"
    home.catalog = MaterializedViewCatalog(load_catalog("lake", type="rest", uri=server.catalog))
    with pytest.raises(NoCredentialsError, match=r"has only offered to sign requests for .*Give the catalog keys"):
        create(home.catalog, VIEW, Definition(QUERY, layout=layout), stager=home.stager)
    assert home.iceberg.list_tables("sales") == [("sales", "orders")]
    server.places["test"] = ""  # the store knows keys of the catalog's own
    own = opened(server, layout, **server.bucket.access)
    own.view()
    assert own.refresh().outcome == "refreshed"
    own.append()
    assert own.refresh().outcome == "refreshed"


def test_a_listing_of_views_requests_no_credentials(server: Vending) -> None:
    """For a server each may be a call to a service with a limit of its own; there may be a thousand tables."""
    home = opened(server, "table")
    home.table()
    view = home.view()
    before = len(server.every)
    assert home.catalog.list("sales") == home.catalog.list() == [view]
    assert len(server.every) == before


def test_without_credentials_for_a_location_the_default_ones_are_not_used_silently(
    server: Vending, caplog: pytest.LogCaptureFixture
) -> None:
    """They may be another account's, and the names of buckets are unique only within one store."""
    home = opened(server, "table")
    home.table()
    elsewhere = f"s3://{server.bucket.bucket}/elsewhere"
    with pytest.raises(NoCredentialsError, match="vends credentials, and has vended none for it"):
        home.catalog.files.now_ms(elsewhere)
    location = home.load().metadata.location
    server.broken = True
    server.end()
    with pytest.raises(
        AccessDeniedError, match=r"refused the credentials .* and the new ones after it was loaded again"
    ) as caught:
        home.catalog.files.now_ms(location)
    assert not [secret for secret in server.every if secret in str(caught.value)]
    server.broken = False

    chosen = opened(server, "table", **{DEFAULT_CREDENTIALS: "true"})
    assert chosen.load().metadata.location
    for _ in range(2):
        chosen.catalog.files.require_access(elsewhere)
    assert caplog.text.count("the default credentials of this process") == 1
    own = opened(server, "table", **server.bucket.access)
    assert own.load().metadata.location
    assert own.catalog.files.now_ms(elsewhere) > 0
