# SPDX-License-Identifier: Apache-2.0
"""Trigger that waits for the answer of a shared Spark application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.shared_application.job.requests import FolderContent, Pulse, is_answered
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID
from airflow_mv.triggers.connected import PUBLIC_MODULE, connected

if TYPE_CHECKING:
    from airflow_mv.extras.shared_application.folder import ApplicationFolder

#: Seconds before each look. All tasks that wait for one application share a look. The first one is also late: Airflow
#: may fail a task that is resumed before its scheduler has noticed that it was deferred (apache/airflow#72716).
POLL_SECONDS = 5.0


class SharedApplicationTrigger(BaseTrigger):
    """Wait until a shared application has answered a request, or has ended.

    Its event has the arguments ``folder`` and ``key``, and ``answered``; ``None`` if this triggerer cannot read the
    folder: then the task has to wait itself. It has ``late`` if the task's time has ended.

    Args:
        catalog: Name of the catalog by whose access to files the folder is read.
        folder: The application's folder.
        key: The request.
        iceberg_conn_id: Connection of the catalog.
        until: When the task's time ends, in seconds since the epoch.
    """

    def __init__(
        self,
        *,
        catalog: str,
        folder: str,
        key: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        until: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.catalog = catalog
        self.folder = folder
        self.key = key
        self.iceberg_conn_id = iceberg_conn_id
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes the trigger from."""
        names = ("catalog", "folder", "key", "iceberg_conn_id", "until")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return f"{PUBLIC_MODULE}.{type(self).__qualname__}", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the wait is over. A store that does not respond is looked at again, for a minute."""
        pulse, content = Pulse(), FolderContent.of({})
        answered: bool | None = None
        error: MaterializedViewError | None = None
        while answered is None and (error is None or error.retryable) and not self._is_late:
            await asyncio.sleep(POLL_SECONDS)
            try:
                content, error = await self._looked(), None
            except MaterializedViewError as met:
                self.log.warning("%s: %s", type(met).__name__, met)
                error = met
            answered = is_answered(content, self.key, pulse)
        event: dict[str, Any] = {"folder": self.folder, "key": self.key}
        event["answered"] = answered if error is None else None
        if answered is None and self._is_late:
            event["late"] = True
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    @property
    def _is_late(self) -> bool:
        return self.until is not None and time.time() >= self.until

    async def on_kill(self) -> None:
        """Cancel the request: a user has marked or cleared the task (since Airflow 3.3)."""
        await asyncio.to_thread(lambda: self._opened().cancel(self.key))

    async def _looked(self) -> FolderContent:
        return await connected(self.iceberg_conn_id).look(
            (self.catalog, self.folder), self._content, every=POLL_SECONDS
        )

    def _content(self) -> FolderContent:
        return self._opened().content()

    def _opened(self) -> ApplicationFolder:
        from airflow_mv.extras.shared_application.folder import ApplicationFolder

        catalog = connected(self.iceberg_conn_id).hook.catalog_named(self.catalog)
        return ApplicationFolder(catalog, self.folder)
