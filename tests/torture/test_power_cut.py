# SPDX-License-Identifier: Apache-2.0
"""After a power cut at any commit of the database, the view is readable and right from what was flushed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import insert

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.pyiceberg_compat import ROWS
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.extras.maintenance.verify import verify_files
from tests.builders import LAYOUTS, Lake
from tests.duck import DuckStager
from tests.torture import power, power_victim
from tests.torture.power_victim import NAMESPACE

_SECONDS = 900


@pytest.fixture(scope="module", params=LAYOUTS)
def cut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a process that has run all commands, and the record of its calls."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    folder = tmp_path_factory.mktemp("cut")
    arguments = [sys.executable, "-m", power_victim.__name__, str(folder), request.param]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = power.command(folder / "calls", arguments)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS)
def test_i02_after_a_power_cut_at_any_commit_the_view_is_readable_and_right(
    cut: Path, figures: Callable[..., None]
) -> None:
    """Base tables are kept as they are: other programs write them."""
    disk = power.Disk(cut / "lake", cut / "marks")
    whole, readable = cut / "whole", 0
    (cut / "lake").rename(whole)
    with (cut / "calls").open(errors="replace") as lines:
        cuts = list(disk.cuts(iter(lines)))
    assert len(cuts) >= 7
    for name, kept in cuts:
        rows = json.loads((cut / "marks" / name).read_text())
        with _after(cut, whole, kept, rows) as lake:
            readable += _check(lake)
    assert readable >= 7
    figures(cuts=len(cuts), calls=disk.events, readable=readable, files=len(cuts[-1][1]))


@contextmanager
def _after(cut: Path, whole: Path, kept: frozenset[Path], rows: list[dict[str, Any]]) -> Iterator[Lake]:
    """The lake as a cut leaves it: the files that were flushed, the rows that were committed."""
    home = cut / "lake"
    shutil.rmtree(home, ignore_errors=True)
    base = {home / path.relative_to(whole) for path in (whole / NAMESPACE / "orders").rglob("*") if path.is_file()}
    for path in (*kept, *base):
        sources = (whole / path.relative_to(home), cut / "before" / path.relative_to(home))
        if (source := next(filter(Path.is_file, sources), None)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
    (cut / "after.db").unlink(missing_ok=True)
    iceberg = SqlCatalog("lake", uri=f"sqlite:///{cut}/after.db", warehouse=f"file://{home}")
    iceberg.create_namespace(NAMESPACE)
    with iceberg.engine.begin() as connection:
        for row in rows:
            connection.execute(insert(ROWS).values(**row))
    catalog = MaterializedViewCatalog(iceberg)
    yield Lake(iceberg, catalog, DuckStager(catalog, iceberg))
    iceberg.engine.dispose()


def _check(lake: Lake) -> bool:
    """Whether there is a view. If so, all of its files are there, its rows are right, and a refresh works."""
    view = lake.catalog.identify(f"{NAMESPACE}.daily")
    if not lake.catalog.exists(view):
        return False
    verify_files(lake.catalog, view).require_intact()
    if (record := lake.storage(view).record) is not None:
        assert lake.read(view) == _recomputed(lake, next(iter(record.snapshots.values())))
    lake.refresh(view, options=RefreshOptions(full=True))
    assert lake.read(view) == _recomputed(lake, None)
    return True


def _recomputed(lake: Lake, snapshot_id: int | None) -> list[dict[str, Any]]:
    """The rows of the query at a snapshot of the base table, by default the current one."""
    rows = lake.iceberg.load_table((NAMESPACE, "orders")).scan(snapshot_id=snapshot_id).to_arrow()
    grouped = rows.group_by("day").aggregate([("amount", "sum"), ("day", "count")])
    return sorted(grouped.rename_columns(["day", "amount", "rows"]).to_pylist(), key=str)
