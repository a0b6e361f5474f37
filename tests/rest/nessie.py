# SPDX-License-Identifier: Apache-2.0
"""A Nessie server on the loopback, as a REST catalog with a warehouse on S3, with its state in memory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.protocol.foreign import BucketStore
from tests.rest.java import ServiceUnavailableError, cache_folder, newer_java, program, run
from tests.services import free_port

VERSION = "0.99.0"
_SERVER = f"org.projectnessie.nessie:nessie-quarkus:{VERSION}:jar:runner"
_OPTIONS = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_SECONDS = 240
_KEYS = "tests.s3"


@contextmanager
def nessie_server(bucket: BucketStore) -> Iterator[str]:
    """Yield the address of a server, for pyiceberg: ``type=rest, uri=<address>``. It signs no requests to the store.

    Args:
        bucket: The store of its warehouse.

    Raises:
        ServiceUnavailableError: Its programs cannot be fetched, or it does not start.
    """
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="airflow-mv-nessie-"))
    store = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": str(free_port()),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "lake",
        "nessie.catalog.warehouses.lake.location": bucket.warehouse,
        f"{store}.endpoint": bucket.endpoint,
        f"{store}.path-style-access": "true",
        f"{store}.region": bucket.access["s3.region"],
        f"{store}.request-signing-enabled": "false",
        f"{store}.access-key": f"urn:nessie-secret:quarkus:{_KEYS}",
        f"{_KEYS}.name": bucket.access["s3.access-key-id"],
        f"{_KEYS}.secret": bucket.access["s3.secret-access-key"],
    }
    command = [str(newer_java()), *_OPTIONS, *(f"-D{key}={value}" for key, value in settings.items())]
    try:
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen([*command, "-jar", str(_jar())], cwd=folder, stdout=log, stderr=log) as server,
        ):
            try:
                _wait(f"http://127.0.0.1:{port}/iceberg/v1/config", server, folder / "log")
                yield f"http://127.0.0.1:{port}/iceberg"
            finally:
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def empty_nessie(properties: dict[str, str]) -> None:
    """Drop all tables and namespaces."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", **properties)
    for space in catalog.list_namespaces():
        for name in catalog.list_tables(space):
            catalog.drop_table(name)
        catalog.drop_namespace(space)


def _jar() -> Path:
    """Return the server, which is fetched if necessary: 245 MB."""
    jar = cache_folder() / f"nessie-{VERSION}.jar"
    if not jar.is_file():
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as new:
            copy = ["dependency:copy", f"-Dartifact={_SERVER}", f"-DoutputDirectory={new}"]
            run([program("mvn"), "-q", "-B", *copy], "Maven found no Nessie")
            next(Path(new).glob("*.jar")).rename(jar)
    return jar


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=30):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise ServiceUnavailableError(f"Nessie does not start: {log.read_text()[-3000:]}")
