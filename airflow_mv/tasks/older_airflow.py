# SPDX-License-Identifier: Apache-2.0
"""Features that Airflow 3.1 and 3.2 lack: names in new places, retry policies, connections in threads of triggers.

An entry can be removed with the support of the last release that lacks it; a test says when.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow import __version__

if TYPE_CHECKING:
    from airflow.sdk import RetryAction as RetryAction
    from airflow.sdk import RetryDecision as RetryDecision
    from airflow.sdk import RetryPolicy as RetryPolicy
    from airflow.sdk import conf as conf
    from airflow.sdk.exceptions import AirflowFailException as AirflowFailException
    from airflow.sdk.exceptions import AirflowNotFoundException as AirflowNotFoundException
    from airflow.sdk.exceptions import AirflowSkipException as AirflowSkipException
    from airflow.sdk.plugins_manager import AirflowPlugin as AirflowPlugin
    from sqlalchemy import Engine

T = TypeVar("T")

_RELEASE = tuple(int(number) for number in __version__.split(".")[:2])
BEFORE_3_2 = _RELEASE < (3, 2)
#: Airflow 3.3 has retry policies, state stores of tasks and assets, and partitions dated on their zone's clocks.
BEFORE_3_3 = _RELEASE < (3, 3)
#: Where a name is since Airflow 3.2, and where it was before.
MOVED_IN_3_2: Mapping[str, tuple[str, str]] = {
    "AirflowFailException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowNotFoundException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "AirflowPlugin": ("airflow.sdk.plugins_manager", "airflow.plugins_manager"),
    "AirflowSkipException": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "conf": ("airflow.sdk", "airflow.configuration"),
}
#: Names that :mod:`airflow.sdk` has since Airflow 3.3.
NEW_IN_3_3 = ("RetryAction", "RetryDecision", "RetryPolicy")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a worker that loads the plugin needs no retry policies."""
    if name in NEW_IN_3_3:
        return _STAND_INS[name] if BEFORE_3_3 else getattr(import_module("airflow.sdk"), name)
    if name in MOVED_IN_3_2:
        return getattr(import_module(MOVED_IN_3_2[name][BEFORE_3_2]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def engine_of_database() -> Engine:
    """Return the engine of Airflow's database. Airflow 3.1 has it as a variable, which is set by the import."""
    from airflow import settings

    return cast("Engine", settings.engine if BEFORE_3_2 else settings.get_engine())  # type: ignore[no-untyped-call]


def asking_in_the_loop(call: Callable[[], T]) -> Callable[[], T]:
    """Return a call for a thread of a trigger, which asks Airflow for connections in the running event loop.

    Airflow 3.2.2 and later do that. In earlier versions the question of a thread gets an event loop of its own, which
    may read the answer to another question: the triggerer ends with "Response read out of order". The threads of
    asgiref's ``sync_to_async`` have the same marks.

    Args:
        call: The call.
    """
    if not BEFORE_3_3:
        return call
    from asgiref.sync import SyncToAsync

    loop = asyncio.get_running_loop()

    def asking() -> T:
        SyncToAsync.threadlocal.main_event_loop = loop
        SyncToAsync.threadlocal.main_event_loop_pid = os.getpid()
        return call()

    return asking


class _RetryAction(Enum):
    """The action after a failure."""

    RETRY = "retry"
    FAIL = "fail"
    DEFAULT = "default"


@dataclass(frozen=True)
class _RetryDecision:
    """The answer of a policy. Airflow before 3.3 cannot use the delay."""

    action: _RetryAction = _RetryAction.DEFAULT
    retry_delay: timedelta | None = None
    reason: str | None = None

    @classmethod
    def fail(cls, reason: str | None = None) -> _RetryDecision:
        """Fail without another try."""
        return cls(_RetryAction.FAIL, None, reason)

    @classmethod
    def retry(cls, delay: timedelta | None = None, reason: str | None = None) -> _RetryDecision:
        """Retry."""
        return cls(_RetryAction.RETRY, delay, reason)

    @classmethod
    def default(cls) -> _RetryDecision:
        """Do what Airflow does without a policy."""
        return cls()


class _RetryPolicy:
    """Base class of policies."""


_STAND_INS = {"RetryAction": _RetryAction, "RetryDecision": _RetryDecision, "RetryPolicy": _RetryPolicy}
