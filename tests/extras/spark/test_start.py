# SPDX-License-Identifier: Apache-2.0
"""Starting Spark in this process."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec

import pytest

from airflow_mv.extras.spark import session


def test_what_java_prints_goes_to_stderr_because_stdout_is_for_the_document(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with session._quiet_stdout():
        subprocess.run(["echo", ":: loading settings"], check=True)
    os.write(1, b"{}\n")
    assert tuple(capfd.readouterr()) == ("{}\n", ":: loading settings\n")


@pytest.mark.parametrize(
    ("module", "found"), [("pyspark.core", True), ("pyspark.context", True), ("pyspark.sql", False)]
)
def test_spark_is_told_from_a_client_in_each_version(monkeypatch: pytest.MonkeyPatch, module: str, found: bool) -> None:
    """Spark 3.5 has no package of the first name, Spark 4 no module of the second one."""
    monkeypatch.setattr(session, "find_spec", lambda name: find_spec("os") if name == module else None)
    assert session._has_spark() is found
