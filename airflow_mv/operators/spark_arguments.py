# SPDX-License-Identifier: Apache-2.0
"""The arguments of the Spark provider's operator, without its import: Airflow parses DAG files again and again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from requests.auth import AuthBase


class SparkArgumentsOperator(BaseOperator):
    """An operator that takes what a ``SparkSubmitOperator`` takes to say how Spark runs, and keeps it.

    They are named one by one, because ``default_args`` and ``.partial()`` go by an operator's named arguments. What is
    ``None`` is left to the provider's default.
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
    )

    def __init__(  # noqa: PLR0913 (the provider has them)
        self,
        *,
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
        super().__init__(**kwargs)
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

    def spark_arguments(self) -> dict[str, Any]:
        """Return the given arguments, with templates rendered."""
        return {name: value for name in SPARK_ARGUMENTS if (value := getattr(self, name)) is not None}


#: The names of these arguments.
SPARK_ARGUMENTS = frozenset(
    name
    for name, parameter in inspect.signature(SparkArgumentsOperator.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)
