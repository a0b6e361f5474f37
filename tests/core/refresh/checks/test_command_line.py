# SPDX-License-Identifier: Apache-2.0
"""Checks from the command line: exit code 4 and the offending rows; also over Spark Connect, without access to Java."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.support import call
from tests.core.job.conftest import make_lake
from tests.core.job.processes import ROOT, connect_server, environment
from tests.engine.support import Lake

AIRFLOW_MV = str(Path(sys.executable).parent / "airflow-mv")


def test_a_failed_check_ends_with_4_and_prints_the_rows_on_stderr(lake: Lake) -> None:
    lake.table("orders", "day integer, amount bigint", "(1, 10), (2, -5)")
    lake.create("daily", "SELECT day, amount FROM {ns}.orders")
    view = lake("daily")

    held = call("refresh", view, "--check", "amount >= 0", "--check", "day > 0")
    assert held.code == 4
    assert held.error.startswith(f"view {view}: 1 of 2 checks failed, so nothing was published")
    *details, last = [line for line in held.stderr.splitlines() if not line.startswith(view)][-4:]
    assert details[0] == "check 'amount >= 0': expected amount >= 0, of each row; found violating rows: 1"
    assert details[1] == "  row day=2, amount=-5"
    assert details[2].startswith("The checked rows are kept for inspection: ")
    assert last.endswith("so nothing was published and readers keep the rows that they have")
    assert held.stderr.count("amount >= 0': expected") == held.stderr.count("row day=2") == 1
    in_json = json.loads(call("refresh", view, "--check", "amount >= 0", "--json").stderr.splitlines()[-1])
    assert "row day=2, amount=-5" in in_json["error"]["message"]
    without = call("refresh", view, "--json")
    assert without.code == 0
    (document,) = json.loads(without.stdout)
    assert (document["outcome"], document["checks"]) == ("refreshed", [])
    lake.insert("orders", "(3, 5)")
    wrong = call("plan", view, "--check", "price > 0")
    assert (wrong.code, wrong.stdout) == (1, "")
    assert wrong.error.endswith("the view has no column 'price'; it has day, amount")

    done = call("refresh", view, "--check", '{"condition": "amount >= 0", "severity": "warn"}', "--check", "day > 0")
    assert done.code == 0
    assert "1 of 2 checks passed" in done.stdout
    assert "warned  amount >= 0: expected amount >= 0, of each row; found violating rows: 1" in done.stdout


@pytest.mark.slow
@pytest.mark.cluster
def test_a_refresh_over_connect_runs_its_own_checks_and_the_view_s(tmp_path: Path) -> None:
    lake = make_lake(tmp_path)
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {lake.name: lake.properties}}))
    variables = environment(PYICEBERG_HOME=str(tmp_path), PYTHONPATH=str(ROOT))
    view = f"{lake.name}.sales.daily"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [AIRFLOW_MV, *words, "--remote", remote]
        return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=500)

    with connect_server(tmp_path, lake.settings.session_confs()) as remote:
        own = ["--check", "amount < 1000", "--check", '{"unique": "day"}']
        created = run("create", view, "--sql", lake.query(), *own)
        assert created.returncode == 0, created.stderr
        names = ("enough", "no_negatives", "broken")
        functions = [f'--check={{"python": "tests.core.refresh.checks.functions:{name}"}}' for name in names]
        held = run("refresh", view, "--check", "amount > 10", *functions)
        assert held.returncode == 4, held.stderr
        assert f"error: view {view}: 2 of 6 checks failed, so nothing was published" in held.stderr
        assert "row day=a, amount=10" in held.stderr
        assert "AssertionError: north is missing" in held.stderr

        done = run("refresh", view, functions[0], "--json")
        assert done.returncode == 0, done.stderr
        (document,) = json.loads(done.stdout)
        assert [check["result"] for check in document["checks"]] == ["passed"] * 3
        assert document["outcome"] == "refreshed"
