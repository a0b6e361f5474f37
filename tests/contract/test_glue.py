# SPDX-License-Identifier: Apache-2.0
"""AWS Glue as the home of views: what its commits require, what its answers mean, and how often it is asked.

The suite's other tests run there, too, in the layout ``table``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    InvalidIdentifierError,
    NotFoundError,
    UnsupportedError,
)
from tests.builders import Lake, lake
from tests.contract.support import NORTH, SOUTH, VIEW, ids, staged, where

Call = Callable[[GlueResponse], Any]


@pytest.fixture
def home(glue_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(glue_uri, warehouse, **{"glue.max-retries": "2"}) as found:
        found.table()
        found.view()
        yield found


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replaces Glue's answers to an operation, one after the other; the others are its own."""

    def answer(operation: str, *instead: Callable[[Call, GlueResponse], Any]) -> list[str]:
        plain, left, sent = getattr(GlueResponse, operation), list(instead), list[str]()

        def call(request: GlueResponse) -> Any:
            sent.append(operation)
            return left.pop(0)(plain, request) if left else plain(request)

        monkeypatch.setattr(GlueResponse, operation, call)
        return sent

    return answer


def error(
    code: str, *, status: int = 400, text: str = "no", apply: bool = False
) -> Callable[[Call, GlueResponse], Any]:
    """Answer with an error, after the change was applied or without applying it."""

    def fault(plain: Call, request: GlueResponse) -> Any:
        if apply:
            plain(request)
        raised = JsonRESTError(code, text)
        raised.code = status
        raise raised

    return fault


# -- commits -----------------------------------------------------------------------------------------


def test_i05_a_commit_that_glue_repeats_for_the_client_lands_once(
    home: Lake, answers: Callable[..., list[str]]
) -> None:
    """The answer is an error of the server, AWS' client sends the same request again, and Glue refuses the copy."""
    plan, outcome = staged(home)
    sent = answers("update_table", error("InternalServiceException", status=500, apply=True))
    assert publish(home.catalog, plan, where(outcome)).outcome == PublishOutcome.COMMITTED
    assert len(sent) == 2
    assert len(ids(home)) == 1
    assert home.read() == [NORTH, SOUTH]


def test_i05_a_creation_that_glue_repeats_for_the_client_lands_once(
    home: Lake, answers: Callable[..., list[str]]
) -> None:
    sent = answers(
        "create_table", lambda plain, request: plain(request), error("InternalServiceException", status=500, apply=True)
    )
    home.view("other")
    assert sent
    assert home.refresh("sales.other").outcome == "refreshed"


def test_i09_a_change_between_the_check_and_the_update_refuses_the_update(
    home: Lake, answers: Callable[..., list[str]]
) -> None:
    """The requirements were met by the state that was loaded, which is no longer the present one."""
    plan, outcome = staged(home)

    def after_another(plain: Call, request: GlueResponse) -> Any:
        other = MaterializedViewCatalog(home.iceberg)
        view = other.load(VIEW)
        assert other.replace(view, with_view_properties(view.metadata, {"comment": "theirs"}))
        return plain(request)

    sent = answers("update_table", after_another)
    assert publish(home.catalog, plan, where(outcome)).outcome == PublishOutcome.COMMITTED
    assert len(sent) == 3, "refused, theirs, and the next try"
    assert home.catalog.load(VIEW).metadata.properties["comment"] == "theirs"
    assert home.read() == [NORTH, SOUTH]


# -- errors -------------------------------------------------------------------------------------------


def test_an_error_of_glue_is_ours_and_names_no_secret(home: Lake, answers: Callable[..., list[str]]) -> None:
    plan, outcome = staged(home)
    for fault, wanted, message in (
        (error("AccessDeniedException", text="I am not allowed"), ConfigurationError, "forbids .*not allowed"),
        (error("ExpiredTokenException", text="tok-4711"), ConfigurationError, "refused the credentials .ExpiredToken"),
        (error("InvalidSignatureException", text="tok-4711"), ConfigurationError, "refused the credentials"),
        (error("InvalidInputException"), UnsupportedError, "cannot do .*InvalidInput"),
    ):
        for call in (lambda: home.catalog.load(VIEW), lambda: publish(home.catalog, plan, where(outcome))):
            answers("get_table", fault)
            with pytest.raises(wanted, match=message) as raised:
                call()
            assert "4711" not in str(raised.value)


def test_throttling_is_an_outage_and_a_refused_commit_is_not(home: Lake, answers: Callable[..., list[str]]) -> None:
    plan, outcome = staged(home)
    answers("update_table", *[error("AccessDeniedException", text="lakeformation:Update")] * 99)
    with pytest.raises(ConfigurationError, match=r"forbids a commit \(table lake\.sales\.daily\).*lakeformation"):
        publish(home.catalog, plan, where(outcome))
    assert ids(home) == []
    answers("get_table", *[error("ThrottlingException")] * 9)
    with pytest.raises(CatalogUnavailableError, match=r"did not respond \(loading table .*Throttling"):
        home.catalog.load(VIEW)


# -- names and listings ---------------------------------------------------------------------------------


def test_a_name_that_not_all_clients_of_glue_can_use_is_refused(home: Lake) -> None:
    for name in ("Daily", "täglich", "`by-day`"):
        with pytest.raises(InvalidIdentifierError, match=r"AWS Glue stores names in lower case.*a-z, 0-9 and _"):
            home.view(name)
    with pytest.raises(NotFoundError, match=r"sales\.eu.*does not exist"):
        home.catalog.folders.new(home.catalog.identify("lake.sales.eu.daily"))


def test_a_listing_asks_glue_once_for_a_database(home: Lake, answers: Callable[..., list[str]]) -> None:
    """Its answer names the metadata files. Tables of other formats and of other catalogs are left out."""
    for number in range(20):
        home.table(f"t{number}", rows=None)
    home.iceberg.glue.create_table(DatabaseName="sales", TableInput={"Name": "hive", "Parameters": {"a": "b"}})  # type: ignore[attr-defined]
    asked = [answers(operation) for operation in ("get_table", "get_tables")]
    assert home.catalog.list("sales") == [home.catalog.identify(VIEW)]
    assert [len(calls) for calls in asked] == [0, 1]
    assert not home.catalog.exists("sales.hive")
