# SPDX-License-Identifier: Apache-2.0
"""Errors as Airflow understands them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from airflow_mv.errors import MaterializedViewError

log = logging.getLogger(__name__)


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn errors that are not retryable into Airflow's "fail without retry". Other errors pass.

    For tasks without this package's retry policy: sensors.

    Raises:
        AirflowFailException: In place of an error that is not retryable.
    """
    try:
        yield
    except MaterializedViewError as error:
        if error.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from None


class task_errors:
    """Raise errors of this package without their inner stack: the message says what to do, and where.

    For tasks with :class:`airflow_mv.retries.MaterializedViewRetryPolicy`, which decides about retries. The
    full stack is logged at level DEBUG.
    """

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise an error of this package again, from here."""
        if isinstance(error, MaterializedViewError):
            log.debug("where it was raised", exc_info=error)
            raise error.with_traceback(None) from None
