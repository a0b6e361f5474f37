# SPDX-License-Identifier: Apache-2.0
"""The folder of a shared Spark application, as tasks use it: request a script, wait, read the answer."""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING

from airflow_mv.core.spec.identifiers import DELTA_BY_PATH
from airflow_mv.errors import CatalogUnavailableError, InvalidMetadataError
from airflow_mv.extras.shared_application.job.requests import (
    BEAT,
    BEAT_SECONDS,
    END,
    FolderContent,
    JobAnswer,
    JobRequest,
    answer_file,
    cancel_file,
    request_file,
)
from airflow_mv.version import __version__

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.script import Script

log = logging.getLogger(__name__)


def new_key() -> str:
    """Return the key of a new request."""
    return uuid.uuid4().hex


def request_of(catalog: MaterializedViewCatalog, script: Script, submitted: str) -> JobRequest:
    """Return the request for a script.

    Args:
        catalog: The view's catalog, through which all that the script needs was opened.
        submitted: Where it was written, with its digest.
    """
    return JobRequest(
        view=script.view,
        submitted=submitted,
        catalog=catalog.name,
        package=__version__,
        table=script.stored or None,
        catalogs=tuple(sorted(catalog.opened())),
        delta=DELTA_BY_PATH.data_source in catalog.formats,
    )


class ApplicationFolder:
    """The folder of a shared application.

    Args:
        catalog: The catalog by whose access to files it is read and written.
        folder: Its location.
    """

    def __init__(self, catalog: MaterializedViewCatalog, folder: str) -> None:
        self._files = catalog.files
        self.folder = folder

    def content(self) -> FolderContent:
        """List the folder. A document without content is left out: a local store shows it before it is written."""
        files = [(file.location.rpartition("/")[2], file) for file in self._files.list(self.folder)]
        return FolderContent.of(
            {name: file.modified_ms for name, file in files if file.size_bytes or not name.endswith(".json")}
        )

    def content_after(self, last: FolderContent) -> FolderContent:
        """List the folder. If its store does not respond, log why, wait a little, and return the last content.

        Args:
            last: The last content. Its beat is not new, so a :class:`Pulse` ends the wait for a
                store that does not come back.
        """
        try:
            return self.content()
        except CatalogUnavailableError as error:
            log.warning("%s", error)
            time.sleep(BEAT_SECONDS)
            return last

    def ask(self, key: str, request: JobRequest) -> None:
        """Write a request.

        Args:
            key: A new key, from :func:`new_key`.
        """
        self._write(request_file(key), request.to_json())

    def cancel(self, key: str) -> None:
        """Ask the application to stop a script."""
        self._write(cancel_file(key), "")

    def request(self, key: str) -> JobRequest | None:
        """Return a request; ``None`` for one that is not complete yet, or not valid."""
        text = self._files.read_text(f"{self.folder}/{request_file(key)}")
        try:
            return JobRequest.from_json(text) if text else None
        except InvalidMetadataError:
            return None

    def answer(self, key: str) -> JobAnswer | None:
        """Return the answer to a request; ``None`` if there is none. One of another version counts as a refusal."""
        text = self._files.read_text(f"{self.folder}/{answer_file(key)}")
        try:
            return JobAnswer.from_json(text) if text else None
        except InvalidMetadataError as error:
            return JobAnswer(ran=False, refusal=str(error))

    def beat(self) -> None:
        """Show that the application's task runs."""
        self._write(BEAT, "")

    def end(self) -> None:
        """End the application."""
        self._write(END, "")

    def remove(self) -> None:
        """Delete the folder's files."""
        files = [file.location for file in self._files.list(self.folder)]
        for location in files:
            self._files.delete(location)
        self._files.remove_empty_folders(self.folder, files)

    def _write(self, name: str, text: str) -> None:
        self._files.replace_text(f"{self.folder}/{name}", text)
