# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks [BENCHMARK] [options]``; ``--help`` lists the benchmarks."""

from __future__ import annotations

import argparse
import compileall
import os
import sys
from pathlib import Path

import airflow_mv
from benchmarks import (
    connect,
    demo,
    folder,
    fresh_reads,
    freshness,
    full_refresh,
    incremental,
    lag_day,
    many_views,
    memory,
    pairs,
    registry,
    report,
    shared_application,
    starts,
    tpcds_modes,
    tpch_modes,
    two_years,
    waiting_sensors,
)
from benchmarks.peers import command as peers
from benchmarks.whole import command as whole

_COMMANDS = {
    "all": whole,
    "demo": demo,
    "folder": folder,
    "full-refresh": full_refresh,
    "connect": connect,
    "fresh-reads": fresh_reads,
    "freshness": freshness,
    "incremental": incremental,
    "lag-day": lag_day,
    "many-views": many_views,
    "memory": memory,
    "pairs": pairs,
    "peers": peers,
    "registry": registry,
    "shared-application": shared_application,
    "starts": starts,
    "tpcds-modes": tpcds_modes,
    "tpch-modes": tpch_modes,
    "two-years": two_years,
    "waiting-sensors": waiting_sensors,
}


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure; see benchmarks/README.md.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in _COMMANDS.items():
        command = commands.add_parser(name, help=(module.__doc__ or "").strip().splitlines()[0].replace("%", "%%"))
        command.add_argument("--cache", type=Path, default=Path(".bench"), help="folder of the data that are made once")
        command.add_argument("--out", type=Path, help="write every single run to this JSON file")
        module.add_arguments(command)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Run one benchmark."""
    # Loopback only, and no setting of this machine's own.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
        del os.environ[name]
    options = options_of(arguments)
    # As pip does. Where PYTHONDONTWRITEBYTECODE is set, each new process would compile a checkout again.
    compileall.compile_dir(Path(airflow_mv.__file__).parent, quiet=1)
    document = _COMMANDS[options.command].run(options)
    report.keep(options.out, document)


if __name__ == "__main__":
    main(sys.argv[1:])
