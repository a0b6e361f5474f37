# SPDX-License-Identifier: Apache-2.0
"""Trigger that waits for the outcome of a Spark job whose driver is not on the worker."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_mv.errors import MaterializedViewError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID
from airflow_mv.hooks.spark_driver import kill_driver
from airflow_mv.triggers.connected import PUBLIC_MODULE, connected

#: Seconds before each look; for the first one see :data:`airflow_mv.triggers.application.POLL_SECONDS`.
POLL_SECONDS = 10.0


class JobOutcomeTrigger(BaseTrigger):
    """Wait until a driver has written the outcome of its script. Neither its worker nor this triggerer has to live on.

    It also waits for a store that does not respond. Its event has ``location``, and ``error`` if waiting cannot help:
    the class and the message.

    Args:
        catalog: Name of the catalog by whose access to files the outcome is read.
        location: The outcome's location.
        iceberg_conn_id: Connection of the catalog.
        seconds: How long to wait at most; the event has ``found`` then, which is false.
        driver: The driver, as :func:`airflow_mv.hooks.spark_driver.attach` takes it: killed if a user marks or clears
            the task (since Airflow 3.3).
        spark_conn_id: The Spark connection of the driver.
    """

    def __init__(
        self,
        *,
        catalog: str,
        location: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        seconds: float | None = None,
        driver: str | None = None,
        spark_conn_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.catalog = catalog
        self.location = location
        self.iceberg_conn_id = iceberg_conn_id
        self.seconds = seconds
        self.driver = driver
        self.spark_conn_id = spark_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes the trigger from."""
        names = ("catalog", "location", "iceberg_conn_id", "seconds", "driver", "spark_conn_id")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return f"{PUBLIC_MODULE}.{type(self).__qualname__}", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the outcome exists."""
        event: dict[str, Any] | None = None
        end = math.inf if self.seconds is None else time.monotonic() + self.seconds
        while event is None:
            await asyncio.sleep(POLL_SECONDS)
            try:
                found = await self._looked()
                event = {"location": self.location} if found else None
            except MaterializedViewError as error:
                self.log.warning("%s: %s", type(error).__name__, error)
                if not error.retryable:
                    event = {"location": self.location, "error": [type(error).__name__, str(error)]}
            if event is None and time.monotonic() >= end:
                event = {"location": self.location, "found": False}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Kill the driver. Airflow logs an error."""
        if self.driver is not None and self.spark_conn_id is not None:
            await asyncio.to_thread(kill_driver, self.spark_conn_id, self.driver)

    async def _looked(self) -> bool:
        return await connected(self.iceberg_conn_id).look(
            (self.catalog, self.location), self._exists, every=POLL_SECONDS
        )

    def _exists(self) -> bool:
        catalog = connected(self.iceberg_conn_id).hook.catalog_named(self.catalog)
        return bool(catalog.files.read_text(self.location))
