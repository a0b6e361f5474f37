# SPDX-License-Identifier: Apache-2.0
"""A connection of type iceberg gives the catalog, Spark's settings and the rows, and hides its secrets."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk import Connection
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection, TaskStatesResult
from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend
from sqlalchemy import make_url

from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, InvalidIdentifierError, StaleViewError
from airflow_mv.hooks import MaterializedViewHook, spark_target
from airflow_mv.hooks.iceberg import mask
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import Lake

SECRET = "c4nary/pa ss@w0rd"


def _extra(sales: Lake, **more: Any) -> dict[str, Any]:
    return {
        "type": "sql",
        "uri": sales.iceberg.properties["uri"],
        "warehouse": sales.iceberg.properties["warehouse"],
        **more,
    }


def test_the_catalog_has_the_name_that_view_names_begin_with(daily: Lake) -> None:
    """The rows of a SQL catalog contain its name, so the connection's id cannot be used instead."""
    catalog = MaterializedViewHook().catalog_for(VIEW)

    assert catalog.name == "lake"
    assert MaterializedViewHook().status(VIEW).state == "fresh"


def test_the_hook_converts_a_view(daily: Lake) -> None:
    assert MaterializedViewHook().convert(VIEW, "table").changed
    assert MaterializedViewHook().status(VIEW).state == "fresh"
    assert not MaterializedViewHook().convert(VIEW, "table").changed


def test_a_connection_may_be_bound_to_one_catalog_name(airflow: Airflow, daily: Lake) -> None:
    """Then names need no catalog, and another catalog's name is an error."""
    airflow.connect("bound", conn_type="iceberg", extra=_extra(daily, catalog_name="lake"))
    hook = MaterializedViewHook("bound")

    assert str(hook.connection.identify("sales.daily")) == VIEW
    assert hook.status("sales.daily").state == "fresh"
    assert hook.get_conn().name == "lake"
    assert "catalog_name" not in hook.get_conn().properties
    with pytest.raises(ConfigurationError, match="is in catalog 'sea', but connection 'bound' is for 'lake'"):
        hook.status("sea.sales.daily")
    with pytest.raises(InvalidIdentifierError, match=r"write catalog\.namespace\.name"):
        MaterializedViewHook().status("sales.daily")


def test_airflows_option_chooses_the_layout_unless_the_connection_does(
    airflow: Airflow, daily: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.connect("other", conn_type="iceberg", extra=_extra(daily, **{"airflow-mv.layout": "registered"}))
    assert MaterializedViewHook().catalog_named("lake").layouts[0] == "pointed"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_MV__LAYOUT", "table")
    assert MaterializedViewHook().catalog_named("lake").layouts[0] == "table"
    assert MaterializedViewHook("other").catalog_named("lake").layouts[0] == "registered"


def test_login_and_password_complete_the_uri_of_a_sql_catalog(
    airflow: Airflow, postgres_uri: str, tmp_path: Any
) -> None:
    """Secrets belong in the password field; Spark gets them from there, too, and no log shows them."""
    url = make_url(postgres_uri)
    bare = f"{url.drivername}://{url.host}:{url.port}/{url.database}"
    extra = {"uri": bare, "warehouse": f"file://{tmp_path}", "init_catalog_tables": True}
    airflow.connect("pg", conn_type="iceberg", login=url.username, password=url.password, extra=extra)
    hook = MaterializedViewHook("pg")
    settings = hook.spark_settings(VIEW)

    assert hook.test_connection()[0]
    assert hook.catalog_named("lake").list() == []
    assert settings.secrets["spark.sql.catalog.lake.jdbc.password"] == url.password
    assert url.password not in repr(settings.confs)
    assert "***" in str(redact(f"the password is {url.password}"))


def test_every_form_of_a_secret_is_masked(airflow: Airflow, sales: Lake) -> None:
    """In a URI a password is percent-encoded, so the plain value must not be the only mask."""
    uri = f"postgresql://me:{quote(SECRET, safe='')}@127.0.0.1:1/x"
    airflow.connect("one", conn_type="iceberg", extra=_extra(sales, uri=uri, credential="id:c4nary-two"))
    with pytest.raises(Exception, match="the catalog does not respond"):
        MaterializedViewHook("one").catalog_for(VIEW)

    for text in (SECRET, quote(SECRET, safe=""), uri, "c4nary-two", "id:c4nary-two"):
        assert "4nary" not in str(redact(text)), text


def test_a_secret_that_is_too_short_to_be_masked_leads_to_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Airflow would warn for each one, at each access to the connection."""
    with caplog.at_level("WARNING"):
        mask({"s3.secret-access-key": "abc", "credential": "id:c4nary-short"})
    assert "masking" not in caplog.text
    assert "4nary" not in str(redact("id:c4nary-short"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"conn_type": "postgres"}, "is of type 'postgres'; iceberg is needed"),
        ({"conn_type": "iceberg", "extra": {"type": "sql", "uri": "no address"}}, "'uri' is not a database URL"),
        ({"conn_type": "iceberg", "extra": {"type": "nonsense"}}, "the catalog cannot be opened"),
    ],
)
def test_an_error_of_a_connection_names_the_connection(airflow: Airflow, fields: dict[str, Any], message: str) -> None:
    """The message says which connection and which field are wrong."""
    airflow.connect("wrong", **fields)
    with pytest.raises(ConfigurationError, match=message) as raised:
        MaterializedViewHook("wrong").catalog_for(VIEW)
    assert "'wrong'" in str(raised.value)


def test_rows_are_read_as_arrow_or_pandas(daily: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Downstream tasks need no Spark; they log which refresh they read."""
    hook = MaterializedViewHook()
    refresh_id = hook.status(VIEW).to_dict()["refresh_id"]

    rows = hook.read(VIEW)
    assert rows.readable.refresh_id == refresh_id
    assert rows.to_arrow().num_rows == 2
    frame = hook.read(VIEW).to_pandas()
    assert len(frame) == 2
    assert set(frame.columns) == {"region", "orders", "amount"}


def test_stale_rows_are_refused_if_no_refresh_is_requested(daily: Lake) -> None:
    """The view does not allow stale reads, so no rows are returned."""
    daily.append()
    with pytest.raises(StaleViewError, match="is stale"):
        MaterializedViewHook().read(VIEW, refresh=False)


def test_spark_connections_have_the_same_target_as_in_the_spark_provider(airflow: Airflow) -> None:
    """In each form in which users write a master."""
    airflow.connect("a", conn_type="spark", host="spark://h", port=7077, extra={"deploy-mode": "client"})
    airflow.connect("b", conn_type="spark", host="h", port=7077)
    airflow.connect("c", conn_type="k8s", host="h", port=443)
    airflow.connect("d", conn_type="spark_connect", host="h", port=15002, password=SECRET)

    assert spark_target("a").master == spark_target("b").master == "spark://h:7077"
    assert spark_target("a").deploy_mode == "client"
    assert spark_target("c").master == "k8s://h:443"
    assert spark_target("d").remote == f"sc://h:15002/;token={quote(SECRET)}"
    assert spark_target("spark_default").missing
    with pytest.raises(ConfigurationError, match=r"no connection 'other' \(spark_conn_id\). .* AIRFLOW_CONN_OTHER"):
        spark_target("other")


class Vault:
    """A secrets backend, which answers in this order."""

    def __init__(self, *answers: Exception | Connection | None) -> None:
        self.answers = list(answers)

    def get_connection(self, conn_id: str) -> Connection | None:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class ApiServer:
    """What a task sends its requests to. It finds no connection, either, while its database does not respond."""

    def __init__(self, *, has_database: bool = True, answer: str = "CONNECTION_NOT_FOUND") -> None:
        self.has_database, self.answer = has_database, ErrorType[answer]

    def send(self, message: object) -> object:
        if isinstance(message, GetConnection):
            return ErrorResponse(error=self.answer)
        if not self.has_database:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))
        return TaskStatesResult(task_states={})


