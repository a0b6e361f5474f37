# SPDX-License-Identifier: Apache-2.0
"""The keyword arguments that operators, sensors and factories pass on, for type checkers and editors (PEP 692).

Each is named once here, not in every signature. A test compares them with Airflow's signatures and with those of the
operators. Nothing imports this module while a DAG file is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from airflow.sdk import DAG, Context, RetryPolicy, TaskGroup, XComArg
from requests.auth import AuthBase

from airflow_mv.checks import Check
from airflow_mv.core.spec.choices import FallbackPolicy, LayoutName, OnChange, RefreshStrategy
from airflow_mv.tasks.scope import ScopeName

CheckItem = Check | str | Mapping[str, Any] | Callable[[Any], Any]
#: Checks as a DAG file writes them, see :mod:`airflow_mv.checks`.
Checks = CheckItem | Sequence[CheckItem] | XComArg | None
Callback = Callable[[Context], None]
Callbacks = Callback | list[Callback] | None


class AnyTaskKeywords(TypedDict, total=False):
    """Arguments of ``BaseOperator``, without those for which some operators of this package have another default."""

    owner: str
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    dag: DAG | None
    params: MutableMapping[str, Any] | None
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: Any
    queue: str
    pool: str | None
    pool_slots: int
    execution_timeout: timedelta | None
    on_execute_callback: Callbacks
    on_failure_callback: Callbacks
    on_success_callback: Callbacks
    on_retry_callback: Callbacks
    on_skipped_callback: Callbacks
    pre_execute: Callable[[Context], None] | None
    post_execute: Callable[[Context, Any], None] | None
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    multiple_outputs: bool
    inlets: Any
    outlets: Any
    task_group: TaskGroup | None
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class _IdKeywords(TypedDict):
    task_id: str


class _RetryKeywords(TypedDict, total=False):
    retry_delay: timedelta | float
    retry_policy: RetryPolicy | None


class _LimitKeywords(TypedDict, total=False):
    max_active_tis_per_dag: int | None


class _RuleKeywords(TypedDict, total=False):
    trigger_rule: str


class LimitedTaskKeywords(_IdKeywords, AnyTaskKeywords, _RetryKeywords, _LimitKeywords, total=False):
    """Arguments of ``BaseOperator``, for an operator with a ``trigger_rule`` of its own."""


class TaskKeywords(LimitedTaskKeywords, _RuleKeywords, total=False):
    """All that ``BaseOperator`` takes."""


class SensorKeywords(TaskKeywords, total=False):
    """All that ``BaseSensorOperator`` takes. The sensors of this package wait with ``mode="reschedule"`` by default."""

    poke_interval: timedelta | float
    timeout: timedelta | float | None
    soft_fail: bool
    mode: Literal["poke", "reschedule"] | None
    exponential_backoff: bool
    max_wait: timedelta | float | None
    silent_fail: bool
    never_fail: bool


class SparkArguments(TypedDict, total=False):
    """How Spark runs, as for ``SparkSubmitOperator``, without the application and its ``name``."""

    conf: Mapping[Any, Any] | None
    files: str | None
    py_files: str | None
    archives: str | None
    driver_class_path: str | None
    jars: str | None
    packages: str | None
    exclude_packages: str | None
    repositories: str | None
    total_executor_cores: int | None
    executor_cores: int | None
    executor_memory: str | None
    driver_memory: str | None
    keytab: str | None
    principal: str | None
    proxy_user: str | None
    num_executors: int | None
    status_poll_interval: int | None
    env_vars: Mapping[str, Any] | None
    verbose: bool | None
    spark_binary: str | None
    properties_file: str | None
    yarn_queue: str | None
    deploy_mode: str | None
    use_krb5ccache: bool | None
    post_submit_commands: Sequence[str] | None
    track_driver_via_k8s_api: bool | None
    yarn_track_via_rm_api: bool | None
    yarn_rm_auth: AuthBase | None
    openlineage_inject_parent_job_info: bool | None
    openlineage_inject_transport_info: bool | None
    reconnect_on_retry: bool | None
    durable: bool | None


class Connections(TypedDict, total=False):
    """The connections of a task that runs Spark."""

    iceberg_conn_id: str
    spark_conn_id: str


class SparkKeywords(_IdKeywords, AnyTaskKeywords, _RetryKeywords, _RuleKeywords, SparkArguments, total=False):
    """Arguments that a task with Spark passes on to ``BaseOperator`` and ``SparkSubmitOperator``."""


class SharedSparkKeywords(SparkKeywords, _LimitKeywords, total=False):
    """The same for the task of a shared application."""


class SparkTaskArguments(
    AnyTaskKeywords, _RetryKeywords, _LimitKeywords, _RuleKeywords, SparkArguments, Connections, total=False
):
    """The arguments of tasks that run Spark, as a chain gives them to all of its own."""

    task_id: str
    name: str | None


class ShareKeywords(SparkTaskArguments, total=False):
    """Arguments that ``share_spark_application`` passes on; ``task_id`` is ``spark_application`` by default."""

    idle_seconds: float
    starved_seconds: float


class RefreshArguments(TypedDict, total=False):
    """Arguments of ``RefreshMaterializedViewOperator`` and ``PlanRefreshOperator`` for the plan of a refresh."""

    as_of: str | datetime | None
    full: bool | str
    on_fallback: FallbackPolicy | None
    max_full_bytes: int | str | None
    pins: Any
    checks: Checks
    scope: ScopeName
    interval_column: str | None
    interval_length: str | timedelta | None
    max_snapshots: int | str | None
    max_bytes: int | str | None


class RefreshKeywords(SparkTaskArguments, RefreshArguments, total=False):
    """Arguments that a chain passes on to its ``RefreshMaterializedViewOperator``."""

    spark_application: str | None
    deferrable: bool | None
    with_inputs: bool


class PartialRefreshKeywords(RefreshKeywords, total=False):
    """Arguments of ``RefreshMaterializedViewOperator.partial``."""

    view: str


class CreateKeywords(SparkTaskArguments, total=False):
    """Arguments that a chain passes on to its ``CreateMaterializedViewOperator``."""

    spark_application: str | None
    deferrable: bool | None
    refresh_strategy: RefreshStrategy | None
    allow_stale_data: bool | None
    time_travel: bool | None
    partition_by: Sequence[str]
    sort_by: str | None
    properties: Mapping[str, str] | None
    checks: Checks
    layout: LayoutName | None
    dialects: Sequence[str]
    columns: Sequence[str] | None
    comment: str | None
    column_comments: Mapping[str, str] | None
    storage_name: str | None
    transpile: bool
    on_change: OnChange
    adopt: bool
    require: Sequence[str]


class DagKeywords(TypedDict, total=False):
    """All that ``DAG`` takes, without its id and its schedule."""

    description: str | None
    default_args: dict[str, Any] | None
    start_date: datetime | None
    end_date: datetime | None
    template_searchpath: str | Iterable[str] | None
    template_undefined: Any
    user_defined_macros: dict[str, Any] | None
    user_defined_filters: dict[str, Any] | None
    max_active_tasks: int
    max_active_runs: int
    max_consecutive_failed_dag_runs: int
    dagrun_timeout: timedelta | None
    deadline: Any
    catchup: bool
    on_success_callback: Callbacks
    on_failure_callback: Callbacks
    doc_md: str | None
    params: MutableMapping[str, Any] | None
    access_control: Any
    is_paused_upon_creation: bool | None
    jinja_environment_kwargs: dict[str, Any] | None
    render_template_as_native_obj: bool
    tags: Collection[str] | None
    owner_links: dict[str, str]
    auto_register: bool
    fail_fast: bool
    allowed_run_types: Any
    dag_display_name: str
    disable_bundle_versioning: bool
    rerun_with_latest_version: bool | None


class ChainKeywords(DagKeywords, total=False):
    """Arguments that ``materialized_views_dags`` passes on to ``materialized_views_dag``."""

    namespace: str | None
    depth: int
    scope: ScopeName
    connections: Connections | None
    spark: SparkTaskArguments | None
    refresh: RefreshKeywords | None
    spark_application: Literal["auto", "per-task", "shared"]


class GroupKeywords(TypedDict, total=False):
    """All that ``TaskGroup`` takes, without its id."""

    group_display_name: str
    prefix_group_id: bool
    parent_group: TaskGroup | None
    dag: DAG
    default_args: Any
    tooltip: str
    doc_md: str | None
    ui_color: str
    ui_fgcolor: str
    add_suffix_on_collision: bool
