# SPDX-License-Identifier: Apache-2.0
"""Cases of the registered layout only: other writers, access rights, records of other engines."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from airflow_mv.actions import create_view as create
from airflow_mv.common.refresh_state import REFRESH_STATE_KEY, parse
from airflow_mv.common.status import status
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    current_tag,
    refresh_tag,
)
from airflow_mv.core.spec.properties import REFRESH_STATE_PROPERTY
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.core.spec.view import ViewMetadata, with_view_properties
from airflow_mv.errors import (
    AlreadyExistsError,
    CommitConflictError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
    JobError,
    NotFoundError,
    RefreshNotFoundError,
    StaleViewError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.extras.describe import stored_metadata
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.maintenance.orphans import expire
from airflow_mv.extras.read import read_rows, readable
from tests.branches import drop_branch
from tests.builders import ORDERS, QUERY, Lake, orders, rewritten
from tests.faults import (
    Clock,
    Fault,
    FaultyCatalog,
    Send,
    StoppedError,
    after,
    arrive_late,
    lose_answer_after,
)

VIEW = "sales.daily"
WIDER = "SELECT region, id, amount FROM lake.sales.orders"
ROWS = [{"region": "north", "orders": 2, "amount": 15}, {"region": "south", "orders": 1, "amount": 20}]


@pytest.fixture
def home(registered_home: Lake) -> Lake:
    registered_home.table()
    registered_home.view()
    return registered_home


def name_of(home: Lake) -> tuple[str, ...]:
    name = home.catalog.load(VIEW).storage_table
    assert name is not None
    return (*name.namespace, name.name)


def codes(home: Lake) -> list[Code]:
    return [reason.code for reason in status(home.catalog, VIEW).reasons]


def write_foreign_rows(home: Lake) -> None:
    """Write rows into the storage table, as another program might."""
    table = home.iceberg.load_table(name_of(home))
    table.append(table.scan().to_arrow())


def _say(document: dict[str, Any], operation: str) -> None:
    last = next(item for item in document["snapshots"] if item["snapshot-id"] == document["current-snapshot-id"])
    last["summary"]["operation"] = operation


# -- other writers -----------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["append", "replace"])
def test_rows_of_other_writers_make_the_view_stale_and_the_next_refresh_removes_them(home: Lake, said: str) -> None:
    """Also if their commit calls itself a compaction: it has more rows."""
    home.refresh()
    write_foreign_rows(home)
    if said == "replace" and isinstance(home.iceberg, SqlCatalog):
        rewritten(home.iceberg, ".".join(name_of(home)), lambda document: _say(document, said))
    assert status(home.catalog, VIEW).state == State.STALE
    assert Code.STORAGE_CHANGED in codes(home)
    with pytest.raises(StaleViewError, match="another writer has changed the storage table"):
        readable(home.catalog, VIEW)
    assert home.refresh().mode == Mode.FULL
    assert home.read() == ROWS
    assert status(home.catalog, VIEW).state == State.FRESH


def test_a_reader_that_accepts_stale_rows_gets_the_refresh_s_rows_and_not_those_of_other_writers(home: Lake) -> None:
    create(home.catalog, VIEW, Definition(QUERY, allow_stale_data=True), stager=home.stager, replace=True)
    home.refresh()
    write_foreign_rows(home)
    rows = read_rows(home.catalog, readable(home.catalog, VIEW)).rows()
    assert sorted(rows) == [list(row.values()) for row in ROWS]


def test_a_storage_table_that_was_rolled_back_is_refreshed_again(home: Lake) -> None:
    home.refresh()
    before = home.storage().table.head
    home.append()
    home.refresh()
    assert before is not None
    with home.iceberg.load_table(name_of(home)).manage_snapshots() as manage:
        manage.rollback_to_snapshot(before)
    assert Code.STORAGE_CHANGED in codes(home)
    home.refresh()
    assert len(home.read()) == 3
    assert status(home.catalog, VIEW).state == State.FRESH


def test_a_rollback_to_rows_that_expire_meanwhile_reports_it_and_changes_nothing(home: Lake) -> None:
    """No catalog can require that a snapshot exists."""
    home.view("kept", time_travel=True)
    kept, first = "sales.kept", home.refresh("sales.kept").refresh_id
    home.append()
    home.refresh(kept)
    storage = home.catalog.load_storage(home.catalog.load(kept))
    assert storage.name is not None
    drop_branch(home.iceberg.load_table((*storage.name.namespace, storage.name.name)), refresh_tag(str(first)))
    expired_first = after(lambda: expire(home.catalog, kept, older_than=timedelta(0)))
    with pytest.raises(RefreshNotFoundError, match=r"the rows of refresh .* have expired"):
        rollback(FaultyCatalog(home.iceberg, expired_first), kept, str(first), effects=Clock().effects)
    assert status(home.catalog, kept).state == State.FRESH
    assert len(home.read(kept)) == 3


def test_without_the_current_tag_the_rows_are_not_trusted(home: Lake) -> None:
    home.refresh()
    state = home.storage().state
    assert state is not None
    drop_branch(home.iceberg.load_table(name_of(home)), current_tag(state.current_refresh_id))
    assert Code.STORAGE_CHANGED in codes(home)
    home.refresh()
    assert (status(home.catalog, VIEW).state, home.read()) == (State.FRESH, ROWS)


def test_properties_and_branches_of_other_writers_are_kept_and_cause_no_conflict(home: Lake) -> None:
    plan, outcome = home.stage()

    def meanwhile() -> None:
        table = home.iceberg.load_table(name_of(home))
        with table.transaction() as transaction:
            transaction.set_properties({"theirs": "kept"})
        table = home.iceberg.load_table(name_of(home))
        table.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, "theirs").commit()

    catalog = FaultyCatalog(home.iceberg, after(meanwhile))
    assert publish(catalog, plan, outcome.staged, effects=Clock().effects).outcome == PublishOutcome.COMMITTED
    storage = home.storage()
    assert storage.table.properties["theirs"] == "kept"
    assert "theirs" in storage.table.refs
    assert home.read() == ROWS


def test_rows_of_other_writers_during_a_refresh_are_not_mixed_with_ours(home: Lake) -> None:
    home.refresh()
    home.append()
    plan, outcome = home.stage()
    catalog = FaultyCatalog(home.iceberg, after(lambda: write_foreign_rows(home)))
    assert publish(catalog, plan, outcome.staged, effects=Clock().effects).outcome == PublishOutcome.REPLAN
    home.refresh()
    assert len(home.read()) == 3


# -- the staged rows ---------------------------------------------------------------------------


def test_a_branch_that_was_dropped_is_staged_again_by_a_retry(home: Lake) -> None:
    plan, outcome = home.stage()
    assert outcome.branch is not None
    drop_branch(home.iceberg.load_table(name_of(home)), outcome.branch)
    with pytest.raises(JobError, match=r"daily__storage .*run the refresh again|Run the refresh again"):
        publish(home.catalog, plan, outcome.staged, effects=Clock().effects)
    assert home.read() == []
    home.refresh()
    assert home.read() == ROWS


def test_a_staged_snapshot_with_missing_files_is_never_published(home: Lake) -> None:
    """Java's ``JdbcCatalog`` deletes the files of a commit whose answer was lost, although it may have landed."""
    plan, outcome = home.stage()
    storage = home.storage()
    snapshot = storage.table.find(storage.table.refs[outcome.branch or ""].snapshot_id)
    assert snapshot is not None
    Path(str(snapshot.manifest_list).removeprefix("file:").replace("///", "/")).unlink()
    with pytest.raises(JobError, match="lost its files"):
        publish(home.catalog, plan, outcome.staged, effects=Clock().effects)
    assert (home.read(), outcome.branch in home.storage().table.refs) == ([], False)
    home.refresh()
    assert home.read() == ROWS


