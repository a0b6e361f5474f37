# SPDX-License-Identifier: Apache-2.0
"""Services that run Spark get all they need from a plan's XComs, and the examples for them fit the real providers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from msgspec import ValidationError

from tests.airflow.conftest import VIEW, Airflow
from tests.airflow.published import LivyBatch, SparkApplication, checked
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
    page = (ROOT / "docs" / "managed-spark.md").read_text().split("| XCom of the plan |")[1].split("\n\n")[0]
    links = {key for key in xcoms if key.startswith("_link_")}
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", page)) == xcoms.keys() - links


def rendered(python: Path, xcoms: dict[str, Any], home: Path, *services: str) -> dict[str, Any]:
    """What the examples for these services, or for all, would send."""
    own = {"AIRFLOW_HOME": str(home / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    own |= {"AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL", "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300"}
    shown = subprocess.run(
        [python, "-m", "tests.airflow.rendered", EXAMPLES, *services],
        input=json.dumps(xcoms),
        cwd=ROOT,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr[-3000:]
    sent: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return sent


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with this environment's packages and the services' providers, or ``AIRFLOW_MV_TEST_PROVIDERS``."""
    if given := os.environ.get("AIRFLOW_MV_TEST_PROVIDERS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("providers")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    found = folder / "bin" / "python"
    purelib = sysconfig.get_path("purelib", vars={"base": str(folder)})
    Path(purelib, "main.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    install = [sys.executable, "-m", "pip", "--python", found, "install", "-q", "-c", ROOT / "constraints.txt"]
    for provider in PROVIDERS:  # pip takes much longer to find versions for all of them together
        subprocess.run([*install, f"apache-airflow-providers-{provider}"], check=True)
    subprocess.run([*install, "--no-deps", "apache-airflow-providers-google==22.8.0"], check=True)
    subprocess.run([*install, *GOOGLE, "databricks-sdk"], check=True)  # the SDK has the model of Databricks' API
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_examples_fit_the_real_providers(airflow: Airflow, sales: Lake, python: Path, tmp_path: Path) -> None:
    """Each is imported, serialized and rendered; what it sends has the form that the provider or its library takes."""
    xcoms = planned(airflow, sales)
    sent = rendered(python, xcoms, tmp_path)

    (task,) = sent["databricks"]["tasks"]
    assert task["new_cluster"]["spark_conf"]["spark.sql.catalog.lake.jdbc.password"] == PASSWORD
    assert task["python_wheel_task"]["parameters"] == xcoms["application_args"]
    assert {"maven": {"coordinates": RUNTIME}} in task["libraries"]
    job = sent["emr_serverless"]["jobDriver"]["sparkSubmit"]
    assert (job["entryPoint"], job["entryPointArguments"]) == (xcoms["application"], xcoms["application_args"])
    assert job["sparkSubmitParameters"] == f"{xcoms['spark_submit_conf']} --py-files {xcoms['py_files']}"
    (step,) = sent["emr"]["Steps"]
    *options, package, application, script, catalog = step["HadoopJarStep"]["Args"]
    assert ([application, script, catalog], package) == (
        [xcoms["application"], *xcoms["application_args"]],
        xcoms["py_files"],
    )
    assert dict(item.split("=", 1) for item in options if "=" in item) == xcoms["properties"]
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


@pytest.mark.parametrize(
    ("kind", "request_", "wrong"),
    [
        (LivyBatch, {"file": "a.py", "pyfiles": ["a.zip"]}, "unknown field `pyfiles`"),
        (LivyBatch, {"file": "a.py", "args": [1]}, r"Expected `str`, got `int` - at `\$.args"),
        (LivyBatch, {"conf": {}}, "missing required field `file`"),
        (SparkApplication, {"apiVersion": "sparkoperator.k8s.io/v1beta1"}, "Invalid enum value"),
    ],
)
def test_a_request_that_a_service_would_refuse_is_found(kind: Any, request_: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        checked(request_, kind)


def options(settings: dict[str, str]) -> list[str]:
    """Settings as options of ``spark-submit``."""
    return [item for key, value in settings.items() for item in ("--conf", f"{key}={value}")]


def by_emr_serverless(sent: dict[str, Any]) -> list[str]:
    job = sent["jobDriver"]["sparkSubmit"]
    return [*shlex.split(job["sparkSubmitParameters"]), job["entryPoint"], *job["entryPointArguments"]]


def by_emr(sent: dict[str, Any]) -> list[str]:
    (step,) = sent["Steps"]
    command = step["HadoopJarStep"]["Args"]
    assert (step["HadoopJarStep"]["Jar"], command[:3]) == (
        "command-runner.jar",
        ["spark-submit", "--deploy-mode", "cluster"],
    )
    return command[3:]


def by_dataproc(sent: dict[str, Any]) -> list[str]:
    job = sent["pysparkJob"]
    return [*options(job["properties"]), "--py-files", *job["pythonFileUris"], job["mainPythonFileUri"], *job["args"]]


def by_glue(sent: dict[str, Any]) -> list[str]:
    """Glue adds ``--conf`` before the text, and passes all arguments to the script, with some of its own."""
    given = sent["Arguments"]
    conf = shlex.split(f"--conf {given['--conf']}")
    seen = [item for pair in {"--JOB_ID": "j_1", "--JOB_RUN_ID": "jr_1", **given}.items() for item in pair]
    return [*conf, "--py-files", given["--extra-py-files"], sent["ScriptLocation"], *seen]


def by_livy(sent: dict[str, Any]) -> list[str]:
    return [*options(sent["conf"]), "--py-files", *sent["pyFiles"], sent["file"], *sent["args"]]


def by_kubernetes(sent: dict[str, Any]) -> list[str]:
    files = ["--py-files", *sent["deps"]["pyFiles"]]
    return [*options(sent["sparkConf"]), *files, sent["mainApplicationFile"], *sent["arguments"]]


SERVICES = (by_emr_serverless, by_emr, by_glue, by_dataproc, by_livy, by_kubernetes)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.__name__)
def test_a_refresh_is_planned_run_as_the_service_runs_it_and_committed(
    airflow: Airflow, sales: Lake, python: Path, tmp_path: Path, service: Callable[[dict[str, Any]], list[str]]
) -> None:
    """What the real provider would send is run with this machine's Spark."""
    name = service.__name__.removeprefix("by_")
    refreshed_twice(airflow, sales, tmp_path, lambda xcoms: service(rendered(python, xcoms, tmp_path, name)[name]))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_databricks_starts_the_entry_point_of_the_wheel(
    airflow: Airflow, sales: Lake, python: Path, tmp_path: Path
) -> None:
    """The cluster has the settings; the jars are those of this machine's Spark, not of the example's."""
    wheel, site = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path], tmp_path / "site"
    subprocess.run([*wheel, ROOT / "job-wheel"], check=True)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site]
    subprocess.run([*install, *tmp_path.glob("*.whl")], check=True)
    runner = tmp_path / "runner.py"
    runner.write_text(ENTRY_POINT)

    def command(xcoms: dict[str, Any]) -> list[str]:
        (task,) = rendered(python, xcoms, tmp_path, "databricks")["databricks"]["tasks"]
        started = task["python_wheel_task"]
        given = [str(runner), started["package_name"], started["entry_point"], *started["parameters"]]
        return [*options(task["new_cluster"]["spark_conf"]), "--packages", xcoms["packages"], *given]

    refreshed_twice(airflow, sales, tmp_path, command, PYTHONPATH=str(site))


