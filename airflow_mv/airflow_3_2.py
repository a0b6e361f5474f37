# SPDX-License-Identifier: Apache-2.0
"""Whether this is Airflow 3.2, and stand-ins for the retry policies that ``airflow.sdk`` has since Airflow 3.3.

It can be removed with the support of Airflow 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

import airflow

IS_AIRFLOW_3_2 = airflow.__version__.startswith("3.2.")


class RetryAction(Enum):
    """What happens after a failure."""

    RETRY = "retry"
    FAIL = "fail"
    DEFAULT = "default"


@dataclass(frozen=True)
class RetryDecision:
    """The answer of a policy. Airflow 3.2 cannot use the delay."""

    action: RetryAction = RetryAction.DEFAULT
    retry_delay: timedelta | None = None
    reason: str | None = None

    @classmethod
    def fail(cls, reason: str | None = None) -> RetryDecision:
        """Fail without another try."""
        return cls(RetryAction.FAIL, None, reason)

    @classmethod
    def retry(cls, delay: timedelta | None = None, reason: str | None = None) -> RetryDecision:
        """Retry."""
        return cls(RetryAction.RETRY, delay, reason)

    @classmethod
    def default(cls) -> RetryDecision:
        """Do what Airflow does without a policy."""
        return cls()


class RetryPolicy:
    """Base class of policies."""
