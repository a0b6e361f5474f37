# SPDX-License-Identifier: Apache-2.0
"""Links from a task: to its view on the page of all views, and to its Spark application."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

#: Where the page's own application is, below Airflow's address.
PAGE_PATH = "airflow-mv"
#: What Airflow's UI calls the page that shows it.
PAGE_ROUTE = "materialized-views"
_APPLICATION = re.compile(r"[\w.-]{1,200}")


def page_url(view: str, *, base_url: str) -> str:
    """Return the address that shows a view on the page, inside Airflow's UI.

    Args:
        view: ``catalog.namespace.name``.
        base_url: Airflow's own address, as ``[api] base_url`` has it.
    """
    base = base_url.rstrip("/")
    inside = f"{urlsplit(base).path}/{PAGE_PATH}/"
    return f"{base}/plugin/{PAGE_ROUTE}{inside}?{urlencode({'view': view})}"


class MaterializedViewLink(BaseOperatorLink):
    """*Materialized view*: the view's state, history and plan, on the page in Airflow's UI."""

    name = "Materialized view"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 (Airflow's name)
        """Return the address; empty where the operator does not know its view (yet)."""
        return _address(getattr(operator, "view", None))


class SparkApplicationLink(BaseOperatorLink):
    """*Spark application*: the job that the task ran, where ``[airflow_mv] spark_application_url`` says."""

    name = "Spark application"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 (Airflow's name)
        """Return the address; empty where no job has run, or nothing says where applications are shown."""
        return application_url(getattr(operator, "application_id", None))


def application_url(application_id: str | None) -> str:
    """Return where a Spark application is shown, or nothing.

    Args:
        application_id: As Spark names it; it comes from a file, so anything else is no part of an address.
    """
    pattern = conf.get("airflow_mv", "spark_application_url", fallback="")
    if not pattern or not application_id or not _APPLICATION.fullmatch(application_id):
        return ""
    return pattern.replace("{application_id}", application_id)


def show_link(context: Context, view: Any) -> None:
    """Give a running task its link at once: Airflow itself makes it only when the task has ended.

    Args:
        context: The task's context.
        view: The view's name.
    """
    address = _address(str(view))
    if address and "ti" in context:
        context["ti"].xcom_push(key=MaterializedViewLink().xcom_key, value=address)


def _address(view: Any) -> str:
    base_url = conf.get("api", "base_url", fallback="") or "/"
    return page_url(view, base_url=base_url) if isinstance(view, str) and view else ""
