# SPDX-License-Identifier: Apache-2.0
"""The two commands that find faults: in a view's rows, and in an installation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_mv.cli import doctor
from airflow_mv.cli.doctor import Inspection
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.script import SqlStep, staged
from airflow_mv.core.spec.materialized_view import PROPERTY, property_text
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import ConfigurationError, VerificationError
from airflow_mv.extras.maintenance.verify import verify
from airflow_mv.extras.spark import session as stagers
from airflow_mv.extras.spark.session import InProcessStager
from airflow_mv.version import supported
from tests.cli.support import call
from tests.engine.support import Lake

WAYS = ("in this process", "by spark-submit", "over Spark Connect", "by a managed Spark")
DAILY = "SELECT day, sum(amount) AS amount, avg(amount) AS mean FROM {ns}.orders GROUP BY day"


def tamper(lake: Lake, view: str, statement: str) -> None:
    """Change the storage table's rows, as another engine could."""
    plan = plan_refresh(lake.catalog, lake(view), RefreshOptions(full=True))
    assert plan.script is not None
    register = plan.script.steps[0]
    outcome = lake.stager(replace(plan.script, steps=(register, SqlStep(statement.format(storage=staged("storage"))))))
    assert outcome.metadata_location is not None, outcome.error
    loaded = lake.view(view)
    settings = loaded.materialized.repointed(outcome.metadata_location)
    assert lake.catalog.replace(loaded, with_view_properties(loaded.metadata, {PROPERTY: property_text(settings)}))


@pytest.mark.parametrize(
    ("statement", "stored", "recomputed"),
    [
        ("INSERT INTO {storage} VALUES (1, 30, 15.0)", [[1, 30, 15.0]], []),
        ("INSERT OVERWRITE {storage} SELECT * FROM {storage} WHERE day <> 2", [], [[2, 30, 30.0]]),
        ("UPDATE {storage} SET amount = 31 WHERE day = 2", [[2, 31, 30.0]], [[2, 30, 30.0]]),
    ],
    ids=["doubled", "lost", "changed"],
)
def test_verify_shows_the_rows_that_differ_and_ends_with_four(
    lake: Lake, statement: str, stored: list[object], recomputed: list[object]
) -> None:
    """The snapshot ids are those of a fresh view; only comparing the rows shows the difference."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY)
    lake.refresh("daily")
    tamper(lake, "daily", statement)
    assert lake.status("daily").state == "fresh"
    ended = call("verify", lake("daily"), "--json")
    assert ended.code == 4
    assert (ended.json["only_stored"], ended.json["only_recomputed"]) == (stored, recomputed)
    assert call("verify", lake("daily")).code == 4
    with pytest.raises(VerificationError, match=r"daily: the rows .*only (stored|recomputed): "):
        verify(lake.catalog, lake("daily"), session=lambda: lake.spark).require_equal()


def test_verify_compares_a_sample_or_an_interval_also_of_a_view_of_a_view(lake: Lake) -> None:
    """A fault is found in exactly one of the samples that the rows are divided into, and in its interval."""
    lake.table("orders", "day date, amount bigint", *(f"(DATE '2026-01-{day:02}', {day})" for day in (1, 2, 3, 4)))
    lake.create("daily", DAILY, properties={"airflow-mv.interval-column": "day"})
    lake.create("above", "SELECT day, amount FROM {ns}.daily WHERE amount > 1")
    lake.refresh("daily", "above")
    assert call("verify", lake("above"), "--sample", "100", "--json").json["rows"] == 3
    tamper(
        lake,
        "daily",
        "UPDATE {{storage}} SET amount = 9 WHERE day = DATE '2026-01-02'".replace("{{storage}}", "{storage}"),
    )
    whole = call("verify", lake("daily"), "--sample", "100", "--json")
    assert (whole.code, whole.json["sample"], whole.json["rows"]) == (4, 100.0, 4)
    codes = [call("verify", lake("daily"), "--sample", text, "--json") for text in ("30", "30", "70")]
    assert codes[0] == codes[1]
    assert codes[0].json["rows"] <= codes[2].json["rows"] < 5
    inside, outside = ("2026-01-02", "2026-01-03"), ("2026-01-03", "2026-01-05")
    found = call("verify", lake("daily"), "--interval", *inside, "--json")
    assert (found.code, found.json["rows"], found.json["interval"]["column"]) == (4, 1, "day")
    clean = call("verify", lake("daily"), "--interval", *outside, "--json")
    assert (clean.code, clean.json["rows"], clean.json["equal"]) == (0, 2, True)
    assert "a sample of 0 percent is not possible" in call("verify", lake("daily"), "--sample", "0").error
    assert call("verify", lake("daily"), "--sample", "5", "--files").code == 2


def test_verify_has_nothing_to_compare_before_the_first_refresh(lake: Lake) -> None:
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    lake.create("daily", DAILY)
    ended = call("verify", lake("daily"), "--json")
    assert ended.code != 0
    assert "never-refreshed" in ended.error


def test_doctor_finds_no_problem_in_a_working_installation(lake: Lake) -> None:
    """With --spark, Spark itself opens the catalog."""
    ended = call("doctor", lake.catalog.name, "--spark", "--json")
    assert ended.code == 0, ended.json
    assert {item["check"] for item in ended.json} == {
        "java",
        "refresh in this process",
        "refresh by spark-submit",
        "refresh over Spark Connect",
        "refresh by a managed Spark",
        "temporary files",
        f"catalog {lake.catalog.name}",
        f"registry of {lake.catalog.name}",
        f"jars for {lake.catalog.name}",
        f"Spark with {lake.catalog.name}",
    }
    assert all(item["ok"] for item in ended.json)


def _ways(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> dict[str, Inspection]:
    """The doctor's findings where these distributions are installed, and no Java is."""
    monkeypatch.setattr(doctor, "_version", lambda name: versions[name.replace("-", "_")])
    monkeypatch.setattr(doctor, "_places_of", lambda module: ())
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    return {item.check.removeprefix("refresh "): item for item in doctor.examine(("nowhere",))}