def looking_in(monkeypatch: pytest.MonkeyPatch, vault: Vault, server: ApiServer) -> None:
    """Look connections up as a task does."""
    places = [vault, ExecutionAPISecretsBackend()]
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", server, raising=False)
    monkeypatch.setattr("airflow.sdk.execution_time.supervisor.ensure_secrets_backend_loaded", lambda: places)


@pytest.mark.parametrize(
    ("vault", "server", "reason"),
    [
        (Vault(*[OSError("sealed")] * 9), ApiServer(), "Vault failed: OSError: sealed"),
        (Vault(), ApiServer(has_database=False), "Airflow's API server failed: AirflowRuntimeError: API_SERVER_ERROR"),
    ],
    ids=["secrets backend", "database"],
)
def test_a_connection_that_cannot_be_looked_up_may_be_there_at_the_next_try(
    monkeypatch: pytest.MonkeyPatch, vault: Vault, server: ApiServer, reason: str
) -> None:
    """Airflow's own lookup finds none then. A refresh must not fail for good, nor run Spark on the worker."""
    looking_in(monkeypatch, vault, server)
    with pytest.raises(CatalogUnavailableError, match=f"connection 'lost' was not found, and {reason}"):
        MaterializedViewHook("lost").connection.content()
    with pytest.raises(CatalogUnavailableError, match=reason):
        spark_target("spark_default")


def test_a_connection_that_no_place_has_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has answered."""
    looking_in(monkeypatch, Vault(), ApiServer())
    with pytest.raises(ConfigurationError, match=r"there is no connection 'lost' \(iceberg_conn_id\)"):
        MaterializedViewHook("lost").connection.content()
    assert spark_target("spark_default").missing
    late = Vault(OSError("sealed"), None, Connection(conn_id="late", conn_type="iceberg"))
    looking_in(monkeypatch, late, ApiServer())
    assert MaterializedViewHook("late").connection.content()
    looking_in(monkeypatch, Vault(*[ValueError("port 'hunter22'")] * 9), ApiServer())
    with pytest.raises(ConfigurationError, match=r"Vault has a value for it that is not a connection \(ValueError\)"):
        MaterializedViewHook("odd").connection.content()


@pytest.mark.skipif(not hasattr(ErrorType, "PERMISSION_DENIED"), reason="Airflow 3.2 finds no connection then")
def test_a_connection_that_the_task_may_not_read_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    looking_in(monkeypatch, Vault(), ApiServer(answer="PERMISSION_DENIED"))
    with pytest.raises(ConfigurationError, match="connection 'secret': Airflow denies this task access to it"):
        MaterializedViewHook("secret").connection.content()
