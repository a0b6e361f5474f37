# SPDX-License-Identifier: Apache-2.0
"""Processes that refresh a view through a REST server concurrently."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import publish, refresh
from airflow_mv.core.script import Outcome
from airflow_mv.errors import MaterializedViewError
from tests.builders import lake

VIEW = "sales.daily"


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a contender for one round.

    Args:
        at: The start time on the host's monotonic clock.
        staged: A plan and its outcome as JSON, to be published as they are; ``None``: each plans and stages.
    """

    at: float
    staged: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one refresh, as its process reports it.

    Args:
        outcome: That of the result, ``replan`` if a staged one was outdated, or the class of the error.
        refresh_id: The reported refresh.
        seconds: From the start to the end.
        error: The error message.
    """

    outcome: str
    refresh_id: str | None
    seconds: float
    error: str = ""


def contend(address: str, warehouse: str, orders: Connection) -> None:
    """Refresh for each order, until there are no more orders."""
    with lake(address, Path(warehouse)) as home:
        while (order := orders.recv()) is not None:
            time.sleep(max(0.0, order.at - time.monotonic()))
            started = time.monotonic()
            try:
                if order.staged is None:
                    result = refresh(home.catalog, [VIEW], stager=home.stager)[0]
                else:
                    plan, outcome = order.staged
                    found = publish(home.catalog, RefreshPlan.from_dict(json.loads(plan)), Outcome.from_json(outcome))
                    if found is None:
                        orders.send(Report("replan", None, time.monotonic() - started))
                        continue
                    result = found
            except MaterializedViewError as error:
                orders.send(Report(type(error).__name__, None, time.monotonic() - started, str(error)))
            else:
                orders.send(Report(result.outcome, result.refresh_id, time.monotonic() - started))
