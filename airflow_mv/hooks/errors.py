# SPDX-License-Identifier: Apache-2.0
"""Errors as Airflow understands them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from airflow_mv.errors import MaterializedViewError


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn errors that a retry cannot mend into Airflow's "fail without retry"; the others pass.

    Raises:
        AirflowFailException: In place of an error that is not retryable.
    """
    try:
        yield
    except MaterializedViewError as error:
        if error.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from None