def test_a_branch_of_another_refresh_is_refused(home: Lake) -> None:
    _, outcome = home.stage()
    home.append()
    second = plan_refresh(home.catalog, VIEW)
    assert outcome is not None
    with pytest.raises(InvalidMetadataError, match="does not belong to refresh"):
        publish(home.catalog, second, outcome.staged, effects=Clock().effects)
    assert home.read() == []


# -- access rights -----------------------------------------------------------------------------


def test_a_dropped_storage_table_is_named_and_a_replace_creates_a_new_one(home: Lake) -> None:
    home.refresh()
    home.iceberg.drop_table(name_of(home))
    for call in (status, plan_refresh):
        with pytest.raises(NotFoundError, match=r"lake\.sales\.daily.*daily__storage .*--replace"):
            call(home.catalog, VIEW)
    create(home.catalog, VIEW, Definition(QUERY), stager=home.stager, replace=True)
    home.refresh()
    assert home.read() == ROWS


def test_another_table_with_the_name_is_never_taken_for_the_storage_table(home: Lake) -> None:
    home.refresh()
    name = name_of(home)
    home.iceberg.drop_table(name)
    home.iceberg.create_table(name, schema=ORDERS).append(orders([(1, "theirs", 1)]))
    with pytest.raises(NotFoundError, match="is not its storage table"):
        home.refresh()
    with pytest.raises(AlreadyExistsError, match=r"daily__storage .* is taken by a table .*--storage-name"):
        create(home.catalog, VIEW, Definition(QUERY), stager=home.stager, replace=True)
    create(home.catalog, VIEW, Definition(QUERY, storage_name="rows"), stager=home.stager, replace=True)
    home.refresh()
    assert (name_of(home), home.read()) == (("sales", "rows"), ROWS)
    assert home.iceberg.load_table(name).scan().count() == 1


