# SPDX-License-Identifier: Apache-2.0
"""A Hive Metastore 3.1 on the loopback, with its database in memory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from tests.services import ServiceUnavailableError, free_port

_HERE = Path(__file__).parent
_SECONDS = 240
_SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:hive;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "metastore.disallow.incompatible.col.type.changes": "false",
    "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
    "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
    "derby.stream.error.file": "/dev/null",
}
_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Hive needs Hadoop and a log, which PySpark has.
_OF_SPARK = ("hadoop-client-*.jar", "slf4j-api*.jar", "log4j*.jar", "commons-*.jar", "jakarta.servlet*.jar")


@contextmanager
def hive_metastore() -> Iterator[str]:
    """Yield the address of a Hive Metastore.

    Raises:
        ServiceUnavailableError: Java or Maven is not installed, or it did not start.
    """
    folder, port = Path(tempfile.mkdtemp(prefix="airflow-mv-hive-")), free_port()
    settings = {**_SETTINGS, "metastore.warehouse.dir": f"file://{folder}/warehouse"}
    try:
        command = ["java", *_OPTIONS, *(f"-D{key}={value}" for key, value in settings.items())]
        command += ["-cp", _class_path(folder), str(_HERE / "Metastore.java"), "-p", str(port)]
        with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as server:
            try:
                _wait_for(server, port, folder / "log")
                yield f"thrift://127.0.0.1:{port}"
            finally:
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def empty_metastore(address: str) -> None:
    """Drop all databases of a metastore but its own."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", type="hive", uri=address)
    for (name,) in catalog.list_namespaces():
        if name != "default":
            with catalog._client as client:  # type: ignore[attr-defined]
                client.drop_database(name, deleteData=False, cascade=True)


def _class_path(folder: Path) -> str:
    found = folder / "classpath"
    maven = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:build-classpath"]
    try:
        subprocess.run([*maven, f"-Dmdep.outputFile={found}"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServiceUnavailableError(f"a Hive Metastore needs Maven and Java: {error}") from None
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).with_name("jars")
    return os.pathsep.join([found.read_text(), *(str(jar) for name in _OF_SPARK for jar in jars.glob(name))])


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise ServiceUnavailableError(f"the Hive Metastore did not start: {log.read_text()[-3000:]}")
