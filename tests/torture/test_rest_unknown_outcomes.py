# SPDX-License-Identifier: Apache-2.0
"""A REST server whose database loses answers reports wrong results of commits, which must not be trusted.

Iceberg's JdbcCatalog sends the UPDATE again on another connection, finds that no row matches, and reports that the
commit has failed, although it has landed (polaris #5459 is the same bug).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise, product
from pathlib import Path

import pytest
from sqlalchemy import make_url

from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.orphans import collect_orphans, expire
from tests.builders import lake
from tests.services import RestServers
from tests.torture.history import moves, row_of, watch
from tests.torture.interrupted import HASTY
from tests.torture.proxy import Fault, Moment, proxy
from tests.torture.test_proxy import Both

#: Part of an UPDATE's values. The SQL text is sent for its first uses only; no other statement has this value.
UPDATE = b".metadata.json"
VIEW = "sales.daily"
#: The server uses autocommit: a statement that was applied has landed.
MOMENTS = (Moment.BEFORE, Moment.APPLIED)
GOOD = ("refreshed", "already-committed", "fresh")
#: The UPDATEs of a later refresh: the staging branch, its rows, the publication.
BRANCH, ROWS, PUBLICATION = 1, 2, 3


#: ``registered`` is the same but for the definition, so all of it is slow.
LAYOUTS = ["table", pytest.param("registered", marks=pytest.mark.slow)]


@pytest.fixture
def both(rest_jvm: RestServers, postgres_uri: str, warehouse: Path, layout: str) -> Iterator[Both]:
    """A direct connection to the database, and a REST server that reaches it through the proxy."""
    url = make_url(postgres_uri)
    with lake(postgres_uri, warehouse, layout=layout) as good, proxy(str(url.host), url.port or 5432) as running:
        through = url.set(host="127.0.0.1", port=running.port).render_as_string(hide_password=False)
        with rest_jvm.serve(through, warehouse) as address, lake(address, warehouse, layout=layout) as bad:
            good.table()
            bad.view(time_travel=True)
            watch(good.iceberg.engine)
            assert bad.refresh().outcome == "refreshed"
            good.append()
            yield Both(good, bad, running)


def right(both: Both, *, refreshes: int) -> None:
    """The rows are those of the current base table, each refresh was published once, and all are readable."""
    assert both.bad.refresh().outcome == "fresh"
    assert sum(row["orders"] for row in both.bad.read()) == both.good.load().scan().count()
    state = both.bad.storage().state
    assert state is not None
    assert len(state.refreshes) == refreshes
    storage = both.bad.storage()
    assert storage.name is not None
    table = both.bad.iceberg.load_table((*storage.name.namespace, storage.name.name))
    for snapshot in storage.table.snapshots:
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    found = moves(both.good.iceberg.engine, row_of(both.good))
    assert [pair for pair in pairwise(found) if pair[0].now != pair[1].before] == []


def tried(work: Callable[[], object]) -> str:
    """The outcome of an action that the server's answers may have misled."""
    try:
        return str(work())
    except MaterializedViewError as error:
        return type(error).__name__


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (PUBLICATION, Moment.APPLIED),
        pytest.param(PUBLICATION, Moment.BEFORE, marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in product((BRANCH, ROWS), MOMENTS)),
    ],
)
def test_i04_a_commit_that_a_rest_server_reports_as_failed_although_it_landed_is_published_once(
    both: Both, number: int, moment: Moment
) -> None:
    """The table is read before the answer is trusted; a change that was lost while staging is staged again."""
    fault = both.break_at(UPDATE, moment, number)
    first = tried(lambda: both.bad.refresh(effects=HASTY).outcome)
    assert fault.happened
    assert first in (GOOD if number == PUBLICATION else (*GOOD, "JobError", "CommitStateUnknownError"))
    assert both.bad.refresh().outcome in GOOD
    right(both, refreshes=2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("work", "moment"),
    [
        ("roll back", Moment.APPLIED),
        pytest.param("roll back", Moment.BEFORE, marks=pytest.mark.slow),
        *(pytest.param("expire", moment, marks=pytest.mark.slow) for moment in MOMENTS),
    ],
)
def test_maintenance_that_a_rest_server_reports_as_failed_although_it_landed_is_applied_once(
    both: Both, work: str, moment: Moment
) -> None:
    """No file that readers need is deleted: an error never causes a deletion."""
    first = both.bad.storage().state
    assert first is not None
    assert both.bad.refresh().outcome == "refreshed"
    moved = len(moves(both.good.iceberg.engine, row_of(both.good)))
    fault: Fault = both.break_at(UPDATE, moment)
    if work == "expire":
        expire(both.bad.catalog, VIEW, older_than=timedelta(0), effects=HASTY)
        assert both.bad.storage().table.head in {item.snapshot_id for item in both.bad.storage().table.snapshots}
    else:
        assert rollback(both.bad.catalog, VIEW, first.current_refresh_id, effects=HASTY).changed
        assert both.bad.storage().state.current_refresh_id == first.current_refresh_id  # type: ignore[union-attr]
    assert fault.happened
    assert len(moves(both.good.iceberg.engine, row_of(both.good))) == moved + 1
    collect_orphans(both.bad.catalog, VIEW, older_than=timedelta(0))
    assert both.bad.refresh().outcome == ("refreshed" if work == "roll back" else "fresh")
    right(both, refreshes=3 if work == "roll back" else 2)
