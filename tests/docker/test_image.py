# SPDX-License-Identifier: Apache-2.0
"""The image is built and run, and the compose services answer, where a container engine or buildah is."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim-bookworm"
MAX_BYTES = 1_600_000_000
_SECONDS = 3000
#: Spark creates and refreshes a view, with the jars of the image only. A container may have no entry for its own name.
_LIFE = """
set -eu
export SPARK_LOCAL_IP=127.0.0.1 HOME=/tmp
export PYICEBERG_CATALOG__LAKE__URI=sqlite:////tmp/lake.db PYICEBERG_CATALOG__LAKE__WAREHOUSE=file:///tmp/lake
export PYICEBERG_CATALOG__LAKE__TYPE=sql
python -c 'from pyiceberg.catalog import load_catalog; load_catalog("lake").create_namespace("sales")'
airflow-mv create lake.sales.one --sql 'SELECT 1 AS one' --refresh --master 'local[1]'
airflow-mv read lake.sales.one
airflow version
id --user --name
"""


class Docker:
    """An image of Docker or podman.

    Args:
        program: ``docker`` or ``podman``.
    """

    def __init__(self, program: str) -> None:
        self._program, self._name = program, f"airflow-mv-test-{uuid.uuid4().hex[:8]}"

    def pull(self) -> None:
        """Have the base image."""
        if _call(self._program, "image", "inspect", BASE).returncode:
            _required(_call(self._program, "pull", BASE), skip="the base image cannot be pulled")

    def build(self) -> None:
        """Build the image."""
        _required(_call(self._program, "build", "-t", self._name, "-f", "docker/Dockerfile", "."))

    def run(self, script: str) -> str:
        """Run a script in a new container, and return what it prints."""
        return _required(_call(self._program, "run", "--rm", self._name, "bash", "-c", script))

    def size(self) -> int:
        """Return the size of its files in bytes."""
        return int(_required(_call(self._program, "image", "inspect", "--format", "{{.Size}}", self._name)))

    def remove(self) -> None:
        """Delete the image."""
        _call(self._program, "rmi", "--force", self._name)


class Buildah(Docker):
    """An image of buildah, which needs neither a daemon nor kernel features."""

    def __init__(self) -> None:
        super().__init__("buildah")
        self._container = ""

    def pull(self) -> None:
        """Have the base image."""
        if _call("buildah", "inspect", "--type", "image", BASE).returncode:
            _required(_call("buildah", "pull", BASE), skip="the base image cannot be pulled")

    def build(self) -> None:
        """Build the image, and a container from it."""
        _required(_call("buildah", "bud", "--isolation", "chroot", "-t", self._name, "-f", "docker/Dockerfile", "."))
        self._container = _required(_call("buildah", "from", "--pull-never", self._name))

    def run(self, script: str) -> str:
        """Run a script in the container, and return what it prints."""
        return _required(_call("buildah", "run", "--isolation", "chroot", self._container, "--", "bash", "-c", script))

    def size(self) -> int:
        """Return the size of its files in bytes."""
        folder = _required(_call("buildah", "mount", self._container))
        return int(_required(_call("du", "-sxb", folder)).split()[0])

    def remove(self) -> None:
        """Delete container and image."""
        _call("buildah", "rm", self._container)
        _call("buildah", "rmi", "--force", self._name)


@pytest.fixture(scope="module")
def image() -> Iterator[Docker]:
    """The image."""
    found: Docker | None = next((Docker(name) for name in ("docker", "podman") if _is_running(name)), None)
    if found is None and shutil.which("buildah"):
        found = Buildah()
    if found is None:
        pytest.skip("neither docker nor podman is running, and buildah is not installed: the image was NOT built")
    found.pull()
    try:
        found.build()
        yield found
    finally:
        found.remove()


def _is_running(program: str) -> bool:
    return shutil.which(program) is not None and _call(program, "info").returncode == 0


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    # This storage driver works everywhere, inside of another container, too.
    environment = {**os.environ, "STORAGE_DRIVER": "vfs"} if command[0] == "buildah" else None
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def _required(done: subprocess.CompletedProcess[str], skip: str | None = None) -> str:
    problem = f"{' '.join(done.args)}: {(done.stdout + done.stderr)[-3000:]}"
    if done.returncode and skip:
        pytest.skip(f"{skip}: {problem}")
    assert done.returncode == 0, problem
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS)
def test_the_image_has_all_that_a_refresh_needs_and_is_small(image: Docker) -> None:
    lines = image.run(_LIFE).splitlines()
    assert any("refreshed" in line for line in lines)
    assert lines[-1] == "airflow"
    assert image.run("ls /opt/airflow-mv/jars | grep -c iceberg-aws-bundle") == "1"
    assert image.size() < MAX_BYTES


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS)
def test_the_compose_services_become_healthy_and_answer() -> None:
    if not _is_running("docker") or _call("docker", "compose", "version").returncode:
        pytest.skip("no running docker with compose: the services were NOT started")
    compose = ("docker", "compose", "-f", "docker/compose.yaml", "-p", f"airflow-mv-{uuid.uuid4().hex[:8]}")
    try:
        _required(_call(*compose, "up", "--build", "--detach", "--wait", "--wait-timeout", "1200"))
        with urllib.request.urlopen("http://127.0.0.1:8080/api/v2/version", timeout=30) as answer:
            assert b"version" in answer.read()
        connections = _required(_call(*compose, "exec", "-T", "airflow-scheduler", "airflow-mv", "doctor"))
        assert "iceberg_default" in connections
    finally:
        _call(*compose, "down", "--volumes")
