# SPDX-License-Identifier: Apache-2.0
"""A lost answer does not alter the result of any kind of change, in any catalog and layout.

``test_publication`` and ``test_maintenance`` have more faults for refreshes, expiries and rollbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog.sql import SqlPointers
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish.protocol import commit
from airflow_mv.core.publish.registered import DropBranch
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import AlreadyExistsError, CommitStateUnknownError, ConfigurationError
from airflow_mv.extras.history.rollback import rollback, rollback_version
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.maintenance.orphans import expire
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.maintenance.verify import verify_files
from tests.branches import create_branch
from tests.builders import QUERY, Lake, orders
from tests.contract.support import VIEW
from tests.extras.maintenance.support import NOW, files, local, refreshed, snapshot_ids
from tests.faults import FAULTS, Clock, FaultyCatalog, after, lose_answer_after, lose_answer_before
from tests.homes import HOMES, home_parameter, in_homes

OTHER_QUERY = QUERY.replace("sum", "max")


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    return every_home


def defined(home: Lake, catalog: FaultyCatalog, clock: Clock, sql: str = QUERY, **more: object) -> object:
    definition = Definition(sql, layout=home.layout, **more)  # type: ignore[arg-type]
    replace = home.catalog.exists(VIEW)
    return create(catalog, VIEW, definition, stager=home.stager, replace=replace, effects=clock.effects)


# -- each kind of change: the state before, the change, and the state that must exist once afterwards --


def creation(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    defined(home, catalog, clock)
    assert home.catalog.load(VIEW).metadata.sql(view=VIEW) == QUERY
    assert home.refresh().outcome == "refreshed"
    assert len(home.read()) == 2


def definition(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    defined(home, catalog, clock, OTHER_QUERY)
    metadata = home.catalog.load(VIEW).metadata
    assert metadata.sql(view=VIEW) == OTHER_QUERY
    assert len(metadata.versions) == 2
    assert home.refresh().outcome == "refreshed"


def columns(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    defined(home, catalog, clock, "SELECT region, count(*) AS n FROM lake.sales.orders GROUP BY region")
    assert len(home.catalog.load(VIEW).metadata.versions) == 2
    assert home.refresh().outcome == "refreshed"
    assert [set(row) for row in home.read()] == [{"region", "n"}] * 3


def properties(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    defined(home, catalog, clock, properties={"owner": "sales"}, time_travel=True)
    metadata = home.catalog.load(VIEW).metadata
    assert (metadata.properties["owner"], len(metadata.versions)) == ("sales", 1)
    assert home.refresh().outcome == "fresh"


def expiry(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    assert expire(catalog, VIEW, older_than=NOW, effects=clock.effects).snapshot_ids
    assert len(snapshot_ids(home)) == 2  # those with a tag of the history


def rolling_back(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    state = home.storage().state
    assert state is not None
    assert rollback(catalog, VIEW, state.refreshes[0].refresh_id, effects=clock.effects).changed
    assert len(home.read()) == 2


def version(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    create(home.catalog, VIEW, Definition(OTHER_QUERY), stager=home.stager, replace=True)
    assert rollback_version(catalog, VIEW, 1, effects=clock.effects).version_id == 1
    assert [entry.version_id for entry in home.catalog.load(VIEW).metadata.version_log] == [1, 2, 1]
    assert home.refresh().outcome == "fresh"  # the rows are of this version


def branch(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    name = home.storage().name
    assert name is not None
    create_branch(home.iceberg.load_table((*name.namespace, name.name)), "b", home.storage().table.head)
    commit(DropBranch(catalog, name, "b", clock.effects))
    assert "b" not in home.storage().table.refs


def repairing(home: Lake, catalog: FaultyCatalog, clock: Clock) -> None:
    storage = home.storage()
    snapshot = storage.table.find(storage.rows_snapshot or 0)
    assert snapshot is not None
    local(str(snapshot.manifest_list).replace("file:/", "file:///").replace("/////", "///")).unlink()
    assert repair(catalog, VIEW, act=True, effects=clock.effects).done
    assert verify_files(home.catalog, VIEW).intact


Kind = Callable[[Lake, FaultyCatalog, Clock], None]
KINDS: tuple[Kind, ...] = (creation, definition, columns, properties, expiry, rolling_back, version, branch, repairing)


def prepare(home: Lake, kind: Kind) -> None:
    if kind is not creation:
        refreshed(home, 2, time_travel=kind is not properties)


def _cases(faults: Iterable[str]) -> Iterator[ParameterSet]:
    """Every kind of change with every fault on every lake, but for branches of a table that no catalog names."""
    for kind, fault, name in product(KINDS, faults, HOMES):
        if kind is not branch or not name.endswith("-pointed"):
            words = [word for word in (name, kind.__name__, fault) if word]
            yield pytest.param(name, kind, fault, marks=home_parameter(name).marks, id="-".join(words))


@pytest.mark.parametrize(("every_home", "kind", "fault"), [*_cases(FAULTS)], indirect=["every_home"])
def test_i05_a_change_with_a_lost_answer_is_applied_once(home: Lake, clock: Clock, kind: Kind, fault: str) -> None:
    prepare(home, kind)
    # An insert of an unused name succeeds at once: no catalog refuses it seven times.
    catalog = FaultyCatalog(home.iceberg, *(FAULTS[fault][-1:] if kind is creation else FAULTS[fault]))
    kind(home, catalog, clock)
    assert catalog.schedule == [], "the fault has happened"


@pytest.mark.parametrize(("every_home", "kind", "fault"), [*_cases([""])], indirect=["every_home"])
def test_i05_a_change_without_an_answer_is_unknown_deletes_nothing_and_can_be_repeated(
    home: Lake, warehouse: Path, clock: Clock, kind: Kind, fault: str
) -> None:
    prepare(home, kind)
    catalog = FaultyCatalog(home.iceberg, *[lose_answer_before(lambda: before.update(files(warehouse)))] * 8)
    before: set[str] = set()
    with pytest.raises(CommitStateUnknownError, match=r"sales\.daily.*nothing was deleted") as caught:
        kind(home, catalog, clock)
    assert caught.value.retryable
    assert before <= files(warehouse)
    assert len(clock.waits) == 7
    if kind is not repairing and kind is not branch:
        kind(home, FaultyCatalog(home.iceberg), clock)


def test_a_name_that_another_creation_takes_meanwhile_is_not_ours_and_no_file_is_left(home: Lake, clock: Clock) -> None:
    home.view("other")

    def take() -> None:
        defined(home, FaultyCatalog(home.iceberg), clock, OTHER_QUERY)

    catalog = FaultyCatalog(home.iceberg, after(take))
    with pytest.raises(AlreadyExistsError, match=r"a view lake\.sales\.daily exists"):
        create(catalog, VIEW, Definition(QUERY, layout=home.layout), stager=home.stager, effects=clock.effects)
    assert home.catalog.load(VIEW).metadata.sql(view=VIEW) == OTHER_QUERY
    assert home.refresh().outcome == "refreshed"
    storages = [name for name in home.iceberg.list_tables("sales") if "__storage" in name[1]]
    assert sorted(storages) == (
        [("sales", "daily__storage"), ("sales", "other__storage")] if home.layout == "registered" else []
    )


def _has_views(name: str) -> bool:
    return HOMES[name][1] != "table"


def _plain(home: Lake) -> None:
    home.plain_view("daily", QUERY, ["region", "orders", "amount"])


@in_homes(_has_views)
def test_i05_a_new_storage_table_that_was_refreshed_before_the_next_read_is_kept(home: Lake, clock: Clock) -> None:
    """The answer to making a plain view materialized is lost, and the view is refreshed before it is read again."""
    _plain(home)
    outcomes: list[str] = []
    catalog = FaultyCatalog(home.iceberg, lose_answer_after(lambda: outcomes.append(home.refresh().outcome)))
    create(catalog, VIEW, Definition(None, layout=home.layout), stager=home.stager, effects=clock.effects)
    assert outcomes == ["refreshed"]
    assert home.refresh().outcome == "fresh"
    assert len(home.read()) == 2


@in_homes(_has_views)
def test_i05_a_refusal_does_not_settle_an_earlier_copy_whose_answer_was_lost(home: Lake, clock: Clock) -> None:
    """The earlier copy may be applied later, so the files that it names must be kept."""
    _plain(home)
    late: list[Callable[[], object]] = []

    def lost(_: FaultyCatalog, send: Callable[[], object]) -> object:
        late.append(send)
        raise CommitStateUnknownError("no answer in time (injected fault)")

    def refused(_: FaultyCatalog, send: Callable[[], object]) -> object:
        raise CommitStateUnknownError("refused (injected fault)", ConfigurationError("HTTP 403"))

    catalog = FaultyCatalog(home.iceberg, lost, *[refused] * 7)
    with pytest.raises(CommitStateUnknownError, match=r"nothing was deleted"):
        create(catalog, VIEW, Definition(None, layout=home.layout), stager=home.stager, effects=clock.effects)
    late[0]()
    assert home.refresh().outcome == "refreshed"
    assert len(home.read()) == 2


@in_homes(lambda name: name.startswith(("sqlite", "postgres")))  # a REST server's drop has no condition
@pytest.mark.parametrize("fault", ["created again", "lost, created again", "lost", "lost before"])
def test_i05_a_drop_removes_exactly_the_loaded_view(
    home: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A view that is created with the same name meanwhile is another view and is kept."""
    refreshed(home, 1)
    original, sent = SqlPointers.delete, []

    def delete(pointers: SqlPointers, view: Identifier, **how: str) -> bool:
        sent.append(view)
        if len(sent) > 1 or view != home.catalog.identify(VIEW):
            return original(pointers, view, **how)
        unconditionally = {key: value for key, value in how.items() if key != "base"}
        landed = original(pointers, view, **unconditionally) if fault != "lost before" else False
        if fault.endswith("created again"):
            home.view()
        if fault.startswith("lost"):
            raise CommitStateUnknownError("no answer to the removal (injected fault)")
        return original(pointers, view, **how) and landed

    monkeypatch.setattr(SqlPointers, "delete", delete)
    assert drop(home.catalog, VIEW, effects=clock.effects).left is None
    assert home.catalog.exists(VIEW) is fault.endswith("created again")
    storages = [name for name in home.iceberg.list_tables("sales") if "__storage" in name[1]]
    assert len(storages) == (home.layout == "registered" and home.catalog.exists(VIEW))


