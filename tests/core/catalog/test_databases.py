# SPDX-License-Identifier: Apache-2.0
"""Databases without a reliable conditional update are refused when a catalog is opened."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from airflow_mv.core.catalog import STORED_LAYOUTS, Layout, MaterializedViewCatalog, database_limits, locations
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.errors import CommitStateUnknownError, ConfigurationError
from tests.builders import QUERY, lake, open_catalog
from tests.faults import Clock

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:50 / /data rw,relatime shared:1 - {kind} server:/export rw,vers=4.2
31 22 0:51 / /data/local\\040disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/catalog.db", "nfs4"),
        ("/data/deep/er/catalog.db", "nfs4"),
        ("/database/catalog.db", "ext4"),
        ("/data/local disk/catalog.db", "xfs"),
        ("/catalog.db", "ext4"),
    ],
)
def test_the_type_of_the_nearest_mount_is_used(path: str, kind: str) -> None:
    assert locations.mounted_as(path, MOUNTS.format(kind="nfs4")) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "fuse"])
def test_sqlite_on_a_network_file_system_is_refused(
    kind: str, sqlite_uri: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do; the owner of the catalog may allow it."""
    mounts = warehouse / "mountinfo"
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:50 / {warehouse.parent} rw - {kind} x rw\n")
    monkeypatch.setattr(locations, "_MOUNTS", mounts)
    iceberg = open_catalog(sqlite_uri, warehouse)
    with pytest.raises(ConfigurationError, match=f"type {kind}.*{database_limits.NETWORK}"):
        MaterializedViewCatalog(iceberg)
    allowed = open_catalog(sqlite_uri, warehouse, **{database_limits.NETWORK: "true"})
    assert MaterializedViewCatalog(allowed).list() == []
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:50 / {warehouse} rw - {kind} x rw\n")
    assert MaterializedViewCatalog(iceberg).list() == []


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs", "fuseblk"])
def test_sqlite_on_a_local_file_system_is_accepted(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 8:1 / / rw - {kind} /dev/sda1 rw\n")
    monkeypatch.setattr(locations, "_MOUNTS", mounts)
    assert locations.remote_kind(str(tmp_path)) is None


def test_a_catalog_does_not_make_sqlalchemy_configure_mapped_classes(sqlite_uri: str, warehouse: Path) -> None:
    """At the first use of a mapped class, of pyiceberg's too, Airflow imports all of its own: half a second."""
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view()
        found.refresh()
    code = """
import sys
from sqlalchemy import event
from sqlalchemy.orm import Mapper
event.listen(Mapper, "before_configured", lambda: print("configured"))
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.common.status import status
from tests.builders import open_catalog
catalog = MaterializedViewCatalog(open_catalog(sys.argv[1], sys.argv[2]))
print(*catalog.list(), status(catalog, "sales.daily").state)
"""
    command = [sys.executable, "-c", code, sqlite_uri, str(warehouse)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "lake.sales.daily fresh\n"


@pytest.mark.parametrize("layout", sorted(STORED_LAYOUTS))
@pytest.mark.parametrize("database", ["sqlite_uri", pytest.param("postgres_uri", marks=pytest.mark.postgres)])
def test_a_database_that_the_user_may_only_read_is_no_unknown_outcome(
    request: pytest.FixtureRequest, warehouse: Path, database: str, layout: Layout
) -> None:
    """The first answer says what is wrong: no further try, and nothing to look after."""
    with lake(request.getfixturevalue(database), warehouse, layout=layout) as home:
        home.table()
        home.view()
        engine = home.iceberg.engine  # type: ignore[attr-defined]
        if database == "postgres_uri":
            with engine.begin() as connection:
                connection.exec_driver_sql("GRANT pg_read_all_data TO CURRENT_USER")
        read_only = "PRAGMA query_only = 1" if database == "sqlite_uri" else "SET ROLE pg_read_all_data"

        def restrict(connection: Any, _: object) -> None:
            connection.cursor().execute(read_only)
            connection.commit()

        event.listen(engine, "connect", restrict)
        engine.dispose()
        # In the other layouts Spark writes the rows into a table of the catalog, and Spark's error ends a refresh.
        refresh = [home.refresh] if layout == "pointed" else []
        for change in (*refresh, lambda: home.drop("sales.daily"), lambda: home.view("other")):
            with pytest.raises(ConfigurationError, match=r"catalog 'lake' forbids .* may only read its database"):
                change()
        assert [str(view) for view in home.catalog.list()] == ["lake.sales.daily"]


def test_a_database_that_stays_locked_is_named(sqlite_uri: str, warehouse: Path, clock: Clock) -> None:
    """A query that another program never closes is enough, and "no answer" alone doesn't say what to look for."""
    with lake(f"{sqlite_uri}?timeout=0.01", warehouse) as home:
        home.table()
        home.view()
        with closing(sqlite3.connect(sqlite_uri.removeprefix("sqlite:///"))) as other:
            cursor = other.execute("SELECT * FROM iceberg_tables")
            cursor.fetchone()
            with pytest.raises(CommitStateUnknownError, match="database is locked"):
                create(home.catalog, "sales.other", Definition(QUERY), stager=home.stager, effects=clock.effects)
            cursor.close()
        assert [str(view) for view in home.catalog.list()] == ["lake.sales.daily"]
