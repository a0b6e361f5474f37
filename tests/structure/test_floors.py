# SPDX-License-Identifier: Apache-2.0
"""What is written for older releases is needed by a release that pip accepts, and lacks what it is written for."""

from __future__ import annotations

import importlib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from pyiceberg import exceptions
from pyiceberg.catalog.rest import Capability, TableResponse
from pyiceberg.catalog.sql import IcebergTables

from airflow_mv.core.catalog.pyiceberg_compat import LOAD_VIEW, PYICEBERG_0_11
from airflow_mv.tasks.older_airflow import BEFORE_3_2, BEFORE_3_3, MOVED_IN_3_2, NEW_IN_3_3
from tests.structure.test_package import PYPROJECT


def floor(name: str) -> Version:
    """The oldest release of a dependency that pip accepts."""
    required = [Requirement(text) for text in PYPROJECT["project"]["dependencies"]]
    (found,) = [item for item in required if item.name == name]
    (oldest,) = [item.version for item in found.specifier if item.operator == ">="]
    return Version(oldest)


@pytest.mark.parametrize(
    ("package", "first_without"),
    [("apache-airflow", "3.2"), ("apache-airflow", "3.3"), ("pyiceberg", "0.12")],
)
def test_the_oldest_accepted_release_needs_what_is_written_for_it(package: str, first_without: str) -> None:
    """Otherwise delete it: its flag, its entries and this line."""
    assert floor(package) < Version(first_without)


@pytest.mark.parametrize("name", MOVED_IN_3_2)
def test_a_name_that_moved_is_where_it_is_said_to_be(name: str) -> None:
    """A release of Airflow 3.1 that has it in its new place, too, needs no entry."""
    new, _ = MOVED_IN_3_2[name]
    assert _has(new, name) is not BEFORE_3_2
    older = importlib.import_module("airflow_mv.tasks.older_airflow")
    assert getattr(older, name) is not None


def test_the_engine_of_the_database_is_a_function_since_airflow_3_2() -> None:
    """A release of Airflow 3.1 that has it, too, needs nothing else."""
    assert _has("airflow.settings", "get_engine") is not BEFORE_3_2


@pytest.mark.parametrize("name", NEW_IN_3_3)
def test_a_name_with_a_stand_in_is_not_there(name: str) -> None:
    """A release of Airflow 3.2 that has it needs no stand-in."""
    assert _has("airflow.sdk", name) is not BEFORE_3_3


def test_pyiceberg_0_11_lacks_what_is_added_for_it() -> None:
    """And later versions do not."""
    there = [
        hasattr(exceptions, "TooManyRequestsError"),
        hasattr(IcebergTables, "iceberg_type"),
        hasattr(Capability, "V1_LOAD_VIEW"),
    ]
    assert there == [not PYICEBERG_0_11] * 3
    assert "storage_credentials" in TableResponse.model_fields  # it is added, where it is missing
    assert PYICEBERG_0_11 is (Version(version("pyiceberg")) < Version("0.12"))
    if not PYICEBERG_0_11:
        assert Capability.V1_LOAD_VIEW == LOAD_VIEW


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False
