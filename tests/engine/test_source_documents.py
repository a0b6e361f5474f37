# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/source-documents-run.md print what the page shows.

They run in the page's order in one lake. Ids, times, durations and folders are masked, because they differ from run to
run. ``WRITE_DOCS_PAGE=1`` writes the page's outputs anew.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.core.catalog import MaterializedViewCatalog
from tests.cli.support import call
from tests.engine.support import Lake, configure

#: The catalog's name in this process; the page has ``lake``.
NAME = "docslake"

PAGE = Path(__file__).parents[2] / "docs" / "source-documents-run.md"
_BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)
_MASKS = (
    (re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"), "<time>"),
    (re.compile(r"\b\d{3,19}\b|\b\d+\.\d+\b"), "<number>"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "<hex>"),
    (
        re.compile(
            r"(?:file:)?(?:///?)?[\w./-]*/(?=[\w-]+/(?:metadata|data)\b|[\w.-]+\.(?:metadata\.json|avro|parquet))"
        ),
        "<folder>/",
    ),
    (re.compile(r"(?:<number>|\b\d+) (s|ms|B|KiB|MiB|KB|MB|bytes)\b"), "<number> \\1"),
    (re.compile(r" {2,}"), "  "),
)


def masked(text: str) -> str:
    """The text without what differs from run to run, with its lines sorted: a read has no order."""
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return "\n".join(sorted(text.splitlines()))


class Terminal:
    """Runs the page's blocks."""

    def __init__(self, catalog: MaterializedViewCatalog, folder: Path) -> None:
        self._folder = folder
        self.names: dict[str, Any] = {"views": catalog, "catalog": catalog.iceberg}

    def _named(self, text: str) -> str:
        """A text of the page with this catalog's name, and with the values of variables."""
        text = re.sub(r"\blake\b", NAME, text)
        return re.sub(r"\$([A-Z_]+)", lambda match: str(self.names[match[1]]), text)

    def _shown(self, text: str) -> str:
        """A text of this catalog as the page shows it."""
        text = text.replace(f"{self._folder}/{NAME}", "/data/lake").replace(NAME, "lake")
        return text.replace(f"{getpass.getuser()}@{socket.gethostname()}", "ana@laptop")

    def python(self, code: str) -> str:
        """Run a block of Python; return what it prints."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(self._named(code), self.names)
        return self._shown(printed.getvalue())

    def command(self, line: str) -> str:
        """Run a command, perhaps with a path of ``jq``; return what it prints."""
        command, *filters = line.split(" | ")
        program, *arguments = shlex.split(self._named(command))
        assert program == "airflow-mv"
        ended = call(*arguments)
        lines = [*ended.stdout.splitlines(), *(item for item in ended.stderr.splitlines() if item.startswith("error:"))]
        if not ended.stdout and not lines:
            lines = ended.stderr.splitlines()[-1:]
        for text in filters:
            name, path = shlex.split(self._named(text))
            assert name == "jq"
            found = json.loads("\n".join(lines))
            for key, number in re.findall(r"\.([\w-]+)|\[(-?\d+)\]", path):
                found = found[key] if key else found[int(number)]
            lines = [json.dumps(found)]
        return self._shown("".join(f"{item.rstrip()}\n" for item in lines))


def parts(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output below it."""
    for part in re.split(r"(?m)^\$ ", block)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


@pytest.fixture
def own(lake: Lake, tmp_path: Path) -> Iterator[MaterializedViewCatalog]:
    """A catalog of this test alone, because a sync of the registry reads all views of a catalog."""
    before = dict(os.environ)
    prefix = f"PYICEBERG_CATALOG__{NAME.upper()}__AIRFLOW_MV__REGISTRY"
    os.environ |= {prefix: "airflow_mv", f"{prefix}__TABLES__DETAIL": "files"}
    configure(tmp_path, NAME)
    catalog = MaterializedViewCatalog(NAME)
    catalog.iceberg.create_namespace("sales")
    yield catalog
    catalog.close()
    os.environ.clear()
    os.environ.update(before)


def test_the_commands_of_the_page_print_what_it_shows(own: MaterializedViewCatalog, tmp_path: Path) -> None:
    terminal, differing = Terminal(own, tmp_path), []

    def run(match: re.Match[str]) -> str:
        if match[1] == "python":
            code, mark, output = match[2].partition("# prints\n")
            found = terminal.python(code)
            wanted = "".join(f"# {line}\n" for line in found.splitlines())
            if masked(output) != masked(wanted):
                differing.append((code, output, wanted))
            return f"```python\n{code}{mark}{wanted}```"
        lines = []
        for command, output in parts(match[2]):
            found = terminal.command(command)
            if masked(output) != masked(found):
                differing.append((command, output, found))
            lines.append(f"$ {command}\n{found}")
        return f"```console\n{''.join(lines)}```"

    written = _BLOCK.sub(run, PAGE.read_text(encoding="utf-8"))
    if os.environ.get("WRITE_DOCS_PAGE"):
        PAGE.write_text(written, encoding="utf-8")
    else:
        assert differing == []
