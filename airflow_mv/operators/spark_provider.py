# SPDX-License-Identifier: Apache-2.0
"""Private names of the Spark provider that this package uses, in one place. Only a task that submits imports it.

The provider's operator tracks a driver in a cluster, resumes it after a worker has died, and kills it, all through its
:class:`SparkSubmitHook`. Here one is made for each submission, with a hook of that submission's own arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection, Context

from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks.spark_driver import attach

#: Arguments that the Spark provider 6.0 lacks. It has no ids of drivers either, nor what follows from them here.
LATER_ARGUMENTS = frozenset(
    {"durable", "reconnect_on_retry", "track_driver_via_k8s_api", "yarn_rm_auth", "yarn_track_via_rm_api"}
)
HAS_DRIVER_IDS = hasattr(SparkSubmitOperator, "submit_job")


class SparkSubmission(SparkSubmitOperator):
    """One submission of an application by a task. No DAG has this operator.

    Args:
        identity: Key: equal for submissions that need to run only once.
        new_hook: Makes the hook, from the Spark settings with those that the provider adds for OpenLineage.
        on_submit: If given, :meth:`submit` does not wait for a driver in a cluster that can be found by an id. Called
            before such a driver is submitted, and not if one of an earlier try is found.
        **arguments: The task's id, and what a ``SparkSubmitOperator`` takes.

    Raises:
        ConfigurationError: The provider has no such argument.
    """

    def __init__(
        self,
        *,
        identity: str,
        new_hook: Callable[[Mapping[Any, Any]], SparkSubmitHook],
        on_submit: Callable[[], object] | None = None,
        **arguments: Any,
    ) -> None:
        if not HAS_DRIVER_IDS and (unknown := LATER_ARGUMENTS & arguments.keys()):
            raise ConfigurationError(
                f"the installed Spark provider has no argument {min(unknown)!r}: leave it out, or install a newer "
                "apache-airflow-providers-apache-spark"
            )
        super().__init__(**arguments)
        self.external_id_key = f"spark_job_id:{identity}"
        self._K8S_DRIVER_STATUS_KEY = f"k8s_driver_status:{identity}"
        self._new_hook = new_hook
        self._on_submit = on_submit
        #: The id of the driver that was not waited for.
        self.driver: str | None = None

    @property
    def hook(self) -> SparkSubmitHook | None:
        """The hook, once there is one."""
        return self._hook

    def submit(self, context: Context) -> None:
        """Submit the application and wait for its end, or reattach to the one that an earlier try submitted.

        Args:
            context: The task's context.
        """
        # Unwrapped: Airflow warns of an operator that another operator executes.
        inspect.unwrap(SparkSubmitOperator.execute)(self, context)

    def submit_job(self, context: Context) -> str | None:
        """Submit a driver in a cluster."""
        if self._on_submit is not None:
            self._on_submit()
        return super().submit_job(context)

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait for the end of a driver in a cluster, or only keep its id."""
        if self._on_submit is None:
            super().poll_until_complete(external_id, context)
        else:
            self.driver = str(external_id)

    def ask(self, driver: str, context: Context) -> tuple[bool | None, str]:
        """Ask the cluster for a driver that an earlier process has submitted; :meth:`on_kill` kills it from now on.

        Returns:
            Whether it runs, ``None`` if the cluster gives no answer, and what the cluster said.
        """
        self._hook = self._get_hook()
        attach(self._hook, driver)
        try:
            status = self.get_job_status(driver, context)
        except Exception as error:  # noqa: BLE001 (each cluster's client has its own)
            return None, f"{type(error).__name__}: {error}"
        return self.is_job_active(status), status

    def forget(self, context: Context) -> None:
        """Make the next submission with this identity submit again."""
        if (store := context.get("task_state_store")) is not None:
            store.delete(self.external_id_key)

    def on_kill(self) -> None:
        """Kill the submitted application."""
        if self._hook is not None:
            super().on_kill()

    def _get_hook(self) -> SparkSubmitHook:
        return self._new_hook(self.conf or {})


class LocalSparkSubmitHook(SparkSubmitHook):
    """A hook for ``local[*]`` without a connection: the provider's default is YARN."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Return a connection to this host."""
        return Connection(conn_id=conn_id, conn_type="spark", host="local[*]")


def submit_hook(
    arguments: Mapping[str, Any], *, local: bool, environment: Mapping[str, str] | None = None
) -> SparkSubmitHook:
    """Make a hook.

    Args:
        arguments: Arguments of a ``SparkSubmitOperator``: those that its hook does not take are left out.
        local: Whether there is no connection, and Spark runs on this host.
        environment: Variables of the ``spark-submit`` process alone, beside those of this process.
    """
    taken = inspect.signature(SparkSubmitHook.__init__).parameters
    kind = LocalSparkSubmitHook if local else SparkSubmitHook
    hook = kind(**{name: value for name, value in arguments.items() if name in taken})
    if environment:
        hook._env = dict(environment)
    return hook
