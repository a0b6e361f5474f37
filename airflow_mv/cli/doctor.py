# SPDX-License-Identifier: Apache-2.0
"""``airflow-mv doctor``: check the environment, the catalogs or a view, and suggest repairs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_mv.cli.context import airflow_connections, open_named
from airflow_mv.common.each import left_out
from airflow_mv.common.status import Chains
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.configured import configured
from airflow_mv.core.spec.identifiers import Identifier, quote
from airflow_mv.core.spec.units import counted
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.maintenance.repair import diagnose
from airflow_mv.extras.spark.session import InProcessStager, settings_of
from airflow_mv.extras.spark.submit import JARS_VARIABLE, OLDEST_JAVA, packaged, spark_versions
from airflow_mv.version import SPARK_OVER_CONNECT, runtime, supported

#: Opens Spark for a catalog.
SparkFor = Callable[[MaterializedViewCatalog], InProcessStager]


@dataclass(frozen=True, slots=True)
class Inspection:
    """One check: what was checked, whether it passed, what was found, and how to repair it.

    ``ok`` is ``None`` for what is missing, and needed only by those who use it.
    """

    check: str
    ok: bool | None
    found: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def examine(
    catalogs: tuple[str, ...], conn_id: str | None = None, *, spark: SparkFor | None = None
) -> Iterator[Inspection]:
    """Check Java, the ways of refreshing that there are here, and the catalogs.

    Args:
        catalogs: Names of catalogs to check; by default all that are configured, or the one of the connection.
        conn_id: An Airflow connection that the catalogs are opened by. It is read as workers read it.
        spark: Opens Spark for a catalog, to run a statement in it; ``None`` starts no Spark.
    """
    ways = list(_ways())
    yield _java(needed=any(way.ok is not None for way in ways[:2]))
    yield from ways
    yield _temporary_files()
    names = catalogs
    if conn_id is not None:
        connection, bound = _connection(conn_id, catalogs)
        yield connection
        names = bound if connection.ok else ()
    elif not names:
        names = tuple(sorted(configured()))
        if not names:
            fix = "set PYICEBERG_CATALOG__<NAME>__TYPE and its other properties, or give --conn-id"
            yield Inspection("catalogs", ok=False, found="none configured", fix=fix)
    for name in names:
        yield from _examine_catalog(name, conn_id, spark)


def _examine_catalog(name: str, conn_id: str | None, spark: SparkFor | None) -> Iterator[Inspection]:
    checks: dict[str, Callable[[MaterializedViewCatalog], Inspection]] = {
        f"catalog {name}": _catalog,
        f"registry of {name}": partial(_registry, conn_id),
        f"jars for {name}": _jars,
    }
    if spark is not None:
        checks[f"Spark with {name}"] = partial(_statement, spark)
    for check, look in checks.items():
        yield _guarded(check, lambda look=look: look(open_named(name, conn_id)))  # type: ignore[misc]


def _connection(conn_id: str, catalogs: tuple[str, ...]) -> tuple[Inspection, tuple[str, ...]]:
    """Read a connection; return further names under which its catalog is opened."""
    check = f"connection {conn_id}"
    try:
        with airflow_connections():
            from airflow_mv.hooks.iceberg import CatalogConnection

            bound = CatalogConnection(conn_id).bound_name()
    except MaterializedViewError as error:
        return Inspection(check, ok=False, found=str(error)), ()
    if bound is None and not catalogs:
        fix = f"airflow-mv doctor CATALOG --conn-id {conn_id}, or set the connection's extra catalog_name"
        return Inspection(check, ok=False, found="it is not bound to the name of a catalog", fix=fix), ()
    found = f"type iceberg, for the catalog {bound}" if bound else "type iceberg, for a catalog of any name"
    return Inspection(check, ok=True, found=found), catalogs or (str(bound),)


def is_view(name: str) -> bool:
    """Whether a name is a view's. A catalog's name has no dot, or is configured under exactly this name."""
    from pyiceberg.utils.config import Config

    known: dict[str, Any] = Config().config.get("catalog") or {}  # type: ignore[assignment]
    return "." in name and name.lower() not in {key.lower() for key in known}


def examine_view(catalog: MaterializedViewCatalog, view: Identifier) -> Iterator[Inspection]:
    """Check a view: its row, its metadata, its storage table's metadata, manifests and base tables."""
    found = diagnose(catalog, view, data=False)
    for item in found.findings:
        fix = f"airflow-mv repair {view}" if item.repairable else item.repair
        yield Inspection(f"{view}: {item.what}", ok=False, found=f"{item.file}: {item.known}", fix=fix)
    if found.view is not None and not found.findings:
        yield Inspection(f"{view}: view metadata", ok=True, found=found.view.metadata_location)
    if found.table is not None and found.checked is not None and not found.findings:
        yield Inspection(f"{view}: storage metadata", ok=True, found=found.table.location)
        snapshots = len(found.table.table.snapshots) if found.table.table else 0
        read = f"{found.checked.files} manifest lists and manifests of {snapshots} snapshots are intact"
        later = f"; `airflow-mv verify {view} --files` checks the data files"
        yield Inspection(f"{view}: snapshots", ok=True, found=read + later)
    yield from _base_tables(catalog, view)


