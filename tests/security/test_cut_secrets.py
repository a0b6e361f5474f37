# SPDX-License-Identifier: Apache-2.0
"""I20 for truncated text: a log's mask does not recognize a part of a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_mv.core.job.driver import reason
from airflow_mv.core.job.session import hide_secrets
from airflow_mv.errors import MaterializedViewError
from airflow_mv.foundation.redaction import hide, shortened, without_secrets
from tests.airflow.conftest import Airflow, _airflow, airflow, lake_behind
from tests.contract.test_rest_answers import CANARY, Server, refusal, server
from tests.engine.fixtures import lake, lake_folder, spark
from tests.security.sinks import Canary

__all__ = ["_airflow", "airflow", "lake", "lake_folder", "server", "spark"]

VIEW = "lake.sales.daily"


def parts(secret: str) -> Iterator[str]:
    """The parts of a secret that must not be shown, from 5 characters on."""
    return (secret[:length] for length in range(5, len(secret) + 1))


@pytest.mark.parametrize("way", ["plain", "in a URL", "over two lines", "that nobody knows, in a URL"])
def test_i20_a_truncated_text_has_no_part_of_a_secret(way: str) -> None:
    """It is truncated at every length."""
    canary = Canary(way)
    secret = {"in a URL": canary.url, "over two lines": f"{canary.core}\n{canary.core}"}.get(way, canary.text)
    if way.startswith("that nobody knows"):
        secret, text = canary.core, f"cannot open postgresql://me:{canary.core}@host/db, not now"
    else:
        hide([secret])
        text = f"cannot open it with {' '.join(secret.split())}, not now"
    for longest in range(1, len(text) + 2):
        assert not any(part in shortened(text, longest) for part in parts(secret.split()[0])), longest
    assert "not now" in shortened(text, 1000)


def test_i20_a_password_with_an_unescaped_at_is_hidden_wherever_a_parser_cuts_it() -> None:
    """A driver names the host that it was given; a library names the URL."""
    properties = {"type": "sql", "uri": "postgresql://me:canary@tail-4711@db.example/x?sslpassword=canary-4712"}
    for text in ('no address for host "tail-4711@db.example"', properties["uri"], "the key canary-4712 is wrong"):
        assert not re.search("471[12]|canary", without_secrets(text, properties))
        assert "db.example" in without_secrets(text, properties) or "key" in text
    assert shortened(f"cannot open {properties['uri']}", 200).startswith("cannot open postgresql://me:***@db.example/x")


def test_i20_plain_values_and_short_ones_are_not_secrets() -> None:
    """A setting's name may look like that of a secret: otherwise ``true`` would be masked in every message."""
    hide(["true", "False", "3600", "1.5", "abc", ""])
    text = "true False 3600 1.5 abc"
    assert shortened(text, 100) == text


@pytest.mark.parametrize("path", ["a view", "its namespace"])
def test_i20_a_server_s_answer_that_repeats_the_token_shows_no_part_of_it(server: Server, path: str) -> None:
    """The answer contains the request; the message is bounded."""
    catalog = server.open()
    name = "GET daily" if path == "a view" else "GET sales"
    for length in range(300 - len(CANARY) - 40, 310):
        server.answers[name] = refusal(403, f"{'x' * length}{CANARY}")
        with pytest.raises(MaterializedViewError) as refused:
            catalog.load(VIEW) if path == "a view" else catalog.list("sales")
        assert "xxx" in str(refused.value)
        assert not any(part in str(refused.value) for part in parts(CANARY))


def test_i20_a_driver_s_reason_shows_no_part_of_a_secret_setting(spark: SparkSession) -> None:
    """A submitted job has only Spark's settings, not the catalog's properties."""
    canary = Canary("a setting")
    conf = spark.sparkContext._conf
    conf.set("spark.planted.token", canary.text)
    try:
        hide_secrets(spark)
    finally:
        conf._jconf.remove("spark.planted.token")
    for length in range(1950, 2002):
        shown = reason(RuntimeError(f"{'x' * length}{canary.text}"))
        assert not any(part in shown for part in parts(canary.core)), length


def test_i20_a_failed_task_s_error_shows_no_part_of_spark_s_output(airflow: Airflow, tmp_path: Path) -> None:
    """airflow #67459: Airflow masks the whole secret in the driver's lines, and not its first half in the error."""
    canary, program = Canary("token"), tmp_path / "fake-spark-submit"
    program.write_text(
        f"#!/usr/bin/env python3\nprint('x' * 1490 + {canary.text!r} + 'y' * 100)\nraise SystemExit(1)\n"
    )
    program.chmod(0o755)
    with lake_behind(airflow, tmp_path, token=canary.text) as found:
        found.view()
        run = airflow.run(
            f'RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", spark_binary="{program}")'
        )
    assert run.state == "failed"
    # Airflow masks the lines themselves, but not in a run without a supervisor.
    error = run.log.partition("spark-submit failed: ")[2].partition("\n")[0]
    assert error.startswith("xxx")
    assert not any(part in error for part in parts(canary.core))
