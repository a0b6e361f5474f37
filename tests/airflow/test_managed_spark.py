# SPDX-License-Identifier: Apache-2.0
"""Services that run Spark get all they need from a plan's XComs, and the examples for them fit the real providers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import VIEW, Airflow
from tests.builders import Lake

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "dags_examples" / "managed_spark"
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0"
PASSWORD = "{{secrets/airflow-mv/lake-password}}"
PROVIDERS = ("apache-livy==4.6.4", "databricks==7.23.0", "amazon==9.39.0", "cncf-kubernetes")
#: All dependencies of Google's provider would take an hour. These are imported with the operators for Dataproc.
GOOGLE = (
    *("google-cloud-dataproc", "google-cloud-storage", "google-cloud-storage-transfer", "google-cloud-batch"),
    *("google-cloud-compute", "google-cloud-secret-manager", "grpc-google-iam-v1", "google-auth-httplib2"),
    *("google-api-python-client", "gcloud-aio-auth", "gcloud-aio-storage", "grpcio-gcp"),
)


def planned(airflow: Airflow, sales: Lake) -> dict[str, Any]:
    """The XComs of a plan for Spark 4.0, with a setting that the service fills in."""
    sales.view()
    conf = {"spark.sql.catalog.lake.jdbc.password": PASSWORD, "spark.driver.extraJavaOptions": "-Da=b -Dc=d"}
    run = airflow.run(f'PlanRefreshOperator(task_id="plan", view="{VIEW}", spark_version="4.0", conf={conf!r})')
    assert run.states == {"plan": "success"}, run.log
    assert "leaves out spark.driver.extraJavaOptions" in run.log
    return {key: value for _, key, value in run.xcoms}


def test_a_plan_has_its_settings_in_the_form_of_every_submitter(airflow: Airflow, sales: Lake) -> None:
    """For another version of Spark, with references to the service's secrets that no template touches."""
    xcoms = planned(airflow, sales)
    assert xcoms["packages"].split(",")[0] == RUNTIME
    assert xcoms["conf"]["spark.sql.catalog.lake.jdbc.password"] == PASSWORD
    assert xcoms["properties"] == {**xcoms["conf"], "spark.jars.packages": xcoms["packages"]}
    assert xcoms["secret_conf"] == []
    options = dict(item.split("=", 1) for item in xcoms["spark_submit_conf"].removeprefix("--conf ").split(" --conf "))
    assert options == {key: value for key, value in xcoms["properties"].items() if " " not in value}
    assert "spark.redaction.regex" in options


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with this environment's packages and the services' providers."""
    folder = tmp_path_factory.mktemp("providers")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    found = folder / "bin" / "python"
    purelib = sysconfig.get_path("purelib", vars={"base": str(folder)})
    Path(purelib, "main.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    install = [sys.executable, "-m", "pip", "--python", found, "install", "-q", "-c", ROOT / "constraints.txt"]
    for provider in PROVIDERS:  # pip takes much longer to find versions for all of them together
        subprocess.run([*install, f"apache-airflow-providers-{provider}"], check=True)
    subprocess.run([*install, "--no-deps", "apache-airflow-providers-google==22.8.0"], check=True)
    subprocess.run([*install, *GOOGLE], check=True)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_examples_fit_the_real_providers(airflow: Airflow, sales: Lake, python: Path, tmp_path: Path) -> None:
    """Each is imported, serialized and rendered; what it sends has the form that the provider or its library takes."""
    xcoms = planned(airflow, sales)
    own = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    own |= {"AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL"}
    shown = subprocess.run(
        [python, "-m", "tests.airflow.rendered", EXAMPLES],
        input=json.dumps(xcoms),
        cwd=ROOT,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr[-3000:]
    sent = json.loads(shown.stdout.splitlines()[-1])

    (task,) = sent["databricks"]["tasks"]
    assert task["new_cluster"]["spark_conf"]["spark.sql.catalog.lake.jdbc.password"] == PASSWORD
    assert task["python_wheel_task"]["parameters"] == xcoms["application_args"]
    assert {"maven": {"coordinates": RUNTIME}} in task["libraries"]
    job = sent["emr_serverless"]["jobDriver"]["sparkSubmit"]
    assert (job["entryPoint"], job["entryPointArguments"]) == (xcoms["application"], xcoms["application_args"])
    assert job["sparkSubmitParameters"] == f"{xcoms['spark_submit_conf']} --py-files {xcoms['py_files']}"
    job = sent["dataproc"]["pysparkJob"]
    assert (job["mainPythonFileUri"], job["args"]) == (xcoms["application"], xcoms["application_args"])
    assert (job["pythonFileUris"], job["properties"]) == ([xcoms["py_files"]], xcoms["properties"])
    arguments = sent["glue"]["Arguments"]
    script, catalog = xcoms["application_args"]
    assert "#sha256=" in script
    assert (arguments["--airflow-mv-script"], arguments["--airflow-mv-catalog"]) == (script, catalog)
    assert f"--conf {arguments['--conf']}" == xcoms["spark_submit_conf"]
    body = sent["livy"]
    assert (body["file"], body["args"]) == (xcoms["application"], xcoms["application_args"])
    assert (body["pyFiles"], body["conf"]) == ([xcoms["py_files"]], xcoms["properties"])
    spec = sent["kubernetes"]
    assert (spec["mainApplicationFile"], spec["arguments"]) == (xcoms["application"], xcoms["application_args"])
    assert (spec["deps"]["pyFiles"], spec["sparkConf"]) == ([xcoms["py_files"]], xcoms["properties"])
