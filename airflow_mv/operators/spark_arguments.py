# SPDX-License-Identifier: Apache-2.0
"""The base of the tasks that run Spark. It does not import the Spark provider: Airflow parses DAG files repeatedly."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID
from airflow_mv.hooks.iceberg import mask
from airflow_mv.retries import DEFAULT_RETRY_DELAY, DEFAULT_RETRY_POLICY, with_policy
from airflow_mv.tasks.literals import CheckedOperator

if TYPE_CHECKING:
    from airflow.sdk import RetryPolicy
    from airflow.sdk.types import Logger
    from requests.auth import AuthBase


#: Arguments that the operators set themselves.
_OWN = ("application", "application_args", "java_class", "conn_id")
#: Values that are never secrets, whatever their key (``….credentials.hive.enabled``): masking them would garble logs.
_PLAIN = re.compile(r"(?i)true|false|none|\d{1,9}|")


@dataclass(frozen=True, slots=True)
class SparkTask:
    """A task's arguments for Spark, with templates rendered.

    Args:
        iceberg_conn_id: Its connection of type ``iceberg``.
        spark_conn_id: Its connection of type ``spark`` or ``spark_connect``.
        arguments: The given arguments of a ``SparkSubmitOperator``.
        log: The task's log.
    """

    task_id: str
    iceberg_conn_id: str
    spark_conn_id: str
    arguments: Mapping[str, Any]
    log: Logger


class SparkTaskOperator(CheckedOperator):
    """A task that takes what a ``SparkSubmitOperator`` takes to say how Spark runs, and masks the secrets among it.

    The arguments are named one by one, because ``default_args`` and ``.partial()`` go by an operator's named arguments.
    What is ``None`` is left to the provider's default.

    Args:
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        retry_policy: As for ``BaseOperator`` of Airflow 3.3.
        retry_delay: As for ``BaseOperator``. By default 45 s, which is the delay after a killed process.
        **kwargs: All arguments of ``SparkSubmitOperator`` except the application, and of ``BaseOperator``.
            ``packages=""`` adds no Maven packages: the cluster has the jars.
    """

    template_fields: Sequence[str] = (
        "conf",
        "files",
        "py_files",
        "jars",
        "driver_class_path",
        "packages",
        "exclude_packages",
        "keytab",
        "principal",
        "proxy_user",
        "name",
        "env_vars",
        "post_submit_commands",
        "properties_file",
        "iceberg_conn_id",
        "spark_conn_id",
    )
    #: A view may well be named ``lake.reports.sql``: no field may be read as the name of a template file.
    template_ext: Sequence[str] = ()
    ui_color: str = "#d9efe5"

    def __init__(  # noqa: PLR0913 (the provider has them)
        self,
        *,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        retry_policy: RetryPolicy | None = DEFAULT_RETRY_POLICY,
        retry_delay: timedelta | float = DEFAULT_RETRY_DELAY,
        conf: Mapping[Any, Any] | None = None,
        files: str | None = None,
        py_files: str | None = None,
        archives: str | None = None,
        driver_class_path: str | None = None,
        jars: str | None = None,
        packages: str | None = None,
        exclude_packages: str | None = None,
        repositories: str | None = None,
        total_executor_cores: int | None = None,
        executor_cores: int | None = None,
        executor_memory: str | None = None,
        driver_memory: str | None = None,
        keytab: str | None = None,
        principal: str | None = None,
        proxy_user: str | None = None,
        name: str | None = None,
        num_executors: int | None = None,
        status_poll_interval: int | None = None,
        env_vars: Mapping[str, Any] | None = None,
        verbose: bool | None = None,
        spark_binary: str | None = None,
        properties_file: str | None = None,
        yarn_queue: str | None = None,
        deploy_mode: str | None = None,
        use_krb5ccache: bool | None = None,
        post_submit_commands: Sequence[str] | None = None,
        track_driver_via_k8s_api: bool | None = None,
        yarn_track_via_rm_api: bool | None = None,
        yarn_rm_auth: AuthBase | None = None,
        openlineage_inject_parent_job_info: bool | None = None,
        openlineage_inject_transport_info: bool | None = None,
        reconnect_on_retry: bool | None = None,
        durable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        for key in _OWN:
            if key in kwargs:
                advice = "use spark_conn_id" if key == "conn_id" else "the operator sets it itself"
                raise ConfigurationError(f"{type(self).__name__} has no argument {key!r}: {advice}")
        super().__init__(retry_delay=retry_delay, **with_policy(retry_policy), **kwargs)
        self.retry_policy = retry_policy
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self.conf = conf
        self.files = files
        self.py_files = py_files
        self.archives = archives
        self.driver_class_path = driver_class_path
        self.jars = jars
        self.packages = packages
        self.exclude_packages = exclude_packages
        self.repositories = repositories
        self.total_executor_cores = total_executor_cores
        self.executor_cores = executor_cores
        self.executor_memory = executor_memory
        self.driver_memory = driver_memory
        self.keytab = keytab
        self.principal = principal
        self.proxy_user = proxy_user
        self.name = name
        self.num_executors = num_executors
        self.status_poll_interval = status_poll_interval
        self.env_vars = env_vars
        self.verbose = verbose
        self.spark_binary = spark_binary
        self.properties_file = properties_file
        self.yarn_queue = yarn_queue
        self.deploy_mode = deploy_mode
        self.use_krb5ccache = use_krb5ccache
        self.post_submit_commands = post_submit_commands
        self.track_driver_via_k8s_api = track_driver_via_k8s_api
        self.yarn_track_via_rm_api = yarn_track_via_rm_api
        self.yarn_rm_auth = yarn_rm_auth
        self.openlineage_inject_parent_job_info = openlineage_inject_parent_job_info
        self.openlineage_inject_transport_info = openlineage_inject_transport_info
        self.reconnect_on_retry = reconnect_on_retry
        self.durable = durable

    def spark_task(self) -> SparkTask:
        """Return what the task says about Spark, with templates rendered."""
        given = {name: value for name in SPARK_ARGUMENTS if (value := getattr(self, name)) is not None}
        return SparkTask(self.task_id, self.iceberg_conn_id, self.spark_conn_id, given, self.log)

    def _do_render_template_fields(self, *args: Any, **kwargs: Any) -> None:
        """Render the fields, and mask their secrets: Airflow stores them next.

        For a mapped task this is the only method that sees them.
        """
        self._mask_settings()  # unrendered too: a rendering error quotes it
        super()._do_render_template_fields(*args, **kwargs)
        self._mask_settings()

    def _mask_settings(self) -> None:
        for settings in (self.conf, self.env_vars):
            if isinstance(settings, Mapping):
                mask({str(key): value for key, value in settings.items() if not _PLAIN.fullmatch(str(value))})


#: The names of the arguments that the provider takes.
SPARK_ARGUMENTS = frozenset(
    name
    for name, parameter in inspect.signature(SparkTaskOperator.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
) - {"iceberg_conn_id", "spark_conn_id", "retry_policy", "retry_delay"}
