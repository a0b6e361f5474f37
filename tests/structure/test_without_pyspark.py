# SPDX-License-Identifier: Apache-2.0
"""A worker needs no PySpark but for a refresh of its own: tests of planning, publication, waiting and reading pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Publication of staged rows, commits that wait for a job elsewhere, triggers, and the page's links.
TESTS = (
    "tests/contract/test_publication.py::test_a_refresh_that_is_published_twice_lands_once",
    "tests/airflow/test_outcome.py",
    "tests/airflow/test_triggers.py::test_a_commit_fires_once_and_a_compaction_never",
    "tests/plugin/test_links.py",
)
#: Runs the tests in a process where `import pyspark` fails, and loads the page.
CODE = """\
import sys
sys.modules["pyspark"] = None
import pytest
ended = pytest.main(sys.argv[1:])
import airflow_mv.plugin
sys.exit(ended)
"""
_ONLY_SQLITE = "not postgres and not rest and not glue and not hive"


def test_a_worker_without_pyspark_plans_commits_waits_and_shows_views() -> None:
    tests = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not postgres and not rest", "-k", _ONLY_SQLITE, *TESTS]
    done = subprocess.run([sys.executable, "-c", CODE, *tests], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
