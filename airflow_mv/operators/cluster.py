# SPDX-License-Identifier: Apache-2.0
"""What a refresh keeps while it waits in the triggerer for its driver in a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_mv.core.refresh.plan import RefreshPlan

#: Seconds after which the task asks the cluster for the first time whether the driver still runs, and the most
#: seconds between two questions; each wait is twice as long as the one before. A driver that was killed leaves no
#: outcome, and asking needs the worker's access to the cluster. So the task takes a worker slot for a few seconds.
FIRST_QUESTION_SECONDS, QUESTION_SECONDS = 60.0, 600.0
#: Questions in a row without an answer after which the task fails.
MAX_UNANSWERED = 3
_MAX_DOUBLED = 10


@dataclass(frozen=True, slots=True)
class WaitingRefresh:
    """A refresh whose driver was submitted.

    The plan is kept: base tables change meanwhile, and a new plan would start another driver each time.

    Args:
        plan: The plan.
        driver: YARN's id of the application, or namespace and name of the driver's pod.
        until: When the task's ``execution_timeout`` ends, in seconds since the epoch.
        asked: How often the cluster was asked for the driver.
        unanswered: How many of the last questions had no answer.
    """

    plan: RefreshPlan
    driver: str
    until: float | None = None
    asked: int = 0
    unanswered: int = 0

    @property
    def is_late(self) -> bool:
        """Whether the task's time has ended."""
        return self.until is not None and time.time() >= self.until

    @property
    def pause(self) -> float:
        """Seconds until the next question."""
        doubled = min(FIRST_QUESTION_SECONDS * 2.0 ** min(self.asked, _MAX_DOUBLED), QUESTION_SECONDS)
        return doubled if self.until is None else max(0.0, min(doubled, self.until - time.time()))

    @property
    def gives_up(self) -> bool:
        """Whether too many questions had no answer."""
        return self.unanswered >= MAX_UNANSWERED

    def after_question(self, *, answered: bool) -> WaitingRefresh:
        """Return it as it is after a question."""
        return replace(self, asked=self.asked + 1, unanswered=0 if answered else self.unanswered + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return what Airflow stores with the deferred task."""
        fields = ("driver", "until", "asked", "unanswered")
        return {"plan": self.plan.to_json(), **{name: getattr(self, name) for name in fields}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> WaitingRefresh:
        """Read what :meth:`to_dict` wrote."""
        from airflow_mv.core.refresh.plan import RefreshPlan

        return cls(**{**document, "plan": RefreshPlan.from_json(document["plan"])})
