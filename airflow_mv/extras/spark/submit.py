# SPDX-License-Identifier: Apache-2.0
"""Build the package, settings and command with which spark-submit runs a script. Standard library only."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_mv.errors import ConfigurationError

log = logging.getLogger(__name__)

_ROOT = Path(__file__).parents[2]
#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA = 17
#: ZIP's earliest date, so that the same sources give the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SHIPPED = (
    "__init__.py",
    "errors.py",
    "foundation/__init__.py",
    "foundation/documents.py",
    "foundation/lazy.py",
    "foundation/redaction.py",
    "core/__init__.py",
    "core/script.py",
    "core/spec/__init__.py",
    "core/spec/identifiers.py",
    "version.py",
)
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_LAST_PRINTABLE = 0x7E
#: Environment variables with options for Java; and the options that choose a garbage collector: only one is allowed.
_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")


def build_package(folder: Path) -> Path:
    """Write the zip for ``--py-files`` with the modules that a driver needs. Its bytes depend on the sources only.

    Args:
        folder: Where to write it.

    Returns:
        The zip's path.
    """
    path = folder / "airflow_mv.zip"
    sources = [_ROOT / name for name in _SHIPPED] + _job_files(_ROOT / "core")
    for job in sorted(_ROOT.glob("extras/*/job")):  # what extras run in a driver
        packages = {job.parents[1], job.parent} - {source.parent for source in sources}
        sources += [package / "__init__.py" for package in sorted(packages)] + _job_files(job.parent)
    with zipfile.ZipFile(path, "w") as package:
        for source in sources:
            entry = zipfile.ZipInfo(f"airflow_mv/{source.relative_to(_ROOT).as_posix()}", _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            package.writestr(entry, source.read_bytes())
    return path


def _job_files(package: Path) -> list[Path]:
    return sorted(path for path in (package / "job").iterdir() if path.suffix in (".py", ".java"))


def main_file() -> Path:
    """Return the file that spark-submit runs."""
    return _ROOT / "core" / "job" / "__main__.py"


def packaged(program: str) -> str:
    """Return the ``spark-submit`` inside the package ``pyspark``, if a program is the one that pip put into ``bin``.

    That one looks for Spark with the ``python3`` on the PATH, which may have no Spark or another one.

    Args:
        program: The path of a ``spark-submit``.
    """
    script = Path(program).resolve()
    if not (script.parent / "find_spark_home.py").exists():
        return program
    inside = script.parents[1].glob("lib/python*/site-packages/pyspark/bin/spark-submit")
    return str(next(inside, program))


def spark_versions(home: Path) -> tuple[str, str] | tuple[None, None]:
    """Return the versions of Spark and Scala of an installation, by its jars; ``None`` twice if unknown.

    Args:
        home: ``SPARK_HOME``.
    """
    for jar in home.glob("jars/spark-core_*.jar"):
        scala, _, spark = jar.stem.removeprefix("spark-core_").partition("-")  # spark-core_2.13-4.1.3
        return spark, scala
    return None, None


def write_properties(folder: Path, confs: Mapping[str, str], secrets: Mapping[str, str] | None = None) -> Path:
    """Write Spark settings into a file that only its owner can read, so that none is a process argument.

    Args:
        folder: Where to write it.
        confs: Settings.
        secrets: Settings that are secret.

    Returns:
        The file's path, for ``--properties-file``.

    Raises:
        ConfigurationError: spark-submit would silently change a setting: a key that does not start with ``spark.``,
            or a credential with a blank at its start or end.
    """
    settings = {**confs, **(secrets or {})}
    for key in settings:
        if not key.startswith("spark."):
            raise ConfigurationError(f"{key!r} is not a Spark setting: its name must start with 'spark.'")
        if settings[key] != settings[key].strip(" \t") and (
            key in (secrets or {}) or key.startswith("spark.sql.catalog.")
        ):
            raise ConfigurationError(
                f"{key!r}: its value starts or ends with a blank, which Spark cuts off. Change it."
            )
    path = folder / "spark.properties"
    path.unlink(missing_ok=True)  # an older file may have other permissions
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii", newline="\n") as file:
        file.writelines(f"{_escaped(key, ' :=#!')}={_escaped(value, '')}\n" for key, value in sorted(settings.items()))
    return path


def _escaped(text: str, special: str) -> str:
    """Escape for java.util.Properties, in ASCII."""
    return "".join(_escaped_character(character, special) for character in text)


def _escaped_character(character: str, special: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character in special:
        return f"\\{character}"
    if character < " " or ord(character) > _LAST_PRINTABLE:
        units = character.encode("utf-16-be")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return character


#: A folder of jars, so that nothing is downloaded.
JARS_VARIABLE = "AIRFLOW_MV_JARS"
#: Packages that consist of a single jar, beside their companions: if the jar exists, nothing is missing.
_SELF_CONTAINED = re.compile(
    r"org\.apache\.iceberg:iceberg-(spark-runtime-[\w.]+|(aws|gcp|azure)-bundle)|org\.xerial:sqlite-jdbc"
    r"|org\.postgresql:postgresql|io\.delta:delta-(spark_[\w.]+|storage|kernel-api|kernel-defaults)"
)


#: Packages that need other ones of the same group and version, and nothing else that Spark does not have.
_COMPANIONS = {"io.delta:delta-spark": ("delta-storage", "delta-kernel-api", "delta-kernel-defaults")}


def jar_confs(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which Spark finds its packages. Packages on this machine need no resolution.

    Args:
        settings: Spark settings; ``spark.jars``, ``spark.jars.packages`` and ``spark.jars.ivy`` are used.
    """
    listed = settings.get("spark.jars.packages", "").split(",")
    wanted = [item for item in dict.fromkeys(part.strip() for part in listed) if item]
    folders = [Path(os.environ[JARS_VARIABLE])] if os.environ.get(JARS_VARIABLE) else []
    ivy = settings.get("spark.jars.ivy")
    # Spark 3.5 has the second one.
    folders += [Path(ivy, "jars")] if ivy else [Path.home() / name / "jars" for name in (".ivy2.5.2", ".ivy2")]
    needed = [name for item in wanted for name in (item, *_companions(item))]
    found = [path for item in needed if (path := _jar(item, folders)) is not None]
    if len(found) < len(needed):
        if os.environ.get(JARS_VARIABLE):
            missing = ", ".join(item for item in needed if _jar(item, folders) is None)
            log.warning("%s=%s has no jar of %s: Spark downloads it from Maven", JARS_VARIABLE, folders[0], missing)
        return {"spark.jars.packages": ",".join(wanted)}
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    return {"spark.jars.packages": "", "spark.jars": ",".join([*given, *map(str, found)])}


