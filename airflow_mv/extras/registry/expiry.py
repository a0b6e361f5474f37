# SPDX-License-Identifier: Apache-2.0
"""Expire what the registry no longer needs after a change, in a thread of its own: the change is answered before.

A thread that is killed between its commit and its deletions leaves files that nothing deletes later. So a process waits
for its threads at its end; Airflow's task processes also run the functions of :mod:`atexit`.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterable
from threading import Thread
from typing import Any

from airflow_mv.extras.registry.tables import Component

log = logging.getLogger(__name__)

#: How long a process waits at its end, in seconds. The rest of an expiry is then given up.
MAX_WAIT_S = 60.0
_running: list[Thread] = []


def expire_later(components: Iterable[Component[Any]]) -> None:
    """Start the expiry of tables whose period has passed. Failures are only logged: the next change tries again."""
    chosen = [item for item in components if item.expires]
    if not chosen:
        return
    if not _running:
        atexit.register(wait_for_expiry)
    thread = Thread(target=_expire, args=(chosen,), name="airflow-mv registry expiry", daemon=True)
    _running[:] = [item for item in _running if item.is_alive()] + [thread]
    thread.start()


def wait_for_expiry(max_wait_s: float = MAX_WAIT_S) -> bool:
    """Wait for the expiries of this process; return whether they have ended.

    Args:
        max_wait_s: The longest wait for each, in seconds.
    """
    for thread in _running:
        thread.join(max_wait_s)
    return not any(thread.is_alive() for thread in _running)


def _expire(components: Iterable[Component[Any]]) -> None:
    for item in components:
        try:
            item.expire_if_due()
        except Exception:
            log.warning("Could not expire the registry's table %s", item.kind.name, exc_info=True)
