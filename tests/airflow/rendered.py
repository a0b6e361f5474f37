# SPDX-License-Identifier: Apache-2.0
"""A program for an environment with the services' providers: show what the examples for managed Spark would submit.

``python -m tests.airflow.rendered FOLDER SERVICE…``: stdin has the XComs of a plan, as JSON. Stdout gets one JSON
object: what each provider would send, after its client library has checked it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.airflow.published import LivyBatch, SparkApplication, checked


class Plan:
    """The task instance of a run in which the plan has succeeded, as far as templates and XComArgs ask it."""

    def __init__(self, xcoms: dict[str, Any]) -> None:
        self._xcoms: dict[str, dict[str, Any]] = {"plan": xcoms}

    def add(self, task_id: str, value: Any) -> None:
        """Another task has returned this."""
        self._xcoms[task_id] = {"return_value": value}

    def xcom_pull(self, task_ids: Any = None, key: str = "return_value", **_: Any) -> Any:
        (task_id,) = [task_ids] if isinstance(task_ids, str) else task_ids
        return self._xcoms[task_id][key]


def checked_by_aws(service: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Check parameters against the service's own description of the operation."""
    import botocore.session
    from botocore.validate import ParamValidator

    model = botocore.session.get_session().get_service_model(service).operation_model(operation)
    report = ParamValidator().validate(parameters, model.input_shape)
    assert not report.has_errors(), report.generate_report()
    return parameters


def emr_serverless(operator: Any) -> dict[str, Any]:
    return checked_by_aws(
        "emr-serverless",
        "StartJobRun",
        {
            "applicationId": operator.application_id,
            "clientToken": "token",
            "executionRoleArn": operator.execution_role_arn,
            "jobDriver": operator.job_driver,
            "configurationOverrides": operator.configuration_overrides,
            "name": operator.name,
        },
    )


def emr(operator: Any) -> dict[str, Any]:
    return checked_by_aws("emr", "AddJobFlowSteps", {"JobFlowId": operator.job_flow_id, "Steps": operator.steps})


def glue(operator: Any) -> dict[str, Any]:
    command = {"Name": "glueetl", "ScriptLocation": operator.script_location}
    checked_by_aws("glue", "CreateJob", {"Name": operator.job_name, "Role": "role", "Command": command})
    arguments = {"JobName": operator.job_name, "Arguments": operator.script_args}
    return {**command, **checked_by_aws("glue", "StartJobRun", arguments)}


def dataproc(operator: Any) -> dict[str, Any]:
    from google.cloud.dataproc_v1 import Job

    return json.loads(Job.to_json(Job(operator.job)))  # an unknown field is refused


def databricks(operator: Any) -> dict[str, Any]:
    from airflow.providers.databricks.utils.databricks import normalise_json_content
    from databricks.sdk.service.jobs import SubmitTask

    sent: dict[str, Any] = normalise_json_content(operator.json)  # type: ignore[assignment]
    for task in sent["tasks"]:
        known = SubmitTask.from_dict(task).as_dict()
        assert known == task, "the SDK leaves out what the API does not have"
    return sent


def livy(operator: Any) -> dict[str, Any]:
    from airflow.providers.apache.livy.hooks.livy import LivyHook

    return checked(json.loads(json.dumps(LivyHook.build_post_batch_body(**operator.spark_params))), LivyBatch)


def kubernetes(operator: Any) -> dict[str, Any]:
    from airflow.providers.cncf.kubernetes.operators.custom_object_launcher import SparkJobSpec

    SparkJobSpec(**operator.template_body["spark"])
    return checked(json.loads(json.dumps(operator.template_body["spark"])), SparkApplication)["spec"]


SENT: dict[str, Callable[[Any], dict[str, Any]]] = {
    function.__name__: function for function in (databricks, emr, emr_serverless, dataproc, glue, livy, kubernetes)
}


def main(folder: str, services: list[str]) -> None:
    from tests.older import DagSerialization, dag_bag

    context: Any = {"ti": Plan(json.load(sys.stdin))}
    sent = {}
    for name in services or SENT:
        bag = dag_bag(f"{folder}/{name}.py", None)
        assert bag.import_errors == {}, bag.import_errors
        dag = bag.dags[f"managed_spark_{name}"]
        read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert read.get_task("spark").upstream_task_ids <= {"plan", "step"}, name
        assert read.get_task("commit").upstream_task_ids == {"plan", "spark"}, name
        spark = dag.get_task("spark").prepare_for_execution()
        if dag.has_task("step"):
            step = dag.get_task("step").prepare_for_execution()
            step.render_template_fields(context)
            context["ti"].add("step", step.python_callable(**step.op_kwargs))
        spark.render_template_fields(context)
        sent[name] = SENT[name](spark)
    print(json.dumps(sent))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