#: What a service does that installs a wheel and calls an entry point of it.
ENTRY_POINT = """
import sys
from importlib.metadata import distribution

package, name = sys.argv[1:3]
del sys.argv[1:3]
(script,) = distribution(package).entry_points.select(name=name)
script.load()()
"""


def refreshed_twice(
    airflow: Airflow, sales: Lake, folder: Path, command: Callable[[dict[str, Any]], list[str]], **variables: str
) -> None:
    """Plan, run and commit a full refresh, and then another one.

    Args:
        folder: Where Spark runs.
        command: Returns the arguments of ``spark-submit``, given the XComs of the plan.
        variables: Variables of its environment.
    """
    sales.view()
    (spark_home,) = pyspark.__path__
    submit = [f"{spark_home}/bin/spark-submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    own = {"SPARK_HOME": spark_home, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **variables}
    for number in (1, 2):
        run = airflow.run(f'PlanRefreshOperator(task_id="plan", view="{VIEW}")')
        xcoms = {key: value for _, key, value in run.xcoms}
        done = subprocess.run(
            [*submit, *command(xcoms)], cwd=folder, env={**os.environ, **own}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        ended = airflow.run(f"""CommitRefreshOperator(task_id="commit", plan={xcoms["return_value"]!r})""")
        assert ended.values["commit"]["outcome"] == "refreshed", (number, ended.log)
        assert sum(row["orders"] for row in sales.read()) == sales.load().scan().to_arrow().num_rows
        sales.append((100 + number, "north", number))
