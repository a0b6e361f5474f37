# SPDX-License-Identifier: Apache-2.0
"""Links of a task: to its view in the Airflow UI, and to its Spark application."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_mv.tasks.older_airflow import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

#: The path of the page's application, below Airflow's base URL.
PAGE_PATH = "airflow-mv"
#: The route of the page in Airflow's UI.
PAGE_ROUTE = "materialized-views"
_APPLICATION = re.compile(r"[\w.-]{1,200}")


def page_url(view: str, *, base_url: str) -> str:
    """Return the URL of a view's page in Airflow's UI.

    Args:
        view: ``catalog.namespace.name``.
        base_url: Airflow's base URL, as in ``[api] base_url``.
    """
    base = base_url.rstrip("/")
    inside = f"{urlsplit(base).path}/{PAGE_PATH}/"
    return f"{base}/plugin/{PAGE_ROUTE}{inside}?{urlencode({'view': view})}"


class MaterializedViewLink(BaseOperatorLink):
    """The link *Materialized view*: shows the view's state, history and plan in Airflow's UI."""

    name = "Materialized view"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 (Airflow's name)
        """Return the URL; empty if the operator's view is unknown (yet)."""
        return _address(getattr(operator, "view", None))


class SparkApplicationLink(BaseOperatorLink):
    """The link *Spark application*: shows the task's job at ``[airflow_mv] spark_application_url``."""

    name = "Spark application"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 (Airflow's name)
        """Return the URL; empty if no job has run, or if the setting is empty."""
        return application_url(getattr(operator, "application_id", None))


def application_url(application_id: str | None) -> str:
    """Return the URL of a Spark application; empty if unknown.

    Args:
        application_id: Spark's id of the application. It comes from a file, so any other text is rejected.
    """
    pattern = conf.get("airflow_mv", "spark_application_url", fallback="")
    if not pattern or not application_id or not _APPLICATION.fullmatch(application_id):
        return ""
    return pattern.replace("{application_id}", application_id)


def show_link(context: Context, view: Any) -> None:
    """Store the link of a running task: Airflow itself creates links only when the task has ended."""
    address = _address(str(view))
    if address and "ti" in context:
        context["ti"].xcom_push(key=MaterializedViewLink().xcom_key, value=address)


def _address(view: Any) -> str:
    base_url = conf.get("api", "base_url", fallback="") or "/"
    return page_url(view, base_url=base_url) if isinstance(view, str) and view else ""
