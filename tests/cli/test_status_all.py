# SPDX-License-Identifier: Apache-2.0
"""`status --all` over several catalogs: one that cannot be read is named, and the others are shown. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.errors import CatalogUnavailableError
from tests.builders import QUERY, Lake, lake
from tests.cli.support import call
from tests.engine.support import configure, reload_configuration

DOWN = "postgresql+psycopg://nobody:s3cr3t@127.0.0.1:1/nothing"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """The catalog ``lake`` with a fresh and a stale view, and ``west``, whose database does not respond."""
    for name, value in configure(tmp_path, "lake").items():
        monkeypatch.setenv(name, value)
    for key, value in {"TYPE": "sql", "URI": DOWN, "WAREHOUSE": "file:///nowhere"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__WEST__{key}", value)
    reload_configuration()
    with lake(f"sqlite:///{tmp_path}/lake.db", tmp_path / "lake") as found:
        found.table()
        for view in (found.view("behind"), found.view("daily")):
            found.refresh(view)
            if view.name == "behind":
                found.append()
        yield found
    monkeypatch.undo()
    reload_configuration()


def states(documents: list[dict[str, Any]]) -> dict[str, str]:
    return {document["view"]: document["state"] for document in documents if document["view"]}


def test_an_unavailable_catalog_does_not_hide_views_of_the_others(home: Lake) -> None:
    """It is shown with its error and without its password; the exit code says that the result is incomplete."""
    ended = call("status", "--all")
    assert ended.code == 1
    assert "lake.sales.behind  stale" in ended.stdout
    assert "lake.sales.daily  fresh" in ended.stdout
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("error: catalog 'west' does not respond: ")
    assert "s3cr3t" not in ended.stdout + ended.stderr
    assert call("status", "--all", "--check").code == 1
    assert call("status", "--all=lake", "--check").code == 3


def test_the_json_of_an_unavailable_catalog_has_the_fields_of_a_view(home: Lake) -> None:
    """A program that filters by state finds it."""
    ended = call("status", "--all", "--json")
    assert ended.code == 1
    assert states(ended.json) == {"lake.sales.behind": "stale", "lake.sales.daily": "fresh"}
    (unavailable,) = (document for document in ended.json if document["view"] is None)
    assert (unavailable["catalog"], unavailable["state"], unavailable["reasons"][0]["code"]) == (
        "west",
        "unknown",
        "CATALOG_UNREADABLE",
    )
    assert unavailable["reasons"][0]["message"].startswith("catalog 'west' does not respond")
    assert {frozenset(document) for document in ended.json} == {frozenset(unavailable)}
    assert {document["catalog"] for document in ended.json} == {"lake", "west"}


def test_a_base_table_in_an_unavailable_catalog_does_not_hide_other_views(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view's own catalog is available, so the next views can be read."""
    home.table("far")
    home.view("across", sql=QUERY.replace("lake.sales.orders", "lake.sales.far"))
    real = home.catalog.__class__.locate

    def locate(catalog: Any, identifiers: Any) -> Any:
        if any(item.name == "far" for item in identifiers):
            raise CatalogUnavailableError("catalog 'west' does not respond")
        return real(catalog, identifiers)

    monkeypatch.setattr(home.catalog.__class__, "locate", locate)
    ended = call("status", "--all=lake", "--json")
    assert ended.code == 1
    assert states(ended.json) == {
        "lake.sales.across": "unknown",
        "lake.sales.behind": "stale",
        "lake.sales.daily": "fresh",
    }
    error = {"code": "CatalogUnavailableError", "message": "catalog 'west' does not respond", "retryable": True}
    assert json.loads(ended.stderr.strip().splitlines()[-1]) == {"error": error}


def test_a_named_catalog_that_is_unavailable_is_an_error(home: Lake) -> None:
    """No other catalog was requested, so there is nothing to show."""
    ended = call("status", "--all=west")
    assert (ended.code, ended.stdout) == (1, "")
    assert "catalog 'west' does not respond" in ended.stderr


def test_an_unexpected_error_does_not_hide_other_views(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that occurs for one view: its traceback is logged, and the others are shown."""
    real = home.catalog.__class__.load_storage

    def load_storage(catalog: Any, view: Any) -> Any:
        if view.identifier.name == "behind":
            raise ZeroDivisionError("a bug")
        return real(catalog, view)

    monkeypatch.setattr(home.catalog.__class__, "load_storage", load_storage)
    ended = call("status", "--all=lake", "--json")
    assert states(ended.json) == {"lake.sales.behind": "unknown", "lake.sales.daily": "fresh"}
    assert "unexpected ZeroDivisionError" in ended.json[0]["reasons"][0]["message"]
    assert "a bug" in ended.stderr
    ended = call("status", "lake.sales.behind")
    assert ended.code == 1
    assert ended.stderr.splitlines()[-1].startswith("error: unexpected ZeroDivisionError: a bug")


def test_a_view_on_a_stale_view_is_stale_for_every_form_of_status(home: Lake) -> None:
    """Also if the cache knows it: a commit to a table at the end of its chain is seen."""
    home.refresh(home.view("top", "SELECT region FROM sales.behind"))
    commands = [("status", "lake.sales.top"), ("status", "--namespace", "lake.sales"), ("status", "--all=lake")]
    for _ in range(2):
        for command in commands:
            ended = call(*command, "--check")
            assert ended.code == 3
            assert "lake.sales.behind, which it reads, is stale (lake.sales.orders advanced " in ended.stdout
    for view in ("behind", "top"):
        home.refresh(f"sales.{view}")
    assert [call(*command, "--check").code for command in commands] == [0] * 3
    home.append()
    assert [call(*command, "--check").code for command in commands] == [3] * 3


def test_inputs_are_refreshed_with_named_views_only(home: Lake) -> None:
    assert call("refresh", "--all", "lake", "--with-inputs").code == 2
