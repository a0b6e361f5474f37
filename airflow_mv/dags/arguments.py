# SPDX-License-Identifier: Apache-2.0
"""The arguments of the DAGs that this package makes, with those that a DAG author gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dag_arguments(given: Mapping[str, Any], *, doc_md: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of ``DAG``: what the author gives, and a default for what they leave out.

    Tags and ``default_args`` are added to those of the package.

    Args:
        given: All that ``DAG`` takes.
        doc_md: The DAG's documentation.
        more: Further ``default_args``: a ``retry_delay`` for operators whose retry policy does not set it.
    """
    return {
        "catchup": False,
        "max_active_runs": 1,
        "doc_md": doc_md,
        **given,
        "tags": sorted({"airflow-mv", *(given.get("tags") or ())}),
        "default_args": {"retries": 2, **more, **(given.get("default_args") or {})},
    }
