# SPDX-License-Identifier: Apache-2.0
"""A REST server or a proxy may return any answer to a commit: the state of the table decides whether it has landed.

The server is Iceberg's own. An adapter in the catalog's session replaces one answer: the request before it has been
executed (it has landed), or has not been sent.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish.protocol import Effects, Verdict, commit
from airflow_mv.core.publish.registered import DropBranch
from airflow_mv.errors import MaterializedViewError, NotFoundError, ViewNotFoundError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.maintenance.expire import expire
from tests.branches import create_branch
from tests.builders import QUERY, Lake, lake
from tests.services import RestServers

VIEW = "sales.daily"
QUICK = Effects(sleep=lambda _: None)
#: Status codes of a proxy, a load balancer or a server. 200 has a page in place of JSON.
SOME = (200, 400, 401, 403, 404, 405, 408, 409, 413, 419, 422, 429, 500, 501, 502, 503, 504, 599)
#: One of each kind that pyiceberg or the commit loop treats differently at some endpoint.
KINDS = (200, 400, 401, 404, 409, 503, 599)
PAGES = (b"<html>what?</html>", b"", b'{"error": {"message": "odd", "type": "OddException", "code": 1}}', b"[]")
TABLE, VIEWS, ONE_VIEW = r"POST .*/tables/[^/]+$", r"POST .*/views$", r"POST .*/views/[^/]+$"
DROP = r"DELETE .*/views/[^/]+$"


#: Names and definitions that no other test uses.
NUMBERS = itertools.count()


@dataclass
class Odd(HTTPAdapter):
    """Replaces the answer to one request."""

    pattern: str = "nothing"
    status: int = 0
    landed: bool = True
    happened: int = 0
    others: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def arm(self, pattern: str, status: int, *, landed: bool) -> None:
        self.pattern, self.status, self.landed, self.happened = pattern, status, landed, 0

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        odd = self.happened == 0 and re.search(self.pattern, f"{request.method} {request.path_url}") is not None
        self.happened += odd
        if not odd or self.landed:
            answer = super().send(request, *args, **kwargs)
            if not odd:
                return answer
            assert answer.ok, answer.text
            answer.close()
        replaced = Response()
        replaced.status_code, replaced.request, replaced.url = self.status, request, str(request.url)
        pages = PAGES if self.status != 200 else PAGES[:1]
        page = io.BytesIO(pages[self.status % len(pages)])
        replaced.raw = HTTPResponse(page, status=self.status, preload_content=False)
        return replaced


@pytest.fixture(scope="module")
def home(rest_jvm: RestServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake that all tests change; the view's history grows."""
    folder = tmp_path_factory.mktemp("odd")
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    with (
        rest_jvm.serve(f"sqlite:///{folder}/catalog.db", warehouse) as address,
        lake(address, warehouse, layout="registered") as found,
    ):
        found.table()
        found.view(time_travel=True, properties={"airflow-mv.history.max-count": "1000"})
        found.refresh()
        found.append()
        found.refresh()
        yield found


@pytest.fixture
def odd(home: Lake) -> Odd:
    assert isinstance(home.iceberg, RestCatalog)
    adapter = Odd()
    home.iceberg._session.mount("http://", adapter)
    return adapter


def ended(act: Callable[[], object]) -> object:
    """Return the result of an action, or the typed error that it raises; any other error is a failure."""
    try:
        return act()
    except MaterializedViewError as error:
        return error


def refreshes(home: Lake) -> list[str]:
    state = home.storage().state
    assert state is not None
    return [record.refresh_id for record in state.refreshes]


def published(home: Lake, odd: Odd, status: int, *, landed: bool) -> None:
    home.compact()
    before = refreshes(home)
    odd.arm(TABLE, status, landed=landed)
    found = ended(lambda: home.refresh(effects=QUICK).outcome)
    assert odd.happened, status
    if landed:
        assert found in ("refreshed", "already-committed"), (status, found)
    assert home.refresh(effects=QUICK).outcome in ("fresh", "refreshed", "already-committed")
    after = refreshes(home)
    assert (after[: len(before)], len(after)) == (before, len(before) + 1), status


def rolled_back(home: Lake, odd: Odd, status: int, *, landed: bool) -> None:
    state = home.storage().state
    assert state is not None
    wanted = next(item.refresh_id for item in state.refreshes if item.refresh_id != state.current_refresh_id)
    odd.arm(TABLE, status, landed=landed)
    found = ended(lambda: rollback(home.catalog, VIEW, wanted, effects=QUICK).changed)
    assert odd.happened, status
    if landed:
        assert found is True, (status, found)
    rollback(home.catalog, VIEW, wanted, effects=QUICK)
    assert home.storage().state.current_refresh_id == wanted  # type: ignore[union-attr]


