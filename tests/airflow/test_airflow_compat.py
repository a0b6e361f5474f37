# SPDX-License-Identifier: Apache-2.0
"""The private parts of Airflow that are used. A release that changed one fails here."""

from __future__ import annotations

import re
from pathlib import Path

import airflow.sdk
import pytest
from airflow.sdk.log import mask_secret
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.triggers.base import BaseTrigger

from airflow_mv.hooks.airflow_compat import redacted, timetable_field
from airflow_mv.operators.spark_arguments import SparkTaskOperator
from airflow_mv.tasks.older_airflow import BEFORE_3_3

_NAMES = ("CronDataIntervalTimetable", "CronTriggerTimetable")
#: Airflow 3.1 has no timetables in its task SDK.
KINDS = [
    CronDataIntervalTimetable,
    *(
        getattr(airflow.sdk, name)
        for name in dir(airflow.sdk)
        if re.fullmatch("Cron(DataInterval|Trigger)Timetable", name)
    ),
]
PACKAGE = Path(__file__).parents[2] / "airflow_mv"


def test_a_secret_that_airflow_knows_is_masked() -> None:
    mask_secret("hidden-7731-compat")
    assert redacted("password hidden-7731-compat") == "password ***"


@pytest.mark.parametrize("kind", KINDS)
def test_the_expression_and_the_zone_of_a_schedule_are_found(kind: type) -> None:
    """The expression is needed for the previous and next tick of a schedule, the zone for its days."""
    timetable = kind("0 4 * * *", timezone="Europe/Berlin")
    assert timetable_field(timetable, "expression") == "0 4 * * *"
    zone = timetable_field(timetable, "timezone")
    assert getattr(zone, "name", zone) == "Europe/Berlin"
    assert timetable_field(timetable, "nothing") is None


def test_fields_are_masked_before_and_after_they_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow stores rendered fields right after it has rendered them."""
    seen: list[object] = []
    monkeypatch.setattr("airflow_mv.operators.spark_arguments.mask", lambda settings: seen.append(dict(settings)))
    SparkTaskOperator(task_id="task", conf={"a": "{{ 'x' ~ 42 }}"}).render_template_fields({})
    assert seen == [{"a": "{{ 'x' ~ 42 }}"}, {"a": "x42"}]


def test_triggers_are_told_from_airflow_3_3_on_that_their_task_was_marked_or_cleared() -> None:
    """Before, a driver or a request that a task waits for is left, as docs/install.md says."""
    assert hasattr(BaseTrigger, "on_kill") is not BEFORE_3_3


#: Modules in which private names of a library may be used.
COMPATIBILITY = {
    "hooks/airflow_compat.py",
    "hooks/spark_driver.py",
    "operators/spark_provider.py",
    "core/catalog/pyiceberg_compat.py",
    "extras/metastores/hive.py",
}


def test_private_names_of_these_libraries_are_used_in_four_modules_only() -> None:
    """A new use of a private name belongs there, with a test."""
    private = re.compile(
        r"(from|import) (airflow|pyiceberg)\.[\w.]*\b_[a-z]|from (airflow|pyiceberg)\b.* import _[A-Za-z]"
    )
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if private.search(path.read_text(encoding="utf-8"))
    }
    assert found <= COMPATIBILITY
    reached = re.compile(r"(catalog|io|hook|engine|response|operator|pool|system)\._[a-z]\w*")
    ours = {
        "core/catalog/catalog.py": {"catalog._catalog", "operator._session"},
    }
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in COMPATIBILITY and "job" not in path.parts:
            text = re.sub(r"self\._(catalog|io|operator)\b", "self.own", path.read_text(encoding="utf-8"))
            used = {match[0] for match in reached.finditer(text)} - ours.get(name, set())
            assert not used, (name, used)
