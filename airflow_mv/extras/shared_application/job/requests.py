# SPDX-License-Identifier: Apache-2.0
"""The files by which tasks pass work to a shared Spark application. Standard library only: the driver uses it.

An application has a folder in the store of its catalog. The task that started it rewrites the file :data:`BEAT` as
long as it runs, and at the end writes :data:`END`. Another task writes a :class:`JobRequest` there, which names a
script, and waits for its :class:`JobAnswer`. Script and outcome are where they are without a shared application.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from airflow_mv.foundation.documents import json_object, read

#: The file that shows that the task of the application runs. Only its modification time is read.
BEAT = "beat"
#: The file that ends the application.
END = "end"
BEAT_SECONDS = 5.0
#: Without a new beat for this long the application counts as dead.
SILENT_SECONDS = 60.0
_REQUEST, _ANSWER, _CANCEL = ".request.json", ".answer.json", ".cancel"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A script for a shared application.

    Args:
        submitted: The script's location with its digest.
        catalog: The name of the view's catalog in Spark.
        package: The version of the package that wrote the script.
        table: The quoted Spark name of the view's storage table, if a catalog holds it.
        catalogs: Names of all catalogs that the script may use.
        delta: Whether it reads Delta tables.
    """

    view: str
    submitted: str
    catalog: str
    package: str
    table: str | None = None
    catalogs: tuple[str, ...] = ()
    delta: bool = False

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobRequest:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidMetadataError: The text is not such a document.
        """
        return read(cls, json_object(text, "request"), "request")


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The result of a script in a shared application.

    Args:
        ran: Whether it ran the script. If not, the script needs an application of its own.
        refusal: Why nothing was staged, in one line; ``None`` for a success.
        lines: The progress messages.
        application_id: The Spark application.
    """

    ran: bool
    refusal: str | None = None
    lines: tuple[str, ...] = ()
    application_id: str | None = None

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobAnswer:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidMetadataError: The text is not such a document.
        """
        return read(cls, json_object(text, "answer"), "answer")


def request_file(key: str) -> str:
    """Return the name of a request's file."""
    return f"{key}{_REQUEST}"


def answer_file(key: str) -> str:
    """Return the name of the file with the answer to a request."""
    return f"{key}{_ANSWER}"


def cancel_file(key: str) -> str:
    """Return the name of the file that cancels a request."""
    return f"{key}{_CANCEL}"


@dataclass(frozen=True, slots=True)
class FolderContent:
    """The content of an application's folder at one time.

    Args:
        answered: Those that have an answer.
        cancelled: Those that were cancelled.
        ended: Whether the application has ended, or must end.
        beat_ms: When the last beat was written, by the store's clock; ``None`` if there is none.
    """

    requested: frozenset[str]
    answered: frozenset[str]
    cancelled: frozenset[str]
    ended: bool
    beat_ms: int | None

    @classmethod
    def of(cls, files: dict[str, int]) -> FolderContent:
        """Return the content of a folder with these files: modification times by name."""

        def keys(suffix: str) -> frozenset[str]:
            return frozenset(name.removesuffix(suffix) for name in files if name.endswith(suffix))

        return cls(keys(_REQUEST), keys(_ANSWER), keys(_CANCEL), END in files, files.get(BEAT))

    @property
    def waiting(self) -> frozenset[str]:
        """The requests without an answer."""
        return self.requested - self.answered


class Pulse:
    """Decides whether an application's task is dead. It compares no clocks of two hosts.

    Args:
        silent_seconds: Seconds without a new beat after which it is.
        clock: Monotonic seconds.
    """

    def __init__(self, silent_seconds: float = SILENT_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._beat_ms: int | None = None
        self._since = clock()

    def is_gone(self, content: FolderContent) -> bool:
        """Take the folder's present content. Return whether there was no new beat for too long."""
        now = self._clock()
        if content.beat_ms != self._beat_ms:
            self._beat_ms, self._since = content.beat_ms, now
        return now - self._since > self._silent_seconds


def is_answered(content: FolderContent, key: str, pulse: Pulse) -> bool | None:
    """Return whether a request was answered; ``None`` if its task has to continue waiting.

    Args:
        pulse: Also takes the content.
    """
    gone = pulse.is_gone(content)
    if key in content.answered:
        return True
    return False if content.ended or gone else None
