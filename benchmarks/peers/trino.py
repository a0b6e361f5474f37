# SPDX-License-Identifier: Apache-2.0
"""Trino 470 and its own materialized views."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.peers.lake import Lake, numbers, numbers_of
from benchmarks.peers.turns import Fingerprint, Turn
from benchmarks.tpch import CATALOG
from tests.engine.trino import Trino, trino_server
from tests.services import rest_server

_JVM = ("-Xmx4g", "-XX:+UseG1GC", "-XX:ReservedCodeCacheSize=512M")


class TrinoViews:
    """``REFRESH MATERIALIZED VIEW`` on a server that runs.

    Trino's REST and JDBC catalogs refuse materialized views, so its catalog is its metastore of files, the fastest one.
    Before each stage the base tables' metadata files are registered there, which is not timed.
    """

    title = "Trino 470, running server"
    name = "trino"
    runs_already = True

    def __init__(self, lake: Lake, server: Trino) -> None:
        self.lake = lake
        self.server = server
        self.schema = lake.tables.namespace
        self._known: set[str] = set()
        self._number = 0
        server.query(f"CREATE SCHEMA {CATALOG}.{self.schema}")

    def build(self) -> Turn:
        """Create the views, and fill them."""
        self._register()
        turn = Turn()
        for view in self.lake.views:
            self.server.query(f"DROP MATERIALIZED VIEW IF EXISTS {self._name(view)}")
            started = time.perf_counter()
            self.server.query(f"CREATE MATERIALIZED VIEW {self._name(view)} AS {self.lake.query(view)}")
            turn.modes[view] = self._refreshed(view)
            turn.seconds[view] = time.perf_counter() - started
        return turn

    def refresh(self) -> Turn:
        """Refresh the views."""
        self._register()
        turn = Turn()
        for view in self.lake.views:
            started = time.perf_counter()
            turn.modes[view] = self._refreshed(view)
            turn.seconds[view] = time.perf_counter() - started
        return turn

    def holds(self, view: str) -> Fingerprint:
        """Return what the view holds now."""
        ((*found,),) = self.server.query(numbers_of(view, self._name(view))).rows
        return numbers(found)

    def _name(self, view: str) -> str:
        return f"{CATALOG}.{self.schema}.{view}"

    def _refreshed(self, view: str) -> str:
        ((rows,),) = self.server.query(f"REFRESH MATERIALIZED VIEW {self._name(view)}").rows
        if not rows:
            return "noop"
        ((stored,),) = self.server.query(f"SELECT count(*) FROM {self._name(view)}").rows
        return "full" if rows == stored else "append"

    def _register(self) -> None:
        """Register the base tables as they are now. Trino wants a table's metadata files below its location."""
        self._number += 1
        for table, location in self.lake.base_metadata().items():
            folder = urlsplit(location).path.rpartition("/metadata/")[0]
            document = json.loads(Path(urlsplit(location).path).read_text())
            document["location"] = f"file://{folder}"
            name = f"{self._number:05d}-{uuid.uuid4()}.metadata.json"
            Path(f"{folder}/metadata/{name}").write_text(json.dumps(document))
            if table in self._known:
                self._call(f"unregister_table('{self.schema}', '{table}')")
            self._call(f"register_table('{self.schema}', '{table}', 'file://{folder}', '{name}')")
            self._known.add(table)

    def _call(self, procedure: str) -> None:
        self.server.query(f"CALL {CATALOG}.system.{procedure}")


def refusal(server: Trino, lake: Lake) -> str:
    """Return what Trino says to a materialized view in a REST catalog; empty if it makes one."""
    view, namespace = lake.views[0], lake.namespace("trino_rest")
    with rest_server(lake.warehouse.properties["uri"], lake.warehouse.folder / "warehouse") as address:
        properties = {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": address}
        with server.catalog(CATALOG, properties):
            try:
                server.query(f"CREATE MATERIALIZED VIEW {CATALOG}.{namespace}.{view} AS {lake.query(view)}")
            except RuntimeError as error:
                return str(error)
    return ""


@contextmanager
def trino_views(lake: Lake) -> Iterator[tuple[TrinoViews, str]]:
    """Yield Trino's views, and its refusal of them in a REST catalog.

    Raises:
        ServiceUnavailableError: Its programs cannot be fetched, or it does not start.
    """
    folder = lake.scratch / "trino"
    (folder / "metastore").mkdir(parents=True)
    properties = {
        "iceberg.catalog.type": "TESTING_FILE_METASTORE",
        "hive.metastore.catalog.dir": (folder / "metastore").as_uri(),
        "iceberg.register-table-procedure.enabled": "true",
    }
    with trino_server(folder, _JVM, {}) as server:
        refused = refusal(server, lake)
        with server.catalog(CATALOG, properties):
            yield TrinoViews(lake, server), refused
