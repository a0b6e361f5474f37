# SPDX-License-Identifier: Apache-2.0
"""A YARN that runs nothing: a ``spark-submit`` that only notes its arguments, and a ResourceManager's answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.script import Script, location_of
from tests.builders import Lake
from tests.services import http_server

_PROGRAM = """\
#!/bin/sh
echo "$*" >> {submitted}
echo Submitted application application_17_$(wc -l < {submitted} | tr -d ' ')
"""


class KeptState(dict[str, object]):
    """Airflow's store of a task's state, which is kept when the task is cleared."""

    def set(self, key: str, value: object, **_: object) -> None:
        """Keep a value."""
        self[key] = value

    def delete(self, key: str) -> None:
        """Forget a value."""
        self.pop(key, None)


@dataclass
class FakeYarn:
    """What a test sees and decides."""

    folder: Path
    address: str = ""
    state: str = "RUNNING"
    #: Ids of the applications that were killed.
    killed: list[str] = field(default_factory=list)

    @property
    def program(self) -> Path:
        """The ``spark-submit``."""
        return self.folder / "fake-spark-submit"

    @property
    def submitted(self) -> list[str]:
        """The arguments of each submission."""
        noted = self.folder / "submitted"
        return noted.read_text().splitlines() if noted.exists() else []

    @property
    def connection(self) -> dict[str, Any]:
        """The fields of the Spark connection."""
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": self.address}
        return {"conn_type": "spark", "host": "yarn", "extra": extra}

    def run_driver(self, lake: Lake, catalog: MaterializedViewCatalog | None = None) -> None:
        """Do what the driver that was submitted last does, with DuckDB for Spark."""
        files = (catalog or lake.catalog).files
        (location,) = (location_of(word) for word in self.submitted[-1].split() if ".script.json#" in word)
        script = Script.from_json(str(files.read_text(location)))
        files.replace_text(str(script.outcome_location), lake.stager(script).to_json())
        self.state = "FINISHED"


@contextmanager
def fake_yarn(folder: Path, on_question: Callable[[FakeYarn], None] = lambda _: None) -> Iterator[FakeYarn]:
    """Yield it.

    Args:
        folder: For the program, and what it notes.
        on_question: Called before each answer about an application.
    """
    yarn = FakeYarn(folder)
    yarn.program.write_text(_PROGRAM.format(submitted=folder / "submitted"))
    yarn.program.chmod(0o755)

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            on_question(yarn)
            final = {"FINISHED": "SUCCEEDED", "KILLED": "KILLED"}.get(yarn.state, "UNDEFINED")
            known = yarn.state != "UNKNOWN"
            self._answer({"app": {"state": yarn.state, "finalStatus": final}}, known=known)

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            yarn.killed.append(self.path.split("/")[-2])
            yarn.state = "KILLED"
            self._answer({}, known=True)

        def _answer(self, document: dict[str, Any], *, known: bool) -> None:
            body = json.dumps(document).encode()
            self.send_response(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Answers) as port:
        yarn.address = f"http://127.0.0.1:{port}"
        yield yarn
