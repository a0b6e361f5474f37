# SPDX-License-Identifier: Apache-2.0
"""Trigger that waits for the answer of a shared Spark application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_mv.application import FolderContent, Pulse, is_answered
from airflow_mv.errors import MaterializedViewError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID
from airflow_mv.triggers.connected import PUBLIC_MODULE, connected

#: Seconds before each look. All tasks that wait for one application share a look. The first one is late, too: Airflow
#: may fail a task that is resumed before its scheduler has noticed that it was deferred (apache/airflow#72716).
POLL_SECONDS = 5.0


class SharedApplicationTrigger(BaseTrigger):
    """Wait until a shared application has answered a request, or has ended.

    Its event has the arguments ``folder`` and ``key``, and ``answered``; ``None`` if this triggerer cannot read the
    folder: then the task has to wait itself.

    Args:
        catalog: Name of the catalog by whose access to files the folder is read.
        folder: The application's folder.
        key: The request.
        iceberg_conn_id: Connection of the catalog.
    """

    def __init__(self, *, catalog: str, folder: str, key: str, iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.catalog = catalog
        self.folder = folder
        self.key = key
        self.iceberg_conn_id = iceberg_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes the trigger from."""
        names = ("catalog", "folder", "key", "iceberg_conn_id")
        return f"{PUBLIC_MODULE}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the wait is over. A store that does not respond is looked at again, for a minute."""
        pulse, content = Pulse(), FolderContent.of({})
        answered: bool | None = None
        error: MaterializedViewError | None = None
        while answered is None and (error is None or error.retryable):
            await asyncio.sleep(POLL_SECONDS)
            try:
                content, error = await self._looked(), None
            except MaterializedViewError as met:
                connected(self.iceberg_conn_id).after(met)
                self.log.warning("%s: %s", type(met).__name__, met)
                error = met
            answered = is_answered(content, self.key, pulse)
        yield TriggerEvent(  # type: ignore[no-untyped-call]
            {"folder": self.folder, "key": self.key, "answered": answered if error is None else None}
        )

    async def _looked(self) -> FolderContent:
        return await connected(self.iceberg_conn_id).look(
            (self.catalog, self.folder), self._content, every=POLL_SECONDS
        )

    def _content(self) -> FolderContent:
        from airflow_mv.refresh.application import ApplicationFolder

        catalog = connected(self.iceberg_conn_id).hook.catalog_named(self.catalog)
        return ApplicationFolder(catalog, self.folder).content()
