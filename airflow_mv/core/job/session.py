# SPDX-License-Identifier: Apache-2.0
"""Use a Spark session: its settings and catalogs, and work that a signal interrupts."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Event, Thread, current_thread, main_thread
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from airflow_mv.foundation.redaction import hide, passwords_in

#: The prefix of catalog settings.
CATALOG = "spark.sql.catalog."
T = TypeVar("T")
#: How long a program that a signal ends waits for the end of its Spark statement.
STOP_SECONDS = 20.0
_STOP_LOOK_SECONDS = 0.25


@contextmanager
def made_active(spark: SparkSession) -> Iterator[None]:
    """Make a classic session this thread's active one for a while. Iceberg reads settings and catalogs from it.

    A thread starts without an active session, and ``spark.newSession()`` leaves the older session active.

    Args:
        spark: A session, classic or Connect.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        yield
        return
    sessions = spark._jsparkSession  # has the static methods of its class, whose package was another one in Spark 3
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def interruptible(spark: SparkSession, work: Callable[[], T], stopped: Event | None = None) -> T:
    """Do work with a session so that no signal handler raises within a call of the session: not in the main thread.

    py4j keeps the connection of a thread in which a handler has raised. The next call there, which may be part of a
    cleanup, takes the answer to the interrupted call for its own: a ``bool`` where a Java method was expected.

    Args:
        spark: A session, classic or Connect.
        stopped: Set when a handler has raised. Work that looks at it begins no other statement.

    Returns:
        What the work returns. What a handler raises in this thread is raised after the work's statement was cancelled
        and the work has ended, but :data:`STOP_SECONDS` later at the latest.
    """
    if current_thread() is not main_thread():  # Python runs no signal handler here
        return work()
    classic = getattr(spark, "_jvm", None) is not None
    tagged: Any = spark.sparkContext if classic else spark
    add, cancel = (tagged.addJobTag, tagged.cancelJobsWithTag) if classic else (tagged.addTag, tagged.interruptTag)
    tag, result = f"airflow-mv-{uuid.uuid4().hex}", Future[T]()

    def act() -> None:
        with suppress(Exception):  # a platform may forbid it, and a run never fails because of it
            add(tag)
        try:
            with made_active(spark):
                result.set_result(work())
        except BaseException as error:  # noqa: BLE001 (the caller raises it)
            result.set_exception(error)

    inheriting = _inheriting(spark, act) if classic else act
    thread = Thread(target=copy_context().run, args=(inheriting,), daemon=True)
    thread.start()
    try:
        return result.result()
    except BaseException:
        if stopped is not None:
            stopped.set()
        until = time.monotonic() + STOP_SECONDS
        while not result.done() and time.monotonic() < until:  # the work may be between two statements
            with suppress(Exception):
                cancel(tag)
            thread.join(_STOP_LOOK_SECONDS)
        raise


def _inheriting(spark: SparkSession, act: Callable[[], None]) -> Callable[[], None]:
    """Return a function that runs in another thread with this thread's properties of Spark."""
    found = inheritable_thread_target(act if spark.version.startswith("3.") else spark)
    return found if spark.version.startswith("3.") else found(act)


def settings_below(spark: SparkSession, prefix: str) -> dict[str, str]:
    """Return the session's settings whose names begin with a prefix, without it.

    Args:
        spark: A session, classic or Connect.
    """
    if getattr(spark, "_jvm", None) is None:
        found = dict(spark.conf.getAll)
    else:
        # A single call: reading each setting separately ends with an exception that takes 40 ms to translate.
        text = spark.conf._jconf.getAll().mkString("\0")
        found = dict(item.split(" -> ", 1) for item in text.split("\0") if item)
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def hide_secrets(spark: SparkSession) -> None:
    """Redact in messages the values of a classic session's settings that Spark itself redacts."""
    confs = dict(spark.sparkContext.getConf().getAll())
    pattern = re.compile(confs.get("spark.redaction.regex") or "(?i)secret|password|token|access[.]?key")
    hide(value for key, value in confs.items() if pattern.search(key) and not key.endswith("uri"))
    hide(password for value in confs.values() for password in passwords_in(value))


@contextmanager
def temporary_settings(
    spark: SparkSession, wanted: Mapping[str, str], known: Mapping[str, str | None] | None = None
) -> Iterator[None]:
    """Set settings of a session, and restore the earlier values afterwards.

    Args:
        spark: A session, classic or Connect.
        wanted: The settings.
        known: Their earlier values, ``None`` for one that is not set. By default they are asked for.
    """
    before = present_settings(spark, wanted) if known is None else {key: known[key] for key in wanted}
    try:
        _set(spark, wanted)
        yield
    finally:
        with suppress(Exception):  # a dead session has no settings to restore
            _set(spark, before)


def present_settings(spark: SparkSession, keys: Collection[str]) -> dict[str, str | None]:
    """Return settings of a session, ``None`` for one that is not set; over Spark Connect with one request."""
    if getattr(spark, "_jvm", None) is not None:
        return {key: spark.conf.get(key, None) for key in keys}
    session: Any = spark
    found = session.client.get_config_with_defaults(*((key, None) for key in keys)) if keys else ()
    return dict(zip(keys, found, strict=True))


def _set(spark: SparkSession, values: Mapping[str, str | None]) -> None:
    """Set settings of a session, or unset those that are ``None``; over Spark Connect with a request for each kind."""
    if getattr(spark, "_jvm", None) is not None:
        for key, value in values.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)
        return
    from pyspark.sql.connect.proto import ConfigRequest, KeyValue  # a classic session may be without gRPC

    session: Any = spark
    pairs = [KeyValue(key=key, value=value) for key, value in values.items() if value is not None]
    keys = [key for key, value in values.items() if value is None]
    if pairs:
        session.client.config(ConfigRequest.Operation(set=ConfigRequest.Set(pairs=pairs)))
    if keys:
        session.client.config(ConfigRequest.Operation(unset=ConfigRequest.Unset(keys=keys)))
