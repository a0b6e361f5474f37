# SPDX-License-Identifier: Apache-2.0
"""A YARN of one node on the loopback: its two servers. Containers are processes of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.rest.java import ServiceUnavailableError, cache_folder, program, run
from tests.services import free_port

_POM = Path(__file__).with_name("pom.xml")
_START_SECONDS = 240
_SERVERS = (
    "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
)
#: The web applications of Hadoop 3.4 need the last one on Java 17.
_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")
_ADDRESSES = (
    *("resourcemanager.address", "resourcemanager.scheduler.address", "resourcemanager.resource-tracker.address"),
    *("resourcemanager.admin.address", "resourcemanager.webapp.address"),
    *("nodemanager.address", "nodemanager.localizer.address", "nodemanager.webapp.address"),
)
_SETTINGS = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    "yarn.nodemanager.delete.debug-delay-sec": "0",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}
#: Without it Hadoop logs nothing.
_LOG = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.SimpleLayout
"""


@dataclass(frozen=True)
class Yarn:
    """A running YARN.

    Args:
        web: The URL of its ResourceManager.
        settings: The folder with ``yarn-site.xml``, for ``YARN_CONF_DIR``.
    """

    web: str
    settings: Path

    def get(self, path: str) -> Any:
        """Return an answer of the ResourceManager's REST interface."""
        with urllib.request.urlopen(f"{self.web}/ws/v1/cluster/{path}", timeout=60) as answer:
            return json.load(answer)

    def applications(self) -> list[str]:
        """Return the final status of each application, the oldest first."""
        found = (self.get("apps")["apps"] or {"app": []})["app"]
        return [str(item["finalStatus"]) for item in sorted(found, key=lambda item: int(item["startedTime"]))]

    def kill_the_running_one(self) -> None:
        """Kill the application that has not ended, as an administrator does."""
        (running,) = (item["id"] for item in self.get("apps")["apps"]["app"] if item["finalStatus"] == "UNDEFINED")
        url, body = f"{self.web}/ws/v1/cluster/apps/{running}/state", json.dumps({"state": "KILLED"}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def logs(self) -> str:
        """Return the logs of all containers, and the scripts that have started them."""
        files = [path for path in (self.settings / "log").rglob("*") if path.is_file()]
        return "".join(path.read_text(errors="replace") for path in files)


@contextmanager
def yarn_cluster() -> Iterator[Yarn]:
    """Yield a YARN that has room for one or two applications at once.

    Raises:
        ServiceUnavailableError: Java or Maven is not installed, or it did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="airflow-mv-yarn-"))
    path = os.pathsep.join([str(folder), _class_path()])
    try:
        with ExitStack() as stack:
            addresses = {f"yarn.{name}": f"127.0.0.1:{free_port()}" for name in _ADDRESSES}
            _write_settings(folder, addresses)
            log = stack.enter_context((folder / "servers.log").open("w"))
            for server in _SERVERS:
                command = [program("java"), *_OPTIONS, "-cp", path, server]
                stack.callback(_stop, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
            yarn = Yarn(f"http://{addresses['yarn.resourcemanager.webapp.address']}", folder)
            _wait(yarn, folder / "servers.log")
            yield yarn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_settings(folder: Path, addresses: dict[str, str]) -> None:
    own = {f"yarn.nodemanager.{name}-dirs": str(folder / name) for name in ("local", "log")}
    root = ElementTree.Element("configuration")
    for name, value in {**_SETTINGS, **addresses, **own}.items():
        entry = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(entry, "name").text = name
        ElementTree.SubElement(entry, "value").text = value
    ElementTree.ElementTree(root).write(folder / "yarn-site.xml")
    (folder / "log4j.properties").write_text(_LOG)


def _wait(yarn: Yarn, log: Path) -> None:
    """Wait until the node has joined."""
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        try:
            if yarn.get("metrics").get("clusterMetrics", {}).get("activeNodes"):
                return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    raise ServiceUnavailableError(f"YARN does not start: {log.read_text()[-3000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End a server; a NodeManager ends its containers."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _class_path() -> str:
    """Return YARN's jars, which are fetched if necessary."""
    found = cache_folder() / "yarn-classpath"
    fresh = found.is_file() and found.stat().st_mtime > _POM.stat().st_mtime
    if not fresh or not all(Path(jar).is_file() for jar in found.read_text().split(os.pathsep)):
        found.parent.mkdir(parents=True, exist_ok=True)
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found}"]
        run([program("mvn"), "-q", "-B", "-f", str(_POM), *goal], "Maven found no YARN")
    return found.read_text()