def test_a_view_cannot_name_a_foreign_table_as_its_storage_table(home: Lake) -> None:
    """Otherwise whoever may write a view could have any table overwritten, with the rights of the refreshing user."""
    home.refresh()
    home.view("other")
    before = home.load().metadata
    for victim in (home.load(), home.iceberg.load_table(name_of(home))):
        view = home.catalog.load("sales.other")
        named = {
            STORAGE_TABLE_PROPERTY: ".".join(victim.name()),
            STORAGE_TABLE_UUID_PROPERTY: str(victim.metadata.table_uuid),
        }
        assert home.catalog.replace(view, with_view_properties(view.metadata, named))
        with pytest.raises(InvalidMetadataError, match=r"sales\.other.*is not marked as this view's"):
            home.refresh("sales.other")
        drop(home.catalog, "sales.other")
        home.view("other")
    assert (home.load().metadata, home.read()) == (before, ROWS)


def test_a_redefinition_has_landed_although_its_template_may_not_be_dropped(
    home: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(name: tuple[str, ...]) -> None:
        raise ForbiddenError("not yours to drop")

    monkeypatch.setattr(home.iceberg, "drop_table", forbidden)
    wider = Definition("SELECT region, amount FROM lake.sales.orders")
    created = create(home.catalog, VIEW, wider, stager=home.stager, replace=True)
    assert created == home.catalog.load(VIEW)
    assert "forbids dropping table" in caplog.text
    home.refresh()
    assert len(home.read()) == 3


@pytest.mark.parametrize("sql", [QUERY, "SELECT region, amount FROM lake.sales.orders"], ids=["same", "other"])
def test_a_replacement_of_a_view_whose_storage_table_has_no_valid_name_lands(
    home: Lake, sql: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The earlier storage table is found by the name that it has by default."""
    view = home.catalog.load(VIEW)
    assert home.catalog.replace(view, with_view_properties(view.metadata, {STORAGE_TABLE_PROPERTY: "a..b"}))
    created = create(home.catalog, VIEW, Definition(sql), stager=home.stager, replace=True)
    assert created == home.catalog.load(VIEW)
    assert f"{VIEW} may still be in the catalog" in caplog.text
    assert home.refresh().outcome == "refreshed"
    assert name_of(home) == ("sales", "daily__storage")


class Unreadable(MaterializedViewCatalog):
    """A catalog that applies each change and then returns answers that cannot be parsed."""

    broken = 0

    def create(
        self,
        view: str | Identifier,
        metadata: ViewMetadata,
        location: str | None = None,
        *,
        template: Identifier | None = None,
    ) -> LoadedView:
        super().create(view, metadata, location, template=template)
        raise InvalidMetadataError("the answer to a creation is not JSON (injected fault)")

    def replace(self, view: LoadedView, metadata: ViewMetadata) -> bool:
        self.broken = 2
        return super().replace(view, metadata)

    def load(self, view: str | Identifier) -> LoadedView:
        if self.broken > 0:
            self.broken -= 1
            raise InvalidMetadataError("the answer to a load is not JSON (injected fault)")
        return super().load(view)


def test_a_creation_that_landed_and_then_failed_keeps_its_storage_table(home: Lake) -> None:
    drop(home.catalog, VIEW)
    with pytest.raises(InvalidMetadataError, match="creation is not JSON"):
        create(Unreadable(home.iceberg), VIEW, Definition(QUERY, layout="registered"), stager=home.stager)
    home.refresh()
    assert home.read() == ROWS


@pytest.mark.parametrize("plain", [False, True])
def test_a_replacement_that_landed_and_then_failed_keeps_its_storage_table(home: Lake, plain: bool) -> None:
    """For a view whose storage table was lost, and for a plain view that becomes materialized."""
    if plain:
        drop(home.catalog, VIEW)
        home.plain_view("daily", "SELECT id, region, amount FROM lake.sales.orders")
    else:
        home.iceberg.drop_table(name_of(home))
    sql = None if plain else "SELECT region, amount FROM lake.sales.orders"
    with pytest.raises(InvalidMetadataError, match="load is not JSON"):
        create(
            Unreadable(home.iceberg), VIEW, Definition(sql, layout="registered"), stager=home.stager, replace=not plain
        )
    home.refresh()
    assert len(home.read()) == 3


def test_an_invalid_name_of_a_storage_table_is_a_typed_error(home: Lake) -> None:
    view = home.catalog.load(VIEW)
    assert home.catalog.replace(view, with_view_properties(view.metadata, {STORAGE_TABLE_PROPERTY: "a..b"}))
    with pytest.raises(InvalidMetadataError, match=STORAGE_TABLE_PROPERTY):
        status(home.catalog, VIEW)


def test_a_layout_that_the_view_does_not_have_is_refused(home: Lake) -> None:
    with pytest.raises(UnsupportedError, match=r"pointed|registered"):
        create(home.catalog, VIEW, Definition(QUERY, layout="pointed"), stager=home.stager, replace=True)


# -- records of other engines ------------------------------------------------------------------


def test_each_refresh_is_recorded_with_the_draft_s_field_names(home: Lake) -> None:
    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    home.view("top", "SELECT id FROM lake.sales.plain")
    home.refresh("sales.top")
    storage = home.storage("sales.top")
    snapshot = storage.table.find(storage.table.head or 0)
    assert snapshot is not None
    state = parse(snapshot.summary[REFRESH_STATE_KEY], source="summary")
    table, view = (source.document() for source in state.source_states)
    assert table == {
        "type": "table",
        "name": "orders",
        "namespace": ["sales"],
        "uuid": str(home.load().metadata.table_uuid),
        "snapshot-id": home.head(),
    }
    plain = home.catalog.load("sales.plain").metadata
    assert view == {
        "type": "view",
        "name": "plain",
        "namespace": ["sales"],
        "uuid": plain.view_uuid,
        "version-id": plain.current_version_id,
    }


def test_the_record_of_another_engine_is_shown_with_one_set_of_field_names(home: Lake) -> None:
    """The names differ between drafts; a record that cannot be parsed does not hide the rest."""
    home.refresh()
    ours = stored_metadata(home.catalog, VIEW)["refresh_state"]
    assert (ours["view-version-id"], ours["source-states"][0]["snapshot-id"]) == (1, home.head())
    source = {"type": "table", "name": "orders", "namespace": ["sales"], "uuid": "u", "snapshot-id": 7}
    state = {"refresh-version-id": 1, "refresh-start-timestamp-ms": 5, "source-states": [source]}
    for text, shown in (
        (json.dumps(state), {
            "view-version-id": 1,
            "refresh-start-timestamp-ms": 5,
            "source-states": [source],
        }),
        ("not JSON", None),
    ):  # fmt: skip
        table = home.iceberg.load_table(name_of(home))
        table.append(table.scan().to_arrow(), snapshot_properties={REFRESH_STATE_KEY: text})
        assert stored_metadata(home.catalog, VIEW)["refresh_state"] == shown


def test_the_draft_s_record_can_be_omitted_and_unknown_names_are_refused(registered_home: Lake) -> None:
    home = registered_home
    home.table()
    home.view(properties={REFRESH_STATE_PROPERTY: "none"})
    home.refresh()
    assert all(REFRESH_STATE_KEY not in item.summary for item in home.storage().table.snapshots)
    view = home.catalog.load(VIEW)
    home.catalog.replace(view, with_view_properties(view.metadata, {REFRESH_STATE_PROPERTY: "2099-01"}))
    home.append()
    with pytest.raises(ConfigurationError, match=r"2099-01.*2026-06"):
        home.refresh()


@pytest.mark.parametrize("way", ["given another one", "dropped and created again"])
def test_i09_a_refresh_into_a_storage_table_that_the_view_does_not_name_any_more_is_planned_again(
    home: Lake, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The view gets another storage table between a read and the commit; the old table still exists at that moment."""
    wider = Definition(WIDER, layout="registered", storage_name="rows")
    commit, old, away = home.catalog.tables.commit, name_of(home), ("sales", "away")
    landed: list[str | None] = []

    def at_last(*arguments: Any) -> str | None:
        if not landed:
            landed.append(None)
            home.iceberg.rename_table(old, away)
            if way == "given another one":
                create(home.catalog, VIEW, wider, stager=home.stager, replace=True)
            else:
                drop(home.catalog, VIEW)
                create(home.catalog, VIEW, wider, stager=home.stager)
            home.iceberg.rename_table(away, old)
            landed[0] = commit(*arguments)
            return landed[0]
        return commit(*arguments)

    monkeypatch.setattr(home.catalog.tables, "commit", at_last)
    if way == "given another one":
        assert home.refresh().outcome == "refreshed"
    else:
        with pytest.raises(ViewNotFoundError, match="dropped and created again"):
            home.refresh()
        assert home.refresh().outcome == "refreshed"
    assert landed[0] is not None
    assert name_of(home) == ("sales", "rows")
    assert len(home.read()) == 3
    assert set(home.read()[0]) == {"region", "id", "amount"}
    assert status(home.catalog, VIEW).state == State.FRESH


def test_i09_a_refresh_that_lands_after_a_change_of_the_columns_is_not_returned(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit to a table can require the view's version. The record has it, so readers see the difference."""
    commit = home.catalog.tables.commit

    def at_last(*arguments: Any) -> str | None:
        if home.catalog.load(VIEW).metadata.current_version_id == 1:
            create(home.catalog, VIEW, Definition(WIDER), stager=home.stager, replace=True)
            landed = commit(*arguments)
            assert landed is not None
            with pytest.raises(StaleViewError):
                readable(home.catalog, VIEW)
            return landed
        return commit(*arguments)

    monkeypatch.setattr(home.catalog.tables, "commit", at_last)
    home.refresh()
    home.refresh()
    assert set(home.read()[0]) == {"region", "id", "amount"}
    assert status(home.catalog, VIEW).state == State.FRESH


# -- the draft's field of a version --------------------------------------------------------------


def test_each_version_names_the_storage_table_as_the_draft_does_unless_the_server_drops_the_field(home: Lake) -> None:
    """Iceberg's own server and Spark keep only the fields that they know. The property names the table all the same."""

    def fields(view: str = VIEW) -> list[object]:
        return [version.document().get("storage-table") for version in home.catalog.load(view).metadata.versions]

    def named(name: str) -> object:
        return {"namespace": ["sales"], "name": name} if home.catalog.is_sql else None

    create(home.catalog, VIEW, Definition(QUERY, time_travel=True), stager=home.stager, replace=True)
    assert fields() == [named("daily__storage")]
    create(home.catalog, VIEW, Definition(WIDER), stager=home.stager, replace=True)
    home.refresh()
    assert fields() == [named("daily__storage")] * 2
    home.iceberg.drop_table(name_of(home))
    create(home.catalog, VIEW, Definition(WIDER, storage_name="rows"), stager=home.stager, replace=True)
    assert fields() == [named("daily__storage")] * 2 + ([named("rows")] if home.catalog.is_sql else [])
    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    create(home.catalog, "sales.plain", Definition(None, layout="registered"), stager=home.stager)
    assert fields("sales.plain") == [None, named("plain__storage")]
    assert home.refresh("sales.plain").outcome == "refreshed"


# -- the storage table's name ------------------------------------------------------------------


def test_the_name_is_the_view_s_with_a_suffix_or_the_chosen_one_and_stays(home: Lake) -> None:
    home.view("other", storage_name="other rows")
    assert name_of(home) == ("sales", "daily__storage")
    assert str(home.storage("sales.other").name) == "lake.sales.`other rows`"
    home.refresh("sales.other")
    create(home.catalog, "sales.other", Definition(WIDER), stager=home.stager, replace=True)
    home.refresh("sales.other")
    assert str(home.storage("sales.other").name) == "lake.sales.`other rows`"
    again = Definition(WIDER, storage_name="others")
    with pytest.raises(UnsupportedError, match=r"its storage table is lake\.sales\.`other rows` and keeps its name"):
        create(home.catalog, "sales.other", again, stager=home.stager, replace=True)


def test_a_name_that_cannot_be_the_storage_table_s_is_refused_before_anything_is_made(registered_home: Lake) -> None:
    for name in ("daily", "sales.rows", "a`b", ""):
        with pytest.raises(InvalidIdentifierError, match=r"name|part"):
            registered_home.view(storage_name=name)
    with pytest.raises(ConfigurationError, match="leave out --storage-name"):
        registered_home.view(layout="table", storage_name="rows")
    assert registered_home.stager.calls == []


def test_a_name_that_something_else_has_is_refused_with_what_has_it_and_nothing_is_left(home: Lake) -> None:
    home.table("top__storage")
    home.plain_view("plain__storage", "SELECT * FROM lake.sales.orders")
    home.view("third", storage_name="fourth__storage")
    before = sorted(home.iceberg.list_tables("sales"))
    for view, holder in (
        ("top", "a table that is no storage table"),
        ("plain", "a view"),
        ("fourth", r"the storage table of `sales`\.`third`"),
    ):
        with pytest.raises(AlreadyExistsError, match=rf"{view}__storage .* is taken by {holder}: .*--storage-name"):
            home.view(view)
        assert not home.catalog.exists(f"sales.{view}")
    assert sorted(home.iceberg.list_tables("sales")) == before


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("sql", [QUERY, "SELECT region, amount FROM lake.sales.orders"], ids=["same", "other"])
def test_i09_a_storage_table_that_was_left_is_used_only_if_it_is_empty_and_fits(
    home: Lake, sql: str, rows: bool
) -> None:
    """By a view that another program dropped, or by a creation that was killed. Its records answer an earlier view."""
    if rows:
        home.refresh()
    left = home.iceberg.load_table(name_of(home)).metadata
    home.catalog.drop(VIEW)
    home.view(sql=sql)
    now = home.iceberg.load_table(name_of(home)).metadata
    assert (now.table_uuid == left.table_uuid) is (sql == QUERY and not rows)
    assert status(home.catalog, VIEW).state == State.NEVER_REFRESHED
    assert (now.location == left.location) is (now.table_uuid == left.table_uuid), "files of the earlier one stay there"
    home.refresh()
    assert len(home.read()) == (2 if sql == QUERY else 3)


@pytest.mark.parametrize("fault", [lose_answer_after(), arrive_late], ids=["lost after", "late"])
def test_i05_a_storage_table_whose_creation_has_no_answer_is_created_once(
    registered_home: Lake, clock: Clock, fault: Fault
) -> None:
    registered_home.table()
    catalog = FaultyCatalog(registered_home.iceberg)
    catalog.storage_schedule = [fault]
    create(
        catalog,
        VIEW,
        Definition(QUERY, layout="registered"),
        stager=registered_home.stager,
        effects=clock.effects,
    )
    assert catalog.storage_schedule == []
    assert sorted(registered_home.iceberg.list_tables("sales")) == [("sales", "daily__storage"), ("sales", "orders")]
    registered_home.refresh()
    assert registered_home.read() == ROWS


@pytest.mark.parametrize("sql", [QUERY, "SELECT region, amount FROM lake.sales.orders"], ids=["same", "other"])
def test_of_two_creations_at_once_one_succeeds_and_the_view_is_usable(
    registered_home: Lake, clock: Clock, sql: str
) -> None:
    """The other one creates its storage table, or takes ours for one that was left, just before the view is created."""
    registered_home.table()
    ended: list[str] = []

    def other() -> None:
        late = FaultyCatalog(registered_home.iceberg, after(lambda: ours.late.pop()()))
        with pytest.raises(AlreadyExistsError):
            create(late, VIEW, Definition(sql, layout="registered"), stager=registered_home.stager)
        ended.append("refused")

    def meanwhile(catalog: FaultyCatalog, send: Send) -> LoadedView | None:
        made: list[LoadedView] = []
        catalog.late.append(lambda: made.append(send()))
        other()
        return made[0]

    ours = FaultyCatalog(registered_home.iceberg, meanwhile)
    create(ours, VIEW, Definition(QUERY, layout="registered"), stager=registered_home.stager, effects=clock.effects)
    assert ended == ["refused"]
    assert registered_home.refresh().outcome == "refreshed"
    assert registered_home.read() == ROWS
    assert sorted(registered_home.iceberg.list_tables("sales")) == [("sales", "daily__storage"), ("sales", "orders")]


def _removing_too_late(home: Lake, monkeypatch: pytest.MonkeyPatch, *, killed: bool = False) -> MaterializedViewCatalog:
    """Drop the view. Return a catalog that removes a table after the view was made again; then it may be killed."""
    home.catalog.drop(VIEW)
    other = MaterializedViewCatalog(home.iceberg)
    remove = other.drop_table

    def late(*arguments: Any, **more: Any) -> bool:
        home.view()
        removed = remove(*arguments, **more)
        if killed:
            assert removed
            raise StoppedError
        return removed

    monkeypatch.setattr(other, "drop_table", late)
    return other


def test_a_storage_table_that_another_creation_removes_too_late_is_put_back(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left, without a view, when the other one loaded it; by its removal, a view of this creation names it."""
    other = _removing_too_late(home, monkeypatch)
    with pytest.raises(CommitConflictError, match="Run it again"):
        create(other, VIEW, Definition(WIDER, layout="registered"), stager=home.stager)
    assert home.refresh().outcome == "refreshed"
    assert home.read() == ROWS


def test_a_storage_table_that_a_killed_creation_has_removed_is_made_again_as_the_error_says(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that removed it too late was killed before it put it back: the view has none, and no file is lost."""
    other = _removing_too_late(home, monkeypatch, killed=True)
    with pytest.raises(StoppedError):
        create(other, VIEW, Definition(WIDER, layout="registered"), stager=home.stager)
    with pytest.raises(NotFoundError, match=r"is not in the catalog.*create lake.sales.daily --replace"):
        home.refresh()
    create(home.catalog, VIEW, Definition(None), stager=home.stager, replace=True)
    assert home.refresh().outcome == "refreshed"
    assert home.read() == ROWS
