# SPDX-License-Identifier: Apache-2.0
"""A real ``airflow api-server`` in its own folder, and a browser that is logged in."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.services import ServiceUnavailableError, free_port

ROOT = Path(__file__).parents[2]
USERS = ("viewer", "user", "admin")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_SECONDS = 400


@dataclass(frozen=True)
class Served:
    """A running API server.

    Args:
        url: Its address.
        home: Its folder.
    """

    url: str
    home: Path

    def token(self, user: str) -> str:
        """Log a user in, and return the token."""
        passwords = json.loads((self.home / "simple_auth_manager_passwords.json.generated").read_text())
        return str(self.call("POST", "/auth/token", {"username": user, "password": passwords[user]})["access_token"])

    def call(self, method: str, path: str, body: Any = None, *, user: str | None = None) -> Any:
        """Call the REST API."""
        headers = {"Content-Type": "application/json"}
        if user is not None:
            headers["Authorization"] = f"Bearer {self.token(user)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)

    def context(self, browser: Browser, user: str, **options: Any) -> BrowserContext:
        """A browser session with a logged-in user, as after Airflow's own login."""
        context = browser.new_context(**options)
        cookie = {"name": "_token", "value": self.token(user), "url": self.url, "httpOnly": True, "sameSite": "Lax"}
        context.add_cookies([cookie])  # type: ignore[list-item]
        return context


@contextmanager
def served(
    folder: Path, *, dags: str, settings: Mapping[str, str], runs: Sequence[Mapping[str, Any]] = ()
) -> Iterator[Served]:
    """Start an API server, and stop it at the end.

    Args:
        folder: Its folder, which is empty.
        dags: Source of its DAG file.
        settings: More environment variables.
        runs: Past runs; see :mod:`tests.plugin.prepare`.
    """
    home, dag_folder, log = folder / "airflow", folder / "dags", folder / "api-server.log"
    home.mkdir()
    dag_folder.mkdir()
    (dag_folder / "shop.py").write_text(dags)
    (folder / "runs.json").write_text(json.dumps(list(runs)))
    url = f"http://127.0.0.1:{free_port()}"
    environment = {**os.environ, **_settings(home, dag_folder, url), **settings}
    command = [sys.executable, "-m", "tests.plugin.prepare", str(dag_folder), str(folder / "runs.json")]
    with log.open("w") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, cwd=ROOT, check=False)
        assert done.returncode == 0, log.read_text()[-4000:]
        server = subprocess.Popen(
            [sys.executable, "-m", "airflow", "api-server", "--port", url.rpartition(":")[2], "--workers", "1"],
            env=environment, stdout=output, stderr=output, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
    try:
        _wait(server, url, log)
        yield Served(url, home)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium.

    Raises:
        ServiceUnavailableError: It is not installed.
    """
    path = os.environ.get("AIRFLOW_MV_TEST_CHROMIUM") or shutil.which("chromium")
    if path is None:
        raise ServiceUnavailableError(
            "the page in a browser: there is no Chromium; install your system's package (Debian: chromium), or set "
            "AIRFLOW_MV_TEST_CHROMIUM to its path"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def _settings(home: Path, dags: Path, url: str) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{user}" for user in USERS),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__AIRFLOW_MV__PAGE_CACHE_SECONDS": "3",
        "AIRFLOW__AIRFLOW_MV__PAGE_CONN_IDS": "iceberg_default",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/api/v2/version", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the API server did not start: {log.read_text()[-4000:]}")