def _base_tables(catalog: MaterializedViewCatalog, view: Identifier) -> Iterator[Inspection]:
    try:
        observation = Chains().observe(catalog, view)
    except MaterializedViewError as error:
        yield Inspection(f"{view}: base tables", ok=False, found=str(error))
        return
    for table in observation.tables:
        fix = "restore the table, or give the view another query: airflow-mv create … --replace"
        found = table.error or f"snapshot {table.head}" if table.head is not None or table.error else "empty"
        yield Inspection(f"{view}: base table {table.identifier}", ok=not table.error, found=found, fix=fix)
    reasons = "; ".join(reason.message for reason in observation.freshness.reasons)
    state = f"{observation.freshness.state}" + (f": {reasons}" if reasons else "")
    yield Inspection(f"{view}: freshness", ok=True, found=state)


def _guarded(check: str, look: Callable[[], Inspection]) -> Inspection:
    try:
        return look()
    except MaterializedViewError as error:
        return Inspection(check, ok=False, found=str(error))
    except Exception as error:  # noqa: BLE001 (the doctor reports whatever is wrong, and continues)
        return Inspection(check, ok=False, found=f"{type(error).__name__}: {error}")


def _java(*, needed: bool) -> Inspection:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    fix = f"install Java {OLDEST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    missing = False if needed else None
    if java is None:
        return Inspection("java", ok=missing, found="none" if home is None else f"none in JAVA_HOME={home}", fix=fix)
    text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', text)
    if match is None:
        return Inspection("java", ok=missing, found=f"{java}, of an unknown version", fix=fix)
    fits = int(match[1]) >= OLDEST_JAVA or missing
    return Inspection("java", fits, f"{match[0].split(chr(34))[1]} ({java})", fix)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ways() -> Iterator[Inspection]:
    """Look which ways of refreshing there are here. One that is not there is no fault: another one may be used."""
    yield _in_process()
    yield _spark_submit()
    yield _connect()
    managed = "the task plans and commits, an operator of the platform runs the job: nothing is needed here"
    yield Inspection("refresh by a managed Spark", ok=True, found=managed)


def _in_process() -> Inspection:
    check = "refresh in this process"
    spark, client = _version("pyspark"), _version("pyspark-client")
    if spark is None:
        fix = "pip install 'airflow-mv[spark]', if this environment accepts these versions"
        return Inspection(check, ok=None, found="PySpark is not installed", fix=fix)
    if client is not None and spark != client:
        # Not each version of PySpark has a client. The lower one of the two probably has both.
        wanted = min(spark, client, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])
        same = f"pyspark-client=={wanted} pyspark=={wanted}"
        fix = f"both write the folder pyspark/: pip install --force-reinstall --no-deps {same}"
        return Inspection(check, ok=False, found=f"PySpark {spark}, and pyspark-client {client}", fix=fix)
    return _of_version(check, spark, f"PySpark {spark}")


def _spark_submit() -> Inspection:
    check = "refresh by spark-submit"
    beside = os.pathsep.join(str(Path(place, "bin")) for place in _places_of("pyspark"))
    program = shutil.which("spark-submit") or (shutil.which("spark-submit", path=beside) if beside else None)
    if program is None:
        fix = "put Spark's bin folder on the PATH, or name another environment's spark-submit with spark_binary"
        return Inspection(check, ok=None, found="there is no spark-submit", fix=fix)
    program = packaged(program)
    spark, scala = spark_versions(Path(os.environ.get("SPARK_HOME") or Path(program).resolve().parent.parent))
    if spark is None:
        return Inspection(check, ok=True, found=f"{program}, of an unknown version")
    return _of_version(check, spark, f"{program}, Spark {spark} (Scala {scala})", scala)


def _of_version(check: str, spark: str, found: str, scala: str | None = None) -> Inspection:
    return Inspection(check, runtime(spark, scala) is not None, found, f"supported are {supported()}")


def _connect() -> Inspection:
    check, client = "refresh over Spark Connect", _version("pyspark-client") or _version("pyspark")
    if client is None or importlib.util.find_spec("grpc") is None:
        return Inspection(check, ok=None, found="there is no client", fix="pip install pyspark-client")
    return Inspection(check, ok=True, found=f"client {client}, for a server of Spark {SPARK_OVER_CONNECT}")