def expired(home: Lake, odd: Odd, status: int, *, landed: bool) -> None:
    # A branch of a driver that died: a table with its complete history has no other garbage.
    storage = home.storage()
    assert storage.name is not None
    refresh_id = str(uuid.uuid4()).replace("-", "_")
    branch = f"airflow_mv_{refresh_id}_{uuid.uuid4().hex[:8]}"
    first = storage.table.snapshots[0].snapshot_id
    create_branch(home.iceberg.load_table((*storage.name.namespace, storage.name.name)), branch, first)
    odd.arm(TABLE, status, landed=landed)
    found = ended(lambda: expire(home.catalog, VIEW, older_than=timedelta(0), effects=QUICK).branches)
    assert odd.happened, status
    if landed:
        assert found == (branch,), (status, found)
    expire(home.catalog, VIEW, older_than=timedelta(0), effects=QUICK)
    assert branch not in home.storage().table.refs


def branch_dropped(home: Lake, odd: Odd, status: int, *, landed: bool) -> None:
    storage = home.storage()
    name = storage.name
    assert name is not None
    create_branch(home.iceberg.load_table((*name.namespace, name.name)), "b", storage.table.head)
    odd.arm(TABLE, status, landed=landed)
    found = ended(lambda: commit(DropBranch(home.catalog, name, "b", QUICK)).verdict)
    assert odd.happened, status
    if landed:
        assert found == Verdict.LANDED, (status, found)
    commit(DropBranch(home.catalog, name, "b", QUICK))
    assert "b" not in home.storage().table.refs


def created(home: Lake, odd: Odd, status: int, *, landed: bool) -> None:
    name = f"v{next(NUMBERS)}"
    odd.arm(VIEWS, status, landed=landed)
    found = ended(lambda: home.view(name))
    assert odd.happened, status
    if landed:
        assert not isinstance(found, MaterializedViewError), (status, found)
    elif not home.catalog.exists(f"sales.{name}"):
        home.view(name)
    assert home.refresh(f"sales.{name}").outcome == "refreshed"


def redefined(home: Lake, odd: Odd, status: int, *, landed: bool) -> None:
    number = next(NUMBERS)
    same_columns = f"{QUERY} HAVING count(*) > {-number}"
    sql = same_columns if status % 2 else f"SELECT region, {number} AS n{number} FROM lake.sales.orders"

    def replace() -> object:
        wanted = Definition(sql, time_travel=True, layout="registered")
        return create(home.catalog, VIEW, wanted, stager=home.stager, replace=True, effects=QUICK)

    odd.arm(ONE_VIEW, status, landed=landed)
    found = ended(replace)
    assert odd.happened, status
    if landed:
        assert not isinstance(found, MaterializedViewError), (status, found)
    replace()
    loaded = home.catalog.load(VIEW)
    assert loaded.metadata.sql(view=VIEW) == sql
    assert home.refresh(effects=QUICK).outcome == "refreshed"


def dropped(home: Lake, odd: Odd, status: int, *, landed: bool) -> None:
    name = f"sales.d{next(NUMBERS)}"
    home.view(name.removeprefix("sales."))
    storage = home.catalog.load(name).storage_table
    assert storage is not None
    odd.arm(DROP, status, landed=landed)
    found = ended(lambda: drop(home.catalog, name))
    assert odd.happened, status
    if landed:
        assert not isinstance(found, MaterializedViewError), (status, found)
    else:
        again = ended(lambda: drop(home.catalog, name))
        assert not isinstance(again, MaterializedViewError) or isinstance(again, ViewNotFoundError)
    with pytest.raises(ViewNotFoundError):
        home.catalog.load(name)
    with pytest.raises(NotFoundError):
        home.catalog.tables.open(storage)


ACTIONS = (published, rolled_back, expired, branch_dropped, created, redefined, dropped)


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not-sent"])
@pytest.mark.parametrize("act", ACTIONS, ids=lambda act: act.__name__)
def test_i04_an_odd_answer_to_a_commit_is_settled_by_reading_the_table(
    home: Lake, odd: Odd, act: Callable[..., None], landed: bool
) -> None:
    """The published refresh is tried with all statuses: the other changes of a table share its loop."""
    for status in SOME if act is published else KINDS:
        act(home, odd, status, landed=landed)


@pytest.mark.slow
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not-sent"])
@pytest.mark.parametrize("act", ACTIONS, ids=lambda act: act.__name__)
def test_every_status_is_settled_by_reading_the_table(
    home: Lake, odd: Odd, act: Callable[..., None], landed: bool
) -> None:
    for status in range(400, 600):
        act(home, odd, status, landed=landed)


@pytest.mark.parametrize("pattern", [r"GET .*/views/", r"GET .*/tables/"])
def test_an_odd_answer_to_a_read_is_a_typed_error(home: Lake, odd: Odd, pattern: str) -> None:
    home.refresh()
    for status in SOME:
        odd.arm(pattern, status, landed=False)
        found = ended(lambda: home.refresh(effects=QUICK).outcome)
        assert odd.happened
        assert found == "fresh" or isinstance(found, MaterializedViewError), (status, found)
        assert "<html>" not in str(found) or len(json.dumps(str(found))) < 1000