@in_homes(lambda name: name.startswith(("sqlite", "postgres")) and _has_views(name))
@pytest.mark.parametrize("landed", [True, False])
def test_all_copies_of_a_creation_name_one_metadata_file(
    home: Lake, warehouse: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    original, sent = SqlPointers.insert, []

    def insert(pointers: SqlPointers, view: Identifier, location: str) -> None:
        sent.append(location)
        if landed or len(sent) > 1:
            original(pointers, view, location)
        if len(sent) == 1:
            raise CommitStateUnknownError("no answer to the insert (injected fault)")

    monkeypatch.setattr(SqlPointers, "insert", insert)
    defined(home, FaultyCatalog(home.iceberg), clock)
    assert len(sent) == (1 if landed else 2)
    folder = local(home.catalog.load(VIEW).metadata.metadata_folder)
    assert [str(local(sent[0]))] == [name for name in files(folder) if name.endswith(".json")]


def test_a_table_that_is_created_with_the_name_meanwhile_is_named(home: Lake, clock: Clock) -> None:
    catalog = FaultyCatalog(home.iceberg, after(lambda: home.table("daily", rows=[(1, "a", 1)])))
    with pytest.raises(AlreadyExistsError, match=r"a table lake\.sales\.daily exists"):
        defined(home, catalog, clock)
    assert home.iceberg.load_table("sales.daily").scan().to_arrow() == orders([(1, "a", 1)])


def test_a_definition_that_landed_without_an_answer_is_not_repeated_over_a_newer_one(home: Lake, clock: Clock) -> None:
    """Its version in the view's history shows that it has landed."""
    refreshed(home, 1)

    def define_next() -> None:
        defined(home, FaultyCatalog(home.iceberg), clock, QUERY.replace("sum", "min"))

    defined(home, FaultyCatalog(home.iceberg, lose_answer_after(define_next)), clock, OTHER_QUERY)
    assert home.catalog.load(VIEW).metadata.sql(view=VIEW) == QUERY.replace("sum", "min")