def _temporary_files() -> Inspection:
    """Remove files of killed processes: they hold secrets for Spark."""
    from airflow_mv.extras.spark.submit import sweep

    swept = sweep()
    if swept.failed:
        places = ", ".join(map(str, swept.failed))
        return Inspection(
            "temporary files", ok=False, found=f"cannot remove {places}", fix="remove them: they hold secrets"
        )
    found = "none left" if not swept.removed else f"removed {len(swept.removed)} folders of processes that were killed"
    return Inspection("temporary files", ok=True, found=found)


def _catalog(catalog: MaterializedViewCatalog) -> Inspection:
    name = catalog.name
    if not catalog.holds_views:
        return Inspection(f"catalog {name}", ok=True, found="no materialized views are possible here, only base tables")
    views = counted(len(catalog.list()), "view")
    if left := left_out(catalog):
        found = "; ".join(map(str, left))
        return Inspection(
            f"catalog {name}", ok=False, found=f"{views}. {found}", fix="make the store reachable from here"
        )
    return Inspection(f"catalog {name}", ok=True, found=f"{views}, {_probed(catalog)}")


def _jars(catalog: MaterializedViewCatalog) -> Inspection:
    """Look for the jars where Spark looks first: its own folder, and the caches of Ivy and Maven."""
    packages = settings_of(catalog).packages
    home = os.environ.get("SPARK_HOME")
    own = [Path(home)] if home else [Path(place) for place in _places_of("pyspark")]
    user = Path("~").expanduser()
    folder = os.environ.get(JARS_VARIABLE)
    caches = (*(place / "jars" for place in own), *user.glob(".ivy2*/jars"), *([Path(folder)] if folder else []))
    missing = [
        package
        for package in packages
        for group, name, version in (package.split(":"),)
        if not any(list(place.glob(f"*{name}-{version}.jar")) for place in caches)
        and not list(user.glob(f".ivy2*/cache/{group}/{name}/jars/{name}-{version}.jar"))
        and not (user / ".m2/repository" / group.replace(".", "/") / name / version).is_dir()
    ]
    found = (
        f"{', '.join(packages)}: here" if not missing else f"Spark downloads at its first start: {', '.join(missing)}"
    )
    return Inspection(f"jars for {catalog.name}", ok=True, found=found)


def _places_of(module: str) -> Sequence[str]:
    spec = importlib.util.find_spec(module)
    return (spec.submodule_search_locations or ()) if spec else ()


def _statement(spark: SparkFor, catalog: MaterializedViewCatalog) -> Inspection:
    """Run a statement that loads the catalog's classes in Spark, and asks the catalog."""
    check = f"Spark with {catalog.name}"
    stager = spark(catalog)
    try:
        session = stager.session
        from airflow_mv.common.stored_rows import spark_errors

        with spark_errors("SHOW NAMESPACES"):
            namespaces = session.sql(f"SHOW NAMESPACES IN {quote(catalog.name)}").collect()
        return Inspection(check, ok=True, found=f"Spark {session.version} lists {len(namespaces)} namespaces")
    finally:
        stager.close()


def _registry(conn_id: str | None, catalog: MaterializedViewCatalog) -> Inspection:
    """Show the registry's settings, each with the layer that it comes from."""
    from airflow_mv.extras.registry.registry import registry_of
    from airflow_mv.extras.registry.settings import PLACE, effective

    name = catalog.name
    check = f"registry of {name}"
    registry = registry_of(catalog)
    if registry is None:
        return Inspection(check, ok=True, found=f"none: {PLACE} is not set")
    waiting = registry.count_staged()
    settings = effective(name, catalog.properties, _given(conn_id))
    shown = "; ".join(f"{key} = {value!r} ({layer})" for key, value, layer in settings)
    return Inspection(check, ok=True, found=f"{registry.place}, {waiting} refreshes wait for a sync. {shown}")


def _given(conn_id: str | None) -> dict[str, str]:
    """Return the layer of each property of a catalog that a connection gives."""
    if conn_id is None:
        return {}
    with airflow_connections():
        from airflow_mv.hooks.iceberg import layers_of

        return layers_of(conn_id)


def _probed(catalog: MaterializedViewCatalog) -> str:
    """Write a file to the warehouse and delete it again; return what that shows."""
    warehouse = catalog.properties.get("warehouse")
    probe = catalog.folders.below(warehouse or "", f".airflow-mv-doctor-{uuid.uuid4().hex}")
    if probe is None:
        return "its server chooses the locations"
    if warehouse:
        catalog.files.write(probe, b"")
        catalog.files.delete(probe)
    return f"warehouse {warehouse or 'not set'} can be written"
