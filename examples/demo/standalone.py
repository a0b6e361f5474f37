# SPDX-License-Identifier: Apache-2.0
"""``make airflow``: a local Airflow with the demo's DAGs, its warehouse and its two connections."""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.error
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import FrameType

from rich.console import Console

from airflow_mv.errors import ConfigurationError
from examples.demo.airflow_run import DAG_ID
from examples.demo.home import DemoHome, dags_folder
from examples.demo.local_airflow import LocalAirflow, local_airflow
from examples.demo.postgres import airflow_database

console = Console(highlight=False, soft_wrap=True)

_PARSE_SECONDS = 120


def main() -> int:
    """Start Airflow, print address and login when it answers, and stop it on Ctrl-C.

    Returns:
        The process's exit code.
    """
    home = DemoHome.default()
    if not (home.folder / "catalog.db").exists():
        console.print("The demo's warehouse is not there yet; run `make demo` first.")
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console.print("Starting Airflow …")
    try:
        with airflow_database(home.folder / "postgres") as (settings, said), _started(home, settings) as airflow:
            console.print(said, markup=False)
            _unpause_demo(airflow)
            _tell(airflow, home)
            code = airflow.process.wait()
        console.print(f"Airflow ended by itself (exit code {code}); see {home.folder / 'standalone.log'}")
    except KeyboardInterrupt:
        console.print("\nAirflow is stopped.")
        return 0
    except ConfigurationError as error:
        console.print(str(error), markup=False)
    return 1


def _started(home: DemoHome, settings: Mapping[str, str]) -> AbstractContextManager[LocalAirflow]:
    return local_airflow(home, port=int(os.environ.get("AIRFLOW_MV_PORT", "8080")), settings=settings)


def _unpause_demo(airflow: LocalAirflow) -> None:
    """Let the demo's DAG run at a click; the one for backfills stays paused."""
    deadline = time.monotonic() + _PARSE_SECONDS
    while time.monotonic() < deadline:
        try:
            airflow.call("PATCH", f"/api/v2/dags/{DAG_ID}", {"is_paused": False})
            return
        except urllib.error.HTTPError:  # the DAG is not read yet
            time.sleep(1)


def _tell(airflow: LocalAirflow, home: DemoHome) -> None:
    login = f"user [bold]{airflow.user}[/bold]   password [bold]{airflow.password}[/bold]"
    console.print(f"\n  [bold]{airflow.url}[/bold]   {login}\n")
    console.print(f"  the demo's DAG  {airflow.url}/dags/{DAG_ID}")
    console.print(f"  DAG files       {dags_folder()}")
    console.print(f"  log             {home.folder / 'standalone.log'}")
    console.print("\n  Ctrl-C stops it.")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
