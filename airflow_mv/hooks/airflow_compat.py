# SPDX-License-Identifier: Apache-2.0
"""Private names of Airflow that this package uses, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from airflow.sdk._shared.secrets_masker import redact

_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


def redacted(text: str) -> str:
    """Return a text with all secrets that Airflow knows masked."""
    return str(redact(text))


def timetable_field(timetable: Any, name: str) -> Any:
    """Return a field of a timetable: public in those of the task SDK, private in those of ``airflow.timetables``."""
    return getattr(timetable, name, None) or getattr(timetable, f"_{name}", None)


def one_task_at_a_time() -> bool:
    """Whether ``dag.test()`` runs the DAG: no task begins before another one has ended."""
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    return isinstance(_supervisor(), InProcessSupervisorComms)


def _supervisor() -> object | None:
    """Return the connection of a task or trigger to its supervisor; ``None`` in other processes."""
    from airflow.sdk.execution_time import task_runner  # large, and only tasks need it

    return getattr(task_runner, "SUPERVISOR_COMMS", None)


@contextmanager
def connections_of_the_database() -> Iterator[None]:
    """Let a process that is none of Airflow's find connections in Airflow's database, as the scheduler does.

    Without it, Airflow's task SDK asks the environment and the configured secrets backends only.
    """
    before = os.environ.get(_CONTEXT)
    os.environ.setdefault(_CONTEXT, "server")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CONTEXT]


def reads_connections_from_the_database() -> bool:
    """Whether this process looks for connections in Airflow's database. Tasks ask the api-server instead."""
    return os.environ.get(_CONTEXT) == "server" and _supervisor() is None


def searches_the_database() -> bool:
    """Whether a connection in Airflow's database is found here: directly, or as a task through the API server."""
    return os.environ.get(_CONTEXT) is not None or _supervisor() is not None


def places_of_connections(conn_id: str) -> list[tuple[str, Callable[[], object]]]:
    """Return where this process looks for a connection, each with a function that raises what the place fails with.

    Airflow's own lookup passes over a place that fails. So does the API server, which tasks and triggers ask: while its
    database does not respond, it finds no connection. So it is asked for something else that is in its database.

    Args:
        conn_id: The connection.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetTaskStates
    from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    def ask_api_server() -> None:
        task_runner.SUPERVISOR_COMMS.send(GetTaskStates(dag_id=conn_id, run_ids=[conn_id]))

    return [
        ("Airflow's API server", ask_api_server)
        if isinstance(backend, ExecutionAPISecretsBackend)
        else (type(backend).__name__, partial(backend.get_connection, conn_id=conn_id))
        for backend in ensure_secrets_backend_loaded()
    ]