def _companions(coordinates: str) -> list[str]:
    group, _, rest = coordinates.partition(":")
    artifact, _, version = rest.partition(":")
    names = _COMPANIONS.get(f"{group}:{artifact.partition('_')[0]}", ())
    return [f"{group}:{name}:{version}" for name in names]


def _jar(coordinates: str, folders: Sequence[Path]) -> Path | None:
    group, _, rest = coordinates.partition(":")
    artifact, _, version = rest.partition(":")
    if not _SELF_CONTAINED.fullmatch(f"{group}:{artifact}"):
        return None
    for folder in folders:
        for name in (f"{group}_{artifact}-{version}.jar", f"{artifact}-{version}.jar"):
            if zipfile.is_zipfile(folder / name):  # Ivy may still be writing it
                return folder / name
    return None


def spark_defaults(environment: Mapping[str, str], home: Path) -> Path:
    """Return the path of ``spark-defaults.conf``, whether the file exists or not.

    Args:
        environment: Spark's.
        home: The folder of Spark, if ``SPARK_HOME`` names none.
    """
    folder = environment.get("SPARK_CONF_DIR") or Path(environment.get("SPARK_HOME") or home, "conf")
    return Path(folder, "spark-defaults.conf")


def collector(environment: Mapping[str, str], *texts: str) -> list[str]:
    """Return the option for the garbage collector of a driver that does all of Spark's work.

    Java's default, G1, marks objects concurrently with Spark's threads, and its write barriers are more expensive. On
    few cores refreshes are slower with it.

    Args:
        environment: The driver's.
        texts: The user's settings. If one of them, or the environment, chooses a collector, there is no option.
    """
    given = (*texts, *(environment.get(name, "") for name in _OF_JAVA))
    return [] if any(map(_COLLECTOR.search, given)) else ["-XX:+UseParallelGC"]


def log4j_properties(pattern: str) -> str:
    """Return a configuration of Log4j that writes only errors, to stderr.

    Args:
        pattern: The form of a line.
    """
    return f"""\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = {pattern}
"""


# ---------------------------- Temporary folders for files with secrets, and the removal of folders of killed processes
# The folder's name identifies the process that made it: the host's boot, the process namespace, the process id and
# the start time of the process. A folder is removed only if this proves that its process has ended.


_PREFIX = "airflow-mv-"
_NAME = re.compile(rf"{_PREFIX}(?P<scope>[0-9a-f]{{12}})-(?P<pid>\d{{1,10}})-(?P<started>\d{{1,20}})-\w{{8}}", re.ASCII)
#: Fields of /proc/<pid>/stat behind the program's name; the start time is the 20th of them.
_STARTED = 19


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep.

    Args:
        removed: Folders that were removed: their processes have ended.
        failed: Folders that should have been removed and could not be.
    """

    removed: tuple[Path, ...] = ()
    failed: tuple[Path, ...] = ()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder that only this user may enter, and remove it at the end.

    Folders of processes that were killed are swept first.
    """
    sweep()
    pid = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_scope()}-{pid}-{_started(pid) or 0}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> SweepResult:
    """Remove the folders that killed processes of this user have left on this host.

    A folder is removed only if its name has the right form, it belongs to this user, no other user may enter it, and
    its process is proven to have ended. Folders of another boot, container or host are kept.
    """
    removed: list[Path] = []
    failed: list[Path] = []
    scope = _scope()
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        name = _NAME.fullmatch(folder.name)
        if name is None or name["scope"] != scope or not _is_ours(folder):
            continue
        if not _is_gone(int(name["pid"]), int(name["started"])):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        (failed if folder.exists() else removed).append(folder)
    return SweepResult(tuple(removed), tuple(failed))


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700


def _is_gone(pid: int, started: int) -> bool:
    """Whether a process has ended; its id may belong to another one by now."""
    if not started or not Path("/proc/self/stat").exists():
        return False
    return not Path(f"/proc/{pid}").exists() or _started(pid) not in (None, started)


def _started(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the boot; ``None`` if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None


def _scope() -> str:
    """Return the boot and process namespace within which a process id is unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return "0" * 12
    return hashlib.sha256(f"{boot}{space}".encode()).hexdigest()[:12]
