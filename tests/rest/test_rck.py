# SPDX-License-Identifier: Apache-2.0
"""Iceberg's REST compatibility kit, an independent test suite, is run on this package's view writer and swap."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.builders import lake
from tests.rest.facade import facade
from tests.rest.java import java_command
from tests.services import RestServers

KIT = "org.apache.iceberg.rest.RESTCompatibilityKitViewCatalogTests"
#: One test is for catalogs with an empty namespace; its own assumption skips it.
EXPECTED = {"found": 51, "successful": 50, "aborted": 1, "failed": 0, "skipped": 0}


@pytest.mark.parametrize(
    "database", ["sqlite_uri", pytest.param("postgres_uri", marks=[pytest.mark.postgres, pytest.mark.slow])]
)
def test_the_compatibility_kit_passes_for_views(
    rest_jvm: RestServers, request: pytest.FixtureRequest, database: str, warehouse: Path, tmp_path: Path
) -> None:
    """Its tests create, replace, alter, move, rename, register and drop views, and provoke the conflicts of each.

    That the swap does the same on PostgreSQL is tested by the contract suite.
    """
    uri = str(request.getfixturevalue(database))
    with (
        rest_jvm.serve(uri, warehouse) as upstream,
        lake(uri, warehouse) as home,
        facade(home.iceberg, upstream) as address,
    ):
        command = java_command(
            "org.junit.platform.console.ConsoleLauncher",
            *("execute", "--disable-banner", "--disable-ansi-colors", "--details=tree", f"--select-class={KIT}"),
            options=(
                "-Drck.local=false",  # the kit's own server would listen on every interface
                f"-Drck.uri={address}",
                f"-Duri={address}",
                "-Drck.requires-namespace-create=true",
                f"-Djava.io.tmpdir={tmp_path}",
            ),
        )
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    counts = {word: int(number) for number, word in re.findall(r"\[\s*(\d+) tests (\w+)\s*\]", done.stdout)}
    print({word: counts.get(word) for word in EXPECTED})
    assert {word: counts.get(word) for word in EXPECTED} == EXPECTED, done.stdout + done.stderr
    # Java compresses its view files by default, this package does not: so its writer wrote them.
    views = [path for path in warehouse.rglob("*.metadata.json") if b'"view-uuid"' in path.read_bytes()]
    assert views
    assert not list(warehouse.rglob("*.gz.metadata.json"))
