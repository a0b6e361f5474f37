# SPDX-License-Identifier: Apache-2.0
"""An S3 server of another project than moto: versitygw, which keeps objects as files. Go builds it once."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.rest.java import ServiceUnavailableError, cache_folder, program, run
from tests.services import free_port

_SOURCE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_BUILD_SECONDS = 1800
_START_SECONDS = 60


@contextmanager
def versity_server() -> Iterator[str]:
    """Yield the address of a server without buckets; its only key is ``test``, as is its secret.

    Raises:
        ServiceUnavailableError: Go is not installed or cannot build it, or it does not start.
    """
    programs, port = _built(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="airflow-mv-versity-"))
    (folder / "objects").mkdir()
    command = [str(programs), "--port", f"127.0.0.1:{port}", "--access", "test", "--secret", "test"]
    command += ["--region", "us-east-1", "posix", str(folder / "objects")]
    try:
        with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
            try:
                _wait(port, server, folder / "log")
                yield f"http://127.0.0.1:{port}"
            finally:
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _built() -> Path:
    """Return the server's program, which is built if necessary: some minutes."""
    binary = cache_folder() / f"versitygw-{_SOURCE.rpartition('@')[2]}"
    if not binary.is_file():
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as new:
            run([program("go"), "install", _SOURCE], "Go cannot build versitygw", _BUILD_SECONDS, GOBIN=new)
            (Path(new) / "versitygw").rename(binary)
    return binary


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise ServiceUnavailableError(f"versitygw does not start: {log.read_text()[-3000:]}")
