# SPDX-License-Identifier: Apache-2.0
"""A Trino server on the loopback, with the Iceberg connector only, and a client for its HTTP interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rest.java import ServiceUnavailableError, cache_folder, newer_java, program, run
from tests.services import free_port

_SERVER = "io.trino:trino-server:470:tar.gz"
_START_SECONDS = 240
_ANSWER_SECONDS = 120
#: A server for some rows, which starts quickly.
SMALL_JVM = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SMALL_MEMORY = {
    "query.max-memory": "200MB",
    "query.max-memory-per-node": "200MB",
    "memory.heap-headroom-per-node": "200MB",
}


@dataclass(frozen=True)
class Answer:
    """The result of a query: names of columns, and sorted rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Trino:
    """A running server.

    Args:
        address: Its URL.
    """

    address: str

    @contextmanager
    def catalog(self, name: str, properties: dict[str, str]) -> Iterator[None]:
        """Have an Iceberg catalog on local files until the block ends."""
        shown = {"fs.hadoop.enabled": "true", **properties}
        settings = ", ".join(f"\"{key}\" = '{value}'" for key, value in shown.items())
        self.query(f"CREATE CATALOG {name} USING iceberg WITH ({settings})")
        try:
            yield
        finally:
            self.query(f"DROP CATALOG {name}")

    def query(self, sql: str) -> Answer:
        """Run a statement.

        Raises:
            RuntimeError: Trino's message.
        """
        columns: tuple[str, ...] = ()
        rows: list[tuple[Any, ...]] = []
        page = self._call(f"{self.address}/v1/statement", sql)
        while True:
            if "error" in page:
                raise RuntimeError(page["error"]["message"])
            columns = tuple(column["name"] for column in page.get("columns", ())) or columns
            rows += [tuple(row) for row in page.get("data", ())]
            if "nextUri" not in page:
                return Answer(columns, tuple(sorted(rows)))
            page = self._call(page["nextUri"])

    def is_ready(self) -> bool:
        """Whether it has started."""
        try:
            return not self._call(f"{self.address}/v1/info")["starting"]
        except (urllib.error.URLError, OSError):
            return False

    def _call(self, address: str, body: str | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            address, data=body.encode() if body else None, headers={"X-Trino-User": "test"}
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
            return dict(json.load(response))


@contextmanager
def trino_server(
    folder: Path, jvm: Sequence[str] = SMALL_JVM, properties: Mapping[str, str] = SMALL_MEMORY
) -> Iterator[Trino]:
    """Yield a server without catalogs.

    Args:
        folder: For its configuration and log.
        jvm: Options of its JVM.
        properties: Settings besides those that every server here has.

    Raises:
        ServiceUnavailableError: Its programs cannot be fetched, or it does not start.
    """
    programs, port = _prepared(), free_port()
    _configure(folder, port, properties)
    command = [str(newer_java()), *jvm]
    command += ["-Dfile.encoding=UTF-8", f"-Dconfig={folder}/config.properties", f"-Dnode.data-dir={folder}/data"]
    command += ["-cp", f"{programs}/lib/*", "io.trino.server.TrinoServer"]
    log = folder / "trino.log"
    with log.open("w") as output, subprocess.Popen(command, cwd=programs, stdout=output, stderr=output) as process:
        try:
            server = Trino(f"http://127.0.0.1:{port}")
            _wait(server, process, log)
            yield server
        finally:
            process.terminate()


def _wait(server: Trino, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while not server.is_ready():
        if process.poll() is not None or time.monotonic() > end:
            raise ServiceUnavailableError(f"Trino does not start: {log.read_text()[-3000:]}")
        time.sleep(0.5)


def _configure(folder: Path, port: int, more: Mapping[str, str]) -> None:
    properties = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "node.environment": "test",
        "http-server.http.port": str(port),
        "discovery.uri": f"http://127.0.0.1:{port}",
        "catalog.management": "dynamic",
        "catalog.store": "memory",
        **more,
    }
    lines = (f"{key}={value}\n" for key, value in properties.items())
    (folder / "config.properties").write_text("".join(lines))


def _prepared() -> Path:
    """Return the folder with Trino's jars, which is filled if necessary."""
    folder = cache_folder() / f"trino-{_SERVER.split(':')[2]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        copy = ["dependency:copy", f"-Dartifact={_SERVER}", f"-DoutputDirectory={new}"]
        run([program("mvn"), "-q", "-B", *copy], "Maven found no Trino")
        _unpack(next(new.glob("*.tar.gz")), new)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Keep the server and one of its plugins. They are hard links to files of others, so all are unpacked first."""
    whole = folder / "whole"
    whole.mkdir()
    run([program("tar"), "xzf", str(archive), "-C", str(whole), "--strip-components=1"], "Trino cannot be unpacked")
    (whole / "lib").rename(folder / "lib")
    (folder / "plugin").mkdir()
    (whole / "plugin" / "iceberg").rename(folder / "plugin" / "iceberg")
    shutil.rmtree(whole)
    archive.unlink()
