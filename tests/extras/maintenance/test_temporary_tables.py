# SPDX-License-Identifier: Apache-2.0
"""The empty tables of killed creations and submissions are dropped, and no other table."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from airflow_mv.actions import maintain_view
from airflow_mv.core.spec.materialized_view import STORAGE_OF_PROPERTY
from tests.builders import Lake
from tests.contract.support import NORTH, SOUTH, VIEW
from tests.faults import StoppedError
from tests.homes import in_homes

NOW = timedelta(0)


def dropped(home: Lake, older_than: timedelta = NOW, *, dry_run: bool = False) -> list[str]:
    found = maintain_view(home.catalog, VIEW, older_than=older_than, dry_run=dry_run)["dropped_tables"]
    return [name.removeprefix("lake.sales.") for name in found]


@in_homes(lambda name: "pointed" not in name)
def test_the_template_of_a_killed_creation_is_dropped_after_the_grace(
    every_home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = every_home
    home.table()

    def killed(*_: object, **__: object) -> None:
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr("airflow_mv.core.catalog.tables.StorageTables.drop", killed)
        patch.setattr("airflow_mv.core.define.create.CreateView.publish", killed)
        with pytest.raises(StoppedError):
            home.view()
    templates = [name for _, name in home.iceberg.list_tables("sales") if name.startswith("daily__columns_")]
    assert len(templates) == 1
    home.view()
    home.refresh()
    before = sorted(home.iceberg.list_tables("sales"))
    assert dropped(home, timedelta(days=1)) == []
    assert dropped(home, dry_run=True) == templates
    assert sorted(home.iceberg.list_tables("sales")) == before
    assert dropped(home) == templates
    assert sorted(home.iceberg.list_tables("sales")) == [name for name in before if name[1] != templates[0]]
    assert home.read() == [NORTH, SOUTH]


@in_homes(lambda name: name in ("sqlite-pointed", "rest-table"))
def test_a_table_that_is_not_certainly_temporary_stays(every_home: Lake) -> None:
    home = every_home
    schema = home.table().schema()
    home.view()

    def made(name: str, owner: str | None = "`sales`.`daily`") -> None:
        home.iceberg.create_table(f"sales.{name}", schema, properties={STORAGE_OF_PROPERTY: owner} if owner else {})

    made("daily__columns_0123abcd")
    made("daily__script_0123abcd")
    made("daily__columns_0123abcd2")  # another name
    made("daily__columns_0000000x")
    made("daily__columns_aaaaaaaa", None)  # anyone's
    made("daily__columns_bbbbbbbb", "`sales`.`other`")
    made("daily2__columns_cccccccc", "`sales`.`daily2`")
    made("daily__columns_dddddddd")
    home.append(name="daily__columns_dddddddd")  # it has rows
    time.sleep(0.05)  # the times of files are only exact to some milliseconds
    assert dropped(home) == ["daily__columns_0123abcd", "daily__script_0123abcd"]
