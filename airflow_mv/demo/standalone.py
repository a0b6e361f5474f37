# SPDX-License-Identifier: Apache-2.0
"""``make airflow``: a local Airflow with the example DAGs, the demo's warehouse and its two connections."""

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
from types import FrameType

from rich.console import Console

from airflow_mv.demo.home import DemoHome
from airflow_mv.errors import ConfigurationError

console = Console(highlight=False, soft_wrap=True)

_START_SECONDS = 120
_PASSWORDS = "simple_auth_manager_passwords.json.generated"


def main() -> int:
    """Start Airflow, print address and login when it answers, and stop it on Ctrl-C."""
    home = DemoHome.default()
    if not (home.folder / "catalog.db").exists():
        console.print("The demo's warehouse is not there yet; run `make demo` first.")
        return 1
    port = _free_port(int(os.environ.get("AIRFLOW_MV_PORT", "8080")))
    environment = {
        **os.environ,
        **home.environment(),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }
    home.airflow_home.mkdir(parents=True, exist_ok=True)
    with (home.folder / "standalone.log").open("w", encoding="utf-8") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        console.print("Starting Airflow …")
        _wait(child, port)
        user, password = _login(home)
        console.print(
            f"\n  [bold]http://127.0.0.1:{port}[/bold]   user [bold]{user}[/bold]   password [bold]{password}[/bold]"
        )
        console.print(f"  DAGs: {environment['AIRFLOW__CORE__DAGS_FOLDER']}\n  log:  {home.folder / 'standalone.log'}")
        console.print("  Ctrl-C stops it.")
        return child.wait()
    except KeyboardInterrupt:
        console.print("\nStopping Airflow …")
        return 0
    finally:
        _stop(child)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wait(child: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=5) as answer:
                health = json.load(answer)
            if all(part.get("status") == "healthy" for name, part in health.items() if part and name != "triggerer"):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        time.sleep(1)
    raise ConfigurationError("Airflow did not start; see standalone.log in the demo's folder")


def _login(home: DemoHome) -> tuple[str, str]:
    file = home.airflow_home / _PASSWORDS
    passwords = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return next(iter(passwords.items()), ("admin", "(see standalone.log)"))


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", wanted)) != 0:
            return wanted
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(child: subprocess.Popen[bytes]) -> None:
    # Airflow's own processes are in its group; `standalone` alone would leave them behind.
    for name in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, name)
            child.wait(timeout=20)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(main())
