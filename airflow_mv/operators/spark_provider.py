# SPDX-License-Identifier: Apache-2.0
"""Private names of the Spark provider that this package uses, in one place.

The provider's operator tracks a driver in a cluster, resumes it after a worker has died, and kills it, all through its
:class:`SparkSubmitHook`. Here a hook with its own arguments is made for each submission. No option of the operator is
overwritten.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection, Context

#: The arguments of a ``SparkSubmitOperator`` that say how Spark runs.
SPARK_ARGUMENTS = frozenset(
    name
    for name, parameter in inspect.signature(SparkSubmitOperator.__init__).parameters.items()
    if name != "self" and parameter.kind is inspect.Parameter.KEYWORD_ONLY
)


class SubmittingOperator(SparkSubmitOperator):
    """A ``SparkSubmitOperator`` that makes a new hook for each submission."""

    @property
    def hook(self) -> SparkSubmitHook | None:
        """The hook of the current or last submission."""
        return self._hook

    @abstractmethod
    def new_hook(self) -> SparkSubmitHook:
        """Return the hook of the next submission."""

    def options(self) -> dict[str, Any]:
        """Return the arguments of a :class:`SparkSubmitHook` as the user set them, with templates rendered."""
        names = [name for name in inspect.signature(SparkSubmitHook.__init__).parameters if name != "self"]
        return {name: getattr(self, name) if hasattr(self, name) else getattr(self, f"_{name}") for name in names}

    def submit(self, context: Context, application: str, identity: str) -> None:
        """Submit an application and wait for its end, or reattach to the one that an earlier try submitted.

        Args:
            context: The task's context.
            application: The file to submit.
            identity: Key: equal for submissions of which one is enough.
        """
        conf = self.conf
        self._hook = None
        self.application = application
        self.external_id_key = f"spark_job_id:{identity}"
        self._K8S_DRIVER_STATUS_KEY = f"k8s_driver_status:{identity}"
        try:
            SparkSubmitOperator.execute(self, context)
        finally:
            self.conf = conf  # the provider adds OpenLineage's settings

    def forget(self, context: Context) -> None:
        """Make the next :meth:`submit` submit again."""
        if (store := context.get("task_state_store")) is not None:
            store.delete(self.external_id_key)

    def on_kill(self) -> None:
        """Kill the submitted application."""
        if self._hook is not None:
            super().on_kill()

    def _get_hook(self) -> SparkSubmitHook:
        return self.new_hook()


class LocalSparkSubmitHook(SparkSubmitHook):
    """A hook for ``local[*]`` without a connection: the provider's default is YARN."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Return a connection to this host."""
        return Connection(conn_id=conn_id, conn_type="spark", host="local[*]")
