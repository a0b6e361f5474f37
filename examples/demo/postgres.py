# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of one's own, from the system's package: on a free port, in one folder, stopped at the end."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import OperationalError

from airflow_mv.errors import ConfigurationError

_START_SECONDS = 240
_STOP_SECONDS = 60
#: Airflow's database needs one driver for its blocking calls, and one for the others.
_DRIVERS = ("psycopg2", "psycopg")


def postgres_programs() -> Path:
    """Return the folder of PostgreSQL's newest programs.

    Raises:
        ConfigurationError: It is not installed.
    """
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest_first = sorted(installed, key=lambda path: int(path.parts[-3]), reverse=True)
    found = newest_first[0] if newest_first else shutil.which("initdb")
    if found is None:
        raise ConfigurationError(
            "PostgreSQL is not installed: install your system's package (Debian, Ubuntu: apt-get install postgresql)"
        )
    return Path(found).resolve().parent


@contextmanager
def postgres(folder: Path, *, user: str, options: Sequence[str] = ()) -> Iterator[URL]:
    """Start a server, and stop it at the end. A folder that it was started in before keeps its data.

    Args:
        folder: Where its data, its password and its log are.
        user: Its only user.
        options: More options of the server.

    Raises:
        ConfigurationError: PostgreSQL is not installed, or does not start.
    """
    programs, account = postgres_programs(), _account()
    folder.mkdir(parents=True, exist_ok=True)
    password_file, log = folder / "password", folder / "server.log"
    if not password_file.exists():
        password_file.touch(0o600)
        password_file.write_text(secrets.token_hex(16))
    if account:
        for path in (folder, password_file):
            os.chown(path, account.pw_uid, account.pw_gid)
    with log.open("w") as output:
        common: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        common["start_new_session"] = True  # a terminal's Ctrl-C stops those that use it first
        if account:
            common |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        try:
            _initialise(programs, folder, user, log, common)
            port = _free_port()
            own = [f"-cport={port}", "-clisten_addresses=127.0.0.1", f"-cunix_socket_directories={folder}"]
            server = subprocess.Popen([programs / "postgres", "-D", folder / "data", *own, *options], **common)
        except (OSError, subprocess.SubprocessError) as error:  # its user may not enter the folder
            raise ConfigurationError(f"PostgreSQL does not start: {error}") from None
        try:
            url = URL.create("postgresql+psycopg2", user, password_file.read_text(), "127.0.0.1", port, "postgres")
            _wait(server, url, log)
            yield url
        finally:
            _stop(server)


def _initialise(programs: Path, folder: Path, user: str, log: Path, common: dict[str, Any]) -> None:
    if (folder / "data" / "PG_VERSION").exists():
        return
    wanted = ["-D", str(folder / "data"), "-U", user, "--auth=scram-sha-256", "--pwfile", str(folder / "password")]
    command = [str(programs / "initdb"), *wanted, "-E", "UTF8", "--locale=C", "--no-sync"]
    if subprocess.run(command, check=False, **common).returncode:
        raise ConfigurationError(f"PostgreSQL does not start: initdb failed: {log.read_text().strip()[-500:]}")


def _account() -> pwd.struct_passwd | None:
    """Return the account of the server, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigurationError("PostgreSQL refuses to run as root, and there is no account `postgres` or `nobody`")


def _wait(server: subprocess.Popen[bytes], url: URL, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        engine = create_engine(url)
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
            return
        except OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise ConfigurationError(f"PostgreSQL does not start: {log.read_text().strip()[-500:]}") from None
            time.sleep(0.1)
        finally:
            engine.dispose()


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # PostgreSQL's "fast shutdown": it does not wait for clients
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def airflow_database(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Start a database for a local Airflow: PostgreSQL, if it is there.

    Airflow's API cannot create backfills reliably on SQLite: while the scheduler writes, it answers 503, "Database is
    locked".

    Args:
        folder: Where PostgreSQL's data is kept.

    Yields:
        Airflow's settings, none for SQLite; and a sentence about the choice.
    """
    with ExitStack() as running:
        try:
            missing = [name for name in _DRIVERS if importlib.util.find_spec(name) is None]
            if missing:
                raise ConfigurationError(f"the Python packages {', '.join(missing)} are not installed")
            url = running.enter_context(postgres(folder, user="airflow"))
        except ConfigurationError as error:
            yield {}, f"Airflow's database is SQLite, on which backfills may fail. {error}"
            return
        uri = url.render_as_string(hide_password=False)
        settings = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": uri,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": uri.replace("+psycopg2", "+psycopg"),
        }
        yield settings, f"Airflow's database is PostgreSQL, in {folder}"
