# SPDX-License-Identifier: Apache-2.0
"""Retries after an error of this package: whether and when Airflow retries a task, and the message in its log."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import BaseOperator

from airflow_mv.errors import CommitError, MaterializedViewError
from airflow_mv.tasks.older_airflow import (
    BEFORE_3_3,
    AirflowFailException,
    RetryAction,
    RetryDecision,
    RetryPolicy,
    conf,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

_AIRFLOWS_DELAY_SECONDS = 300
#: The operators' ``retry_delay``. It applies where no policy is asked: the task's process was killed, and Airflow found
#: out later, by its missing heartbeats. Waiting longer has no use then, because nothing else has failed.
DEFAULT_RETRY_DELAY = timedelta(seconds=45)


class MaterializedViewRetryPolicy(RetryPolicy):
    """Fail at once if a retry cannot help. Otherwise retry: soon after a conflict, with back-off after an outage.

    An error can be retried if its :attr:`airflow_mv.errors.MaterializedViewError.retryable` is true; the sensors and
    the command line use the same attribute. Errors of other packages are left to Airflow's default.

    This is the default ``retry_policy`` of the operators of this package; set another one, or ``None``, to replace
    it. It never retries more often than ``retries`` allows. A ``retry_delay`` that a task sets is kept: the delays
    below replace only the operators' default (:data:`DEFAULT_RETRY_DELAY`) and Airflow's (``[core]
    default_task_retry_delay``).

    Before Airflow 3.3 an error that another try cannot solve also fails the task at once, but the delays below have no
    effect: each retry comes after the task's ``retry_delay``.

    Args:
        conflict: Shortest delay after a conflict or an unknown outcome. The delay is random, up to three times as
            long, so that the tasks of one conflict do not conflict again.
        outage: Delay after the first failure of a catalog or of Spark; each further failure in a row doubles it.
        longest: The longest delay after an outage.
    """

    def __init__(
        self,
        *,
        conflict: timedelta = timedelta(seconds=5),
        outage: timedelta = timedelta(seconds=20),
        longest: timedelta = timedelta(minutes=10),
    ) -> None:
        self.conflict = conflict
        self.outage = outage
        self.longest = longest

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide about one failure.

        Args:
            exception: The exception that the task raised.
            try_number: The try that failed, from 1; clearing a task does not reset it.
            max_tries: The last try.
        """
        if not isinstance(exception, MaterializedViewError):
            return RetryDecision.default()
        name = type(exception).__name__
        if not exception.retryable:
            return RetryDecision.fail(f"{name}: another try would fail in the same way")
        if try_number > max_tries:
            return RetryDecision.default()
        task = context["ti"].task if context else None
        if task is not None and task.retry_delay not in (DEFAULT_RETRY_DELAY, _airflows_delay()):
            return RetryDecision.retry(reason=f"{name}: another try may succeed")
        failures = try_number if task is None else try_number - (max_tries - (task.retries or 0))
        delay = self._conflict_delay() if isinstance(exception, CommitError) else self._outage_delay(failures)
        return RetryDecision.retry(delay, f"{name}: another try may succeed, in {round(delay.total_seconds())} s")

    def _conflict_delay(self) -> timedelta:
        return self.conflict * random.uniform(1, 3)  # noqa: S311 (not a secret)

    def _outage_delay(self, failures: int) -> timedelta:
        doubled = self.outage * 2.0 ** min(max(failures, 1) - 1, 20)
        # Up to a tenth more, so that the tasks of one outage do not all retry in the same second.
        return min(doubled, self.longest) * random.uniform(1, 1.1)  # noqa: S311

    def serialize(self) -> dict[str, Any]:
        """Return the JSON form: seconds by argument."""
        return {name: getattr(self, name).total_seconds() for name in ("conflict", "outage", "longest")}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> MaterializedViewRetryPolicy:
        """Read what :meth:`serialize` returned."""
        return cls(**{name: timedelta(seconds=seconds) for name, seconds in data.items()})


def _airflows_delay() -> timedelta:
    seconds = conf.getint("core", "default_task_retry_delay", fallback=_AIRFLOWS_DELAY_SECONDS)
    return timedelta(seconds=seconds)


#: The default of the operators of this package.
DEFAULT_RETRY_POLICY = MaterializedViewRetryPolicy()


class RetriedOperator(BaseOperator):
    """A task that is retried by the type of its error. It must come before Airflow's own operators among the bases.

    Args:
        retry_policy: As for ``BaseOperator`` of Airflow 3.3.
        retry_delay: As for ``BaseOperator``. By default 45 s, which is the delay after a killed process.
        **kwargs: Arguments of the other bases.
    """

    def __init__(
        self,
        *,
        retry_policy: RetryPolicy | None = DEFAULT_RETRY_POLICY,
        retry_delay: timedelta | float = DEFAULT_RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retry_delay=retry_delay, **with_policy(retry_policy), **kwargs)
        self.retry_policy = retry_policy


def with_policy(retry_policy: RetryPolicy | None) -> dict[str, Any]:
    """Return the argument by which ``BaseOperator`` takes the policy: Airflow before 3.3 has none."""
    return {} if BEFORE_3_3 else {"retry_policy": retry_policy}


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn errors that are not retryable into Airflow's "fail without retry". Other errors pass.

    For tasks without :class:`MaterializedViewRetryPolicy`: sensors.

    Raises:
        AirflowFailException: In place of an error that is not retryable.
    """
    try:
        yield
    except MaterializedViewError as error:
        if error.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from None


class _HasRetryPolicy(Protocol):
    retry_policy: RetryPolicy | None


class task_errors:
    """Raise errors of this package without their inner stack: the message says what to do, and where.

    The task's :class:`MaterializedViewRetryPolicy` decides about retries: it is asked by Airflow, and before Airflow
    3.3 here. The full stack is logged at level DEBUG.
    """

    def __init__(self, task: _HasRetryPolicy) -> None:
        self.task = task

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise an error of this package again, from here.

        Raises:
            AirflowFailException: Before Airflow 3.3, in place of an error that is not to be retried.
        """
        if not isinstance(error, MaterializedViewError):
            return
        log.debug("where it was raised", exc_info=error)
        if BEFORE_3_3 and self.task.retry_policy is not None:
            decision = self.task.retry_policy.evaluate(error, 1, 1)
            if decision.action == RetryAction.FAIL:
                log.info("Retry policy: %s", decision.reason)
                raise AirflowFailException(f"{type(error).__name__}: {error}") from None
        raise error.with_traceback(None) from None
