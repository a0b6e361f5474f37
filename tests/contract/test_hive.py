# SPDX-License-Identifier: Apache-2.0
"""A Hive Metastore as the home of views: the lock that pyiceberg takes for a commit, and lost answers.

The suite's other tests run there, too, in the layout ``table``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from thrift.transport.TTransport import TTransportException

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.errors import CommitError, InvalidIdentifierError, UnsupportedError
from tests.builders import QUERY, Lake, lake
from tests.contract.support import NORTH, SOUTH, VIEW, ids, staged, where
from tests.faults import Clock

pytestmark = pytest.mark.slow
ALTER = "alter_table_with_environment_context"


@pytest.fixture
def home(hive_uri: str, warehouse: Path) -> Iterator[Lake]:
    properties = {"lock-check-retries": "2", "lock-check-max-wait-time": "0.1"}
    with lake(hive_uri, warehouse, **properties) as found:
        found.table()
        found.view()
        yield found


def instead(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[..., Any]) -> list[str]:
    """Replace the first call of the metastore by this; return a list of the calls."""
    plain, sent = getattr(Client, name), list[str]()

    def call(client: Client, *arguments: Any, **more: Any) -> Any:
        sent.append(name)
        send = lambda: plain(client, *arguments, **more)  # noqa: E731
        return act(client, send) if len(sent) == 1 else send()

    monkeypatch.setattr(Client, name, call)
    return sent


def test_i05_a_commit_whose_answer_is_lost_lands_once(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, outcome = staged(home)

    def lost(_: Client, send: Callable[[], Any]) -> Any:
        send()
        raise TTransportException(message="TSocket read 0 bytes (injected fault)")

    sent = instead(monkeypatch, ALTER, lost)
    assert publish(home.catalog, plan, where(outcome)).outcome == PublishOutcome.COMMITTED
    assert (len(sent), len(ids(home))) == (1, 1)
    assert home.read() == [NORTH, SOUTH]


def test_i05_a_creation_whose_answer_is_lost_lands_once(
    home: Lake, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def lost(_: Client, send: Callable[[], Any]) -> Any:
        send()
        raise TTransportException(message="TSocket read 0 bytes (injected fault)")

    def stager(script: Any) -> Any:
        outcome = home.stager(script)
        instead(monkeypatch, "create_table", lost)
        return outcome

    create(home.catalog, "sales.other", Definition(QUERY, layout="table"), stager=stager, effects=clock.effects)
    assert home.refresh("sales.other").outcome == "refreshed"


def test_no_other_change_is_between_the_check_and_the_change(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is locked: the other one is refused, and nothing of it is applied."""
    plan, outcome = staged(home)
    other = Definition(QUERY.replace("sum", "max"), layout="table")
    refused: list[Exception] = []

    def meanwhile(_: Client, send: Callable[[], Any]) -> Any:
        with pytest.raises(CommitError) as error:
            create(home.catalog, VIEW, other, stager=home.stager, replace=True, effects=Clock().effects)
        refused.append(error.value)
        return send()

    instead(monkeypatch, ALTER, meanwhile)
    assert publish(home.catalog, plan, where(outcome)).outcome == PublishOutcome.COMMITTED
    assert len(refused) == 1
    assert home.read() == [NORTH, SOUTH]
    create(home.catalog, VIEW, other, stager=home.stager, replace=True)


def test_other_types_of_columns_need_a_setting_of_the_metastore_and_the_error_names_it(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default a metastore refuses them. Nothing is published, and the old rows stay readable."""
    home.refresh()
    wider = Definition("SELECT id, amount AS region FROM lake.sales.orders", layout="table")
    create(home.catalog, VIEW, wider, stager=home.stager, replace=True)
    plan, outcome = staged(home)

    def strictly(client: Client, send: Callable[[], Any]) -> Any:
        client.setMetaConf("metastore.disallow.incompatible.col.type.changes", "true")
        return send()

    instead(monkeypatch, ALTER, strictly)
    with pytest.raises(UnsupportedError) as refused:
        publish(home.catalog, plan, where(outcome))
    assert re.fullmatch(
        r"catalog 'lake' refuses other types of columns in a commit to table lake\.sales\.daily: set "
        r"hive\.metastore\.disallow\.incompatible\.col\.type\.changes to false in the metastore, as Iceberg needs it",
        str(refused.value),
    )
    assert home.read() == [NORTH, SOUTH]


def test_names_are_those_that_all_clients_accept(home: Lake) -> None:
    with pytest.raises(InvalidIdentifierError, match="a Hive Metastore stores names in lower case"):
        home.view("Daily")
