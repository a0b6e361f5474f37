# SPDX-License-Identifier: Apache-2.0
"""``airflow-mv explain``: no Spark, nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import lake
from tests.cli.support import call
from tests.engine.support import reload_configuration, without_catalogs

SQL = "SELECT region, sum(amount) AS amount FROM sales.orders GROUP BY region"


def test_a_query_and_a_view_are_explained(
    sqlite_uri: str, warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query alone, in a file, for a view to be, and of a view; a requirement sets the exit code."""
    without_catalogs(monkeypatch)
    for name, value in {"TYPE": "sql", "URI": sqlite_uri, "WAREHOUSE": str(warehouse)}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    reload_configuration()
    file = tmp_path / "view.sql"
    file.write_text(SQL.replace("sales.orders", "orders"), encoding="utf-8")
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        home.view("daily", SQL, refresh_strategy="incremental")
        text = call("explain", "--sql", SQL.replace("sales.", "lake.sales."))
        assert text.code == 0, text.stderr
        assert "delete    full, not replace-keys  full 0.5 s reading" in text.stdout
        assert "delete, update, overwrite: no merge: add count(amount), count(*) to the view" in text.stdout
        assert (
            "\nSELECT region, sum(amount) AS amount, count(*) AS row_count, count(amount) AS count_amount"
            in text.stdout
        )
        # Few rows are recomputed in any case, so the other query is no faster, unless the view asks for such modes.
        assert "With tables of the present size no refresh would take less time:" in text.stdout
        home.view("eager", SQL, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000000"})
        assert "This query would be refreshed more cheaply:" in call("explain", "lake.sales.eager").stdout
        before = home.rows_of_catalog()
        ways = (("--sql", SQL), ("lake.sales.new", "--file", str(file)), ("lake.sales.daily",))
        documents = [call("explain", *way, "--json").json for way in ways]
        modes = [[item["possible"] for item in document["prospects"]] for document in documents]
        assert modes == [["merge", *["replace-keys"] * 3, "fast-forward"]] * 3
        assert documents[0]["columns"][1] == {"name": "amount", "type": "bigint"}
        assert documents[0]["advice"]["differs"][0] == "one more column: row_count, count(*)"
        refused = call("explain", "lake.sales.daily", "--require", "delete=merge")
        assert (refused.code, "delete of lake.sales.orders needs replace-keys" in refused.stderr) == (1, True)
        wrong = call("explain", "--sql", SQL.replace("sales.", "lake.sales.").replace("region,", "regoin,"))
        assert (wrong.code, wrong.stdout) == (1, "")
        assert "line 1, column 8: cannot resolve the column regoin; did you mean 'region'?" in wrong.stderr
        assert call("explain").code == 2
        assert home.rows_of_catalog() == before
