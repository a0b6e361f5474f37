# SPDX-License-Identifier: Apache-2.0
"""The private parts of the Spark provider that are used. A release that changed one fails here."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_mv.errors import ConfigurationError
from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.operators.spark_arguments import SPARK_ARGUMENTS, SparkTaskOperator
from airflow_mv.operators.spark_provider import HAS_DRIVER_IDS, LATER_ARGUMENTS, SparkSubmission, submit_hook

#: What each submission sets itself.
OWN = {"application", "application_args", "java_class", "conn_id"}
CONNECTIONS = {"iceberg_conn_id", "spark_conn_id"}
OF_OPERATOR = {
    name
    for name, parameter in inspect.signature(SparkSubmitOperator.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}
OF_HOOK = set(inspect.signature(SparkSubmitHook.__init__).parameters) - {"self"}
FLAGS = {"verbose", "use_krb5ccache", "track_driver_via_k8s_api", "yarn_track_via_rm_api", "durable"}


def _distinct(name: str) -> Any:
    return True if name in FLAGS else f"value of {name}"


def _submission(fails: bool = False, **arguments: Any) -> tuple[SparkSubmission, list[Any]]:
    """A submission whose hook records what it submits."""
    submitted: list[Any] = []

    def new_hook(conf: Any) -> SparkSubmitHook:
        hook = submit_hook({**arguments, "conf": conf}, local=True)

        def submit(application: str = "", **kwargs: Any) -> None:
            submitted.append((application, hook, dict(conf)))
            if fails:
                raise RuntimeError("it fails")

        hook.submit = submit
        return hook

    return SparkSubmission(task_id="submit", identity="1:abc", new_hook=new_hook, **arguments), submitted


def test_the_operators_take_and_render_what_the_provider_s_operator_does() -> None:
    """A release with a new argument or template field fails here: it is added by hand."""
    lacking = SPARK_ARGUMENTS - (OF_OPERATOR - OWN)
    assert OF_OPERATOR - OWN <= SPARK_ARGUMENTS
    assert lacking == (LATER_ARGUMENTS if not HAS_DRIVER_IDS else lacking & {"durable"})  # 6.3.1 takes it unnamed
    assert set(SparkTaskOperator.template_fields) - CONNECTIONS == set(SparkSubmitOperator.template_fields) - OWN
    assert OF_HOOK <= OF_OPERATOR


def test_every_option_reaches_the_provider() -> None:
    """With the value that was given; one that was not is left to the provider's default."""
    left_out = {"reconnect_on_retry"} if HAS_DRIVER_IDS else LATER_ARGUMENTS
    given = {name: _distinct(name) for name in SPARK_ARGUMENTS - left_out}
    operator = SparkTaskOperator(task_id="submit", **given)
    assert operator.spark_task().arguments == given
    hook = submit_hook(operator.spark_task().arguments, local=False)
    theirs = SparkSubmitOperator(task_id="theirs", **given)._get_hook()
    shown = [{key: value for key, value in vars(each).items() if key != "_log"} for each in (hook, theirs)]
    assert shown[0] == shown[1]
    assert SparkTaskOperator(task_id="none").spark_task().arguments == {}


def test_default_args_reach_the_hook() -> None:
    """Airflow goes by the named arguments of each class."""
    operator = RefreshMaterializedViewOperator(
        task_id="refresh", view="lake.sales.daily", default_args={"executor_memory": "7g", "deploy_mode": "cluster"}
    )
    found = operator.spark_task().arguments
    assert (found["executor_memory"], found["deploy_mode"]) == ("7g", "cluster")


@pytest.mark.parametrize("fails", [False, True])
def test_a_submission_has_a_hook_of_its_own(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is made once the provider has added OpenLineage's settings, and Airflow does not warn of a nested operator."""
    submission, submitted = _submission(fails, application="main.py", conf={"a": "b"}, executor_memory="7g")
    context = {"dag_run": SimpleNamespace(clear_number=0)}
    assert submission.hook is None
    if fails:
        with pytest.raises(RuntimeError, match="it fails"):
            submission.submit(context)
    else:
        submission.submit(context)
    assert submitted == [("main.py", submission.hook, {"a": "b"})]
    assert submission.hook._connection["master"] == "local[*]"
    assert submission.hook._executor_memory == "7g"
    assert "outside of the Task Runner" not in caplog.text


def test_a_kill_before_a_submission_starts_nothing() -> None:
    """The provider's operator would create a hook and read a connection only to kill nothing."""
    submission, submitted = _submission(conn_id="nowhere")
    submission.on_kill()
    assert (submission.hook, submitted) == (None, [])


@pytest.mark.skipif(HAS_DRIVER_IDS, reason="this Spark provider has all arguments")
def test_an_argument_that_the_provider_lacks_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no argument 'yarn_track_via_rm_api': leave it out"):
        _submission(yarn_track_via_rm_api=True)


@pytest.mark.skipif(not HAS_DRIVER_IDS, reason="this Spark provider stores no ids of drivers")
def test_the_keys_of_task_state_have_the_submission_s_identity() -> None:
    """Otherwise a cleared task would use the state of an old driver."""
    assert SparkSubmitOperator._K8S_DRIVER_STATUS_KEY == "k8s_driver_status"
    submission, _ = _submission()
    assert submission.external_id_key == "spark_job_id:1:abc"
    assert submission._K8S_DRIVER_STATUS_KEY == "k8s_driver_status:1:abc"
