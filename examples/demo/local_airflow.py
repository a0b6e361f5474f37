# SPDX-License-Identifier: Apache-2.0
"""A complete Airflow on this machine: one session of processes, used over REST, all of which are stopped at the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from airflow_mv.errors import ConfigurationError
from examples.demo.home import DemoHome, dags_folder

_START_SECONDS = 300
_STOP_SECONDS = 15
_RETRY_SECONDS = 60
_PASSWORDS = "simple_auth_manager_passwords.json.generated"
_CONNECTION = "AIRFLOW_CONN_"
_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


@dataclass(frozen=True, slots=True)
class LocalAirflow:
    """An Airflow that answers.

    Args:
        url: Address of its UI and its REST API.
        user: Login.
        password: Its password.
        process: ``airflow standalone``; leader of the session that all of Airflow's processes are in.
    """

    url: str
    user: str
    password: str
    process: subprocess.Popen[bytes]
    _tokens: list[str] = field(default_factory=list, repr=False, compare=False)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the REST API as this user; again for a while where Airflow's database is too busy to answer.

        Args:
            method: HTTP method.
            path: Path and query.
            body: JSON value to send.

        Raises:
            urllib.error.HTTPError: It refuses.
        """
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return _json(method, f"{self.url}{path}", body, {"Authorization": f"Bearer {self.token()}"})
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                refused = isinstance(error, urllib.error.HTTPError) and error.code < HTTPStatus.INTERNAL_SERVER_ERROR
                if refused or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def token(self) -> str:
        """Log in, at the first call only: a login costs Airflow 0.1 s of CPU time, and its token is valid for a day.

        Raises:
            urllib.error.HTTPError: The login is refused.
        """
        if not self._tokens:
            login = {"username": self.user, "password": self.password}
            self._tokens.append(str(_json("POST", f"{self.url}/auth/token", login)["access_token"]))
        return self._tokens[0]


@contextmanager
def local_airflow(
    home: DemoHome, *, dags: Path | None = None, port: int = 8080, settings: Mapping[str, str] | None = None
) -> Iterator[LocalAirflow]:
    """Start all of Airflow, wait until every part is healthy, and stop all of it at the end.

    Args:
        home: Where it lives.
        dags: Folder of DAGs; the examples, if none is given.
        port: Port of the UI; another one if somebody listens there.
        settings: More environment variables.

    Raises:
        ConfigurationError: It did not start; the message names its log.
    """
    home.airflow_home.mkdir(parents=True, exist_ok=True)
    log = home.folder / "standalone.log"
    environment = {**os.environ, **home.environment(), **_settings(_free_port(port), dags), **(settings or {})}
    connections = {name: environment.pop(name) for name in home.environment() if name.startswith(_CONNECTION)}
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        _wait(process, environment["AIRFLOW__API__BASE_URL"], log)
        airflow = LocalAirflow(environment["AIRFLOW__API__BASE_URL"], *_login(home), process)
        for name, value in connections.items():
            _connect(airflow, name.removeprefix(_CONNECTION).lower(), json.loads(value))
        yield airflow
    finally:
        _stop(process)


def _settings(port: int, dags: Path | None) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}"
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags or dags_folder()),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        # Airflow warns of any setting of a connection that is shorter, secret or not: `"type": "sql"`.
        "AIRFLOW__LOGGING__MIN_LENGTH_MASKED_SECRET": "3",
        # Another Airflow on this machine has the usual ones.
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(_free_port(0)),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(_free_port(0)),
    }


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(urllib.error.URLError, TimeoutError, ConnectionError):
            health = _json("GET", f"{url}/api/v2/monitor/health")
            if all((health.get(part) or {}).get("status") == "healthy" for part in _PARTS):
                return
        time.sleep(0.5)
    raise ConfigurationError(f"Airflow did not start; the reason is at the end of {log}")


def _connect(airflow: LocalAirflow, conn_id: str, fields: dict[str, Any]) -> None:
    """Put a connection into Airflow's database: its UI does not show those of the environment."""
    extra = {"extra": json.dumps(fields["extra"])} if "extra" in fields else {}
    body = {**fields, **extra, "connection_id": conn_id}
    try:
        airflow.call("PATCH", f"/api/v2/connections/{conn_id}", body)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        airflow.call("POST", "/api/v2/connections", body)


def _json(method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    every = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, every, method=method)  # noqa: S310 - always http://127.0.0.1
    # A proxy that the user has set has no business between two processes of one machine.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return json.load(answer)


def _login(home: DemoHome) -> tuple[str, str]:
    passwords: dict[str, str] = json.loads((home.airflow_home / _PASSWORDS).read_text(encoding="utf-8"))
    return next(iter(passwords.items()))


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ConfigurationError("there is no free port on 127.0.0.1")


def _stop(leader: subprocess.Popen[bytes]) -> None:
    """Stop the whole session: a running task and its Spark driver are in a process group of their own."""
    # An impatient second Ctrl-C must not leave half of it running.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    deadline = time.monotonic() + _STOP_SECONDS
    wanted = signal.SIGTERM
    while members := _session(leader.pid):
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(wanted)
        psutil.wait_procs(members, timeout=max(1.0, deadline - time.monotonic()))
        wanted = signal.SIGKILL
    leader.wait()
    for number, handler in before.items():
        signal.signal(number, handler)


def _session(leader: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        # A zombie has ended; whether anyone collects it is its parent's business.
        with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members