def test_a_worker_without_spark_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans and publishes, and Spark runs elsewhere; so it needs no Java either."""
    monkeypatch.setenv("PATH", "/nowhere")
    found = _ways(monkeypatch, pyspark=None, pyspark_client="4.2.0")
    assert [found[way].ok for way in WAYS] == [None, None, True, True]
    assert found["java"].ok is None
    assert "pip install 'airflow-mv[spark]'" in found["in this process"].fix
    assert found["over Spark Connect"].found == "client 4.2.0, for a server of Spark 4.1"


def test_another_environment_s_spark_submit_is_found_with_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("bin/spark-submit", "jars/spark-core_2.13-4.0.2.jar"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    found = _ways(monkeypatch, pyspark=None, pyspark_client="4.2.0")
    assert found["by spark-submit"].ok
    assert found["by spark-submit"].found == f"{tmp_path}/bin/spark-submit, Spark 4.0.2 (Scala 2.13)"
    assert found["java"].ok is False  # it is needed now
    (tmp_path / "jars/spark-core_2.13-4.0.2.jar").rename(tmp_path / "jars/spark-core_2.13-4.2.0.jar")
    old = _ways(monkeypatch, pyspark=None, pyspark_client="4.2.0")["by spark-submit"]
    assert (old.ok, old.fix) == (False, f"supported are {supported()}")


def test_two_versions_of_pyspark_in_one_folder_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _ways(monkeypatch, pyspark="4.1.3", pyspark_client="4.2.0")["in this process"]
    assert not found.ok
    assert "pyspark-client==4.1.3" in found.fix
    without_client = _ways(monkeypatch, pyspark="4.1.4", pyspark_client="4.1.3")["in this process"]
    assert without_client.fix.endswith("--no-deps pyspark-client==4.1.3 pyspark==4.1.3")
    assert not _ways(monkeypatch, pyspark="4.2.0", pyspark_client="4.2.0")["in this process"].ok


def test_a_session_where_only_the_client_is_installed_says_what_works(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own message would be about a module that is missing."""
    monkeypatch.setattr(stagers, "find_spec", lambda name: None)
    monkeypatch.setattr("airflow_mv.extras.spark.session.active_session", lambda: None)
    with pytest.raises(ConfigurationError, match=r"only the client of Spark Connect.*airflow-mv doctor"):
        _ = InProcessStager(lake.catalog).session


def test_doctor_says_how_to_fix_each_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failing finding does not hide the others."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ended = call("doctor", "nowhere", "--json")
    findings = {item["check"]: item for item in ended.json}
    assert ended.code == 1
    assert not findings["java"]["ok"]
    assert "Java 17" in findings["java"]["fix"]
    assert findings["refresh in this process"]["ok"]
    assert "no catalog 'nowhere' is configured" in findings["catalog nowhere"]["found"]
