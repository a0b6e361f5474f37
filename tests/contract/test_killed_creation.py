# SPDX-License-Identifier: Apache-2.0
"""A process that creates a view behind a REST server is killed at each of its changes, before and after it lands."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from airflow_mv.actions import maintain_view
from airflow_mv.errors import AlreadyExistsError
from airflow_mv.extras.maintenance.drop import drop
from tests.builders import Lake, lake
from tests.contract.support import NORTH, SOUTH, VIEW
from tests.rest.proxy import Forwarding
from tests.services import http_server

ROOT = Path(__file__).parents[2]
#: What the process does; the address is its argument.
CREATION = """
import sys
from pyiceberg.catalog import load_catalog
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from tests.builders import QUERY
from tests.duck import DuckStager

iceberg = load_catalog("lake", type="rest", uri=sys.argv[1])
catalog = MaterializedViewCatalog(iceberg)
create(catalog, "sales.daily", Definition(QUERY, layout="table"), stager=DuckStager(catalog, iceberg))
"""


@dataclass
class Creations:
    """A lake behind a proxy that kills its client."""

    lake: Lake
    address: str
    #: The process that is to be killed.
    victims: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills_at: int = 0
    landed: bool = False
    changes: int = 0

    def killed(self, number: int, *, landed: bool) -> bool:
        """Start a creation that is killed at a change; return whether it was."""
        self.changes, self.kills_at, self.landed = 0, number, landed
        with subprocess.Popen([sys.executable, "-c", CREATION, self.address], cwd=ROOT) as process:
            self.victims.append(process)
            code = process.wait(120)
        self.kills_at = 0
        assert code in (0, -9)
        return code == -9


@pytest.fixture
def creations(rest_uri: str, warehouse: Path) -> Iterator[Creations]:
    made: list[Creations] = []

    class Handler(Forwarding):
        other = urlsplit(rest_uri).netloc

        def answer(self, body: bytes) -> None:
            if self.command != "GET" and made and made[0].kills_at:
                made[0].changes += 1
                if made[0].changes == made[0].kills_at:
                    if made[0].landed:
                        self.forwarded(body)
                    made[0].victims[-1].kill()
                    return
            super().answer(body)

    with ExitStack() as stack:
        address = f"http://127.0.0.1:{stack.enter_context(http_server(Handler))}"
        found = Creations(stack.enter_context(lake(address, warehouse, layout="table")), address)
        found.lake.table()
        made.append(found)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True])
def test_after_a_kill_at_any_change_a_later_creation_makes_the_one_view(creations: Creations, landed: bool) -> None:
    home = creations.lake
    for number in itertools.count(1):
        if not creations.killed(number, landed=landed):
            break
        with suppress(AlreadyExistsError):  # it was killed after its last commit
            home.view()
        assert [str(view) for view in home.catalog.list()] == ["lake.sales.daily"]
        assert home.refresh().outcome == "refreshed"
        assert home.read() == [NORTH, SOUTH]
        maintain_view(home.catalog, VIEW, older_than=timedelta(0))
        assert sorted(home.iceberg.list_tables("sales")) == [("sales", "daily"), ("sales", "orders")]
        drop(home.catalog, VIEW)
    assert number > 5, "a template, a branch and a tag, the table, its definition"
