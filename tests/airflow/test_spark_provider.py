# SPDX-License-Identifier: Apache-2.0
"""The private parts of the Spark provider that are used. A release that changed one fails here."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.operators.spark_provider import LocalSparkSubmitHook, SubmittingOperator

#: Arguments of the hook that the operator has under the same name.
NAMES = [name for name in inspect.signature(SparkSubmitHook.__init__).parameters if name != "self"]
FLAGS = {"verbose", "use_krb5ccache", "track_driver_via_k8s_api", "yarn_track_via_rm_api"}


def _distinct(name: str) -> Any:
    return True if name in FLAGS else f"value of {name}"


class Submits(SubmittingOperator):
    """An operator whose hook records what it submits."""

    failing = False

    def new_hook(self) -> SparkSubmitHook:
        class Notes(LocalSparkSubmitHook):
            def submit(hook, application: str = "", **kwargs: Any) -> None:
                self.submitted = (application, hook, dict(self.conf))
                if self.failing:
                    raise RuntimeError("it fails")

        return Notes(**{**self.options(), "application_args": ["script"]})


def test_every_option_reaches_the_hook() -> None:
    """The operator stores them in attributes with and without an underscore; new options are included automatically."""
    given = {name: _distinct(name) for name in NAMES}
    operator = Submits(task_id="submit", application="", **given)
    assert operator.options() == given
    assert set(NAMES) <= set(inspect.signature(SparkSubmitOperator.__init__).parameters)


def test_default_args_reach_the_hook() -> None:
    """Including those that only the provider's class declares."""
    operator = RefreshMaterializedViewOperator(
        task_id="refresh", view="lake.sales.daily", default_args={"executor_memory": "7g", "deploy_mode": "cluster"}
    )
    assert (operator.options()["executor_memory"], operator.options()["deploy_mode"]) == ("7g", "cluster")


@pytest.mark.parametrize("failing", [False, True])
def test_each_submission_has_its_own_hook_and_does_not_change_the_options(failing: bool) -> None:
    """A second script of the same try must not be submitted with the arguments of the first one."""
    operator = Submits(task_id="submit", conf={"a": "b"}, openlineage_inject_parent_job_info=False)
    operator.failing = failing
    before = operator.options()
    hooks = []
    for number in (1, 2):
        context = {"dag_run": SimpleNamespace(clear_number=0)}
        if failing:
            with pytest.raises(RuntimeError, match="it fails"):
                operator.submit(context, f"main{number}.py", str(number))
        else:
            operator.submit(context, f"main{number}.py", str(number))
        application, hook, _ = operator.submitted
        assert (application, operator.hook) == (f"main{number}.py", hook)
        assert hook._connection["master"] == "local[*]"
        assert operator.external_id_key == f"spark_job_id:{number}"
        hooks.append(hook)
    assert hooks[0] is not hooks[1]
    assert operator.options() == before


def test_a_kill_before_a_submission_starts_nothing() -> None:
    """The provider's operator would create a hook and read a connection only to kill nothing."""
    Submits(task_id="submit", conn_id="nowhere").on_kill()


def test_the_state_key_of_a_driver_in_kubernetes_is_set_where_it_is_expected() -> None:
    """It has the submission's identity; otherwise a cleared task would use the state of an old driver."""
    assert SparkSubmitOperator._K8S_DRIVER_STATUS_KEY == "k8s_driver_status"
    operator = Submits(task_id="submit")
    operator.submit({}, "main.py", "1:abc")
    assert operator._K8S_DRIVER_STATUS_KEY == "k8s_driver_status:1:abc"
