# SPDX-License-Identifier: Apache-2.0
"""Lakes in each catalog and layout."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from airflow_mv.errors import AccessDeniedError
from tests.homes import NO_DELETE, STORE, every_home, registered_home

__all__ = ["every_home", "registered_home"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test whose command must delete files, where the store refuses that."""
    try:
        return (yield)
    except AccessDeniedError as error:
        if os.environ.get(STORE) == NO_DELETE and "(s3:DeleteObject)" in str(error):
            pytest.skip(f"refused by name: {error}")
        raise
