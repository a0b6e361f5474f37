# SPDX-License-Identifier: Apache-2.0
"""The compose file and the image, as far as they can be checked without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.fernet import Fernet

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {"airflow-init"}


def _compose_command() -> list[str]:
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose"]
    if standalone := shutil.which("docker-compose"):
        return [standalone]
    pytest.skip("neither `docker compose` nor `docker-compose` is installed: docker/compose.yaml was NOT validated")


def _resolved() -> dict[str, Any]:
    command = [*_compose_command(), "-f", str(DOCKER / "compose.yaml"), "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resolved: dict[str, Any] = yaml.safe_load(done.stdout)
    return resolved


def _default(text: str) -> str:
    """Substitute the defaults of `${NAME:-default}`, as compose does."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_compose_accepts_the_file() -> None:
    """compose itself validates the file, without an engine."""
    assert _resolved()["services"].keys() == SERVICES.keys()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_mounts_only_existing_files(name: str) -> None:
    """Docker would create an empty folder for a missing path and start the service with it."""
    for volume in SERVICES[name].get("volumes", ()):
        source, target, *_ = volume.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (DOCKER / source).exists(), volume
        else:
            assert source in COMPOSE["volumes"], volume


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_published_port_is_reachable_from_this_host_only(name: str) -> None:
    """The default secrets are public until they are changed."""
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORT:-\d+\}:\d+", port), port


def test_no_two_services_publish_the_same_port() -> None:
    """Only one of them would start."""
    ports = [_default(port).split(":")[1] for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == len(set(ports))


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_waits_only_for_services_with_a_health_check(name: str) -> None:
    """Waiting for the health of a service without a health check never ends."""
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert how["condition"] == "service_completed_successfully"
            assert other in ONE_SHOT


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - ONE_SHOT))
def test_a_long_running_service_has_a_health_check_on_a_port_it_listens_on(name: str) -> None:
    """A check of a closed port would block all services that wait for it."""
    check = " ".join(SERVICES[name]["healthcheck"]["test"])
    command = _default(str(SERVICES[name].get("command", "")))
    for port in re.findall(r"localhost:(\d+)", check):
        assert re.search(rf"port {port}\b", command), (check, command)


def test_the_connections_are_those_that_the_operators_use_by_default() -> None:
    """Otherwise only the first task that uses a connection would report invalid JSON."""
    environment = SERVICES["airflow-scheduler"].get("environment") or COMPOSE["x-airflow"]["environment"]
    iceberg = json.loads(_default(environment["AIRFLOW_CONN_ICEBERG_DEFAULT"]))
    spark = json.loads(_default(environment["AIRFLOW_CONN_SPARK_DEFAULT"]))
    assert iceberg["conn_type"] == "iceberg"
    assert iceberg["extra"]["uri"].startswith("postgresql+psycopg2://")
    assert f"{spark['host']}:{spark['port']}" == "spark://spark-master:7077"
    assert spark["host"].removeprefix("spark://") in SERVICES


def test_all_containers_of_airflow_have_one_fernet_key() -> None:
    """Each would generate its own, and could not read a connection that another one has stored."""
    services = [service for name, service in SERVICES.items() if name.startswith("airflow-")]
    keys = {_default(service["environment"]["AIRFLOW__CORE__FERNET_KEY"]) for service in services}
    assert len(services) == 5
    (key,) = keys
    assert Fernet(key).decrypt(Fernet(key).encrypt(b"password")) == b"password"


def test_postgres_is_healthy_only_when_it_answers_by_tcp() -> None:
    """Before that its entry point runs a temporary server, without the database of the catalog, on a socket."""
    assert "--host=127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"]


def test_two_refreshes_fit_into_the_spark_worker() -> None:
    """An application without a limit takes all cores of a standalone cluster, and the next one waits without a word."""
    connection = json.loads(_default(COMPOSE["x-airflow"]["environment"]["AIRFLOW_CONN_ICEBERG_DEFAULT"]))
    (cores,) = re.findall(r"--cores (\d+)", _default(SERVICES["spark-worker"]["command"]))
    assert 2 * int(connection["extra"]["spark.cores.max"]) <= int(cores)


def test_every_setting_of_the_compose_file_is_explained() -> None:
    """Nobody finds a variable that only the file names."""
    settings = set(re.findall(r"\$\{(\w+):-", (DOCKER / "compose.yaml").read_text()))
    explained = (DOCKER / "README.md").read_text()
    assert [name for name in settings if name not in explained] == []


def test_the_warehouse_is_mounted_at_the_same_path_in_every_service() -> None:
    """Iceberg metadata has absolute paths."""
    connection = json.loads(_default(COMPOSE["x-airflow"]["environment"]["AIRFLOW_CONN_ICEBERG_DEFAULT"]))
    folder = connection["extra"]["warehouse"].removeprefix("file://")
    for name in ("airflow-scheduler", "airflow-triggerer", "spark-worker"):
        assert f"warehouse:{folder}" in SERVICES[name]["volumes"], name


def test_the_dockerfile_copies_only_existing_files_that_are_not_ignored() -> None:
    """A build fails only after minutes, and only on a host with an engine."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in (DOCKER / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source


def test_the_catalog_s_database_is_created_by_the_init_script() -> None:
    assert "CREATE DATABASE iceberg;" in (DOCKER / "postgres-init.sql").read_text()


def test_the_install_script_is_valid_and_uses_only_files_of_the_image() -> None:
    """A failure would be visible only in the build's log."""
    script = DOCKER / "install.sh"
    subprocess.run(["bash", "-n", script], check=True)
    dockerfile = (DOCKER / "Dockerfile").read_text()
    for used in re.findall(r"\$SOURCE/([\w./-]+)", script.read_text()):
        assert (ROOT / used).exists(), used
        assert used in dockerfile, used


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_install_script_creates_a_working_environment(tmp_path: Path) -> None:
    """The image's content without the image: the command, Airflow, Spark and its jars start from it."""
    context, prefix = tmp_path / "source", tmp_path / "prefix"
    (context / "docker").mkdir(parents=True)
    scripts = ("install.sh", "check-jars.sh", "jars.sha256", "requirements.txt")
    for name in ("pyproject.toml", "README.md", "LICENSE", *(f"docker/{script}" for script in scripts)):
        shutil.copy(ROOT / name, context / name)
    shutil.copytree(ROOT / "airflow_mv", context / "airflow_mv")
    subprocess.run(["bash", context / "docker" / "install.sh", prefix], check=True, timeout=1100)
    shutil.rmtree(context)  # the installed environment must not need it
    programs = prefix / "venv" / "bin"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "AIRFLOW_HOME": str(tmp_path / "airflow")}
    for command in (["airflow-mv", "--help"], ["airflow", "version"], ["spark-submit", "--version"]):
        subprocess.run([programs / command[0], *command[1:]], check=True, env=environment, cwd=tmp_path)
    jars = {path.name for path in (prefix / "jars").glob("*.jar")}
    assert any("iceberg-spark-runtime" in name for name in jars)
    assert any("postgresql" in name for name in jars)
    assert any("iceberg-aws-bundle" in name for name in jars)
