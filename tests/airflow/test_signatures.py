# SPDX-License-Identifier: Apache-2.0
"""What an editor shows: signatures, docstrings, templates and types of all public names agree."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup

from airflow_mv.operators.options import REFRESH_ARGUMENTS
from airflow_mv.operators.spark_arguments import SPARK_ARGUMENTS
from airflow_mv.tasks.older_airflow import BEFORE_3_3

if BEFORE_3_3:
    pytest.skip("the arguments are those of the newest Airflow", allow_module_level=True)

from airflow_mv.tasks import keywords

ROOT = Path(__file__).parents[2]
FILES = ROOT / "tests" / "airflow" / "typed"
MODULES = ("operators", "sensors", "triggers", "dags", "assets")
#: One operator explains what both take.
ELSEWHERE = {"PlanRefreshOperator": set(REFRESH_ARGUMENTS)}


def public() -> dict[str, Any]:
    found = {}
    for name in MODULES:
        module = import_module(f"airflow_mv.{name}")
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        names = re.findall(r"import (\w+) as \1", source) or ["materialized_view_asset"]
        found |= {name: getattr(module, name) for name in names}
    return found


PUBLIC = public()


def parameters(item: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(item.__init__ if isinstance(item, type) else item).parameters
    return {name: of for name, of in found.items() if name != "self"}


def named(item: Any) -> set[str]:
    return {name for name, of in parameters(item).items() if of.kind not in (of.VAR_KEYWORD, of.VAR_POSITIONAL)}


def documented(item: Any) -> dict[str, str]:
    """The text of each argument in the docstring."""
    section = re.search(r"^Args:\n((?: .*\n|\n)*)", inspect.cleandoc(item.__doc__ or "") + "\n", re.MULTILINE)
    return dict(re.findall(r"^ {4}\*{0,2}(\w+): ((?:.*\n)(?: {8}.*\n)*)", section[1] if section else "", re.MULTILINE))


def keys(kind: Any) -> set[str]:
    return set(kind.__annotations__)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_explains_each_argument(name: str) -> None:
    item = PUBLIC[name]
    assert set(documented(item)) - {"kwargs", "tasks"} | ELSEWHERE.get(name, set()) == named(item) - {"tasks"}


@pytest.mark.parametrize("name", [name for name, item in PUBLIC.items() if hasattr(item, "template_fields")])
def test_the_docstring_says_which_arguments_are_templated(name: str) -> None:
    item = PUBLIC[name]
    fields = set(item.template_fields)
    assert {key for key, text in documented(item).items() if "templated" in text} == fields & set(documented(item))
    others = fields - named(item) - SPARK_ARGUMENTS
    assert others <= {"planned"}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_passed_on_has_names_and_types(name: str) -> None:
    """``**kwargs: Any`` would take every misspelt argument."""
    passed = [of for of in parameters(PUBLIC[name]).values() if of.kind is of.VAR_KEYWORD]
    assert all(str(of.annotation).startswith("Unpack[") for of in passed)
    for of in passed:
        kind = getattr(keywords, str(of.annotation).removeprefix("Unpack[").removesuffix("]"))
        assert keys(kind)
        assert not keys(kind) & named(PUBLIC[name])


def test_the_arguments_of_airflow_are_complete() -> None:
    of_task = named(BaseOperator) - {"sla"}
    assert keys(keywords.TaskKeywords) == of_task
    assert keys(keywords.SensorKeywords) == of_task | named(BaseSensorOperator)
    assert keys(keywords.SparkArguments) == SPARK_ARGUMENTS - {"name"}
    assert keys(keywords.GroupKeywords) == named(TaskGroup) - {"group_id"}
    assert keys(keywords.DagKeywords) == named(DAG) - {"dag_id", "schedule", "sla_miss_callback", "task_group"}


def test_the_arguments_of_a_chain_are_those_of_its_operators_and_factory() -> None:
    others = keys(keywords.SparkArguments) | keys(keywords.TaskKeywords)
    for kind, name in (
        ("RefreshKeywords", "RefreshMaterializedViewOperator"),
        ("CreateKeywords", "CreateMaterializedViewOperator"),
    ):
        assert keys(getattr(keywords, kind)) - others == named(PUBLIC[name]) - {"view", "sql"} - others
    assert keys(keywords.RefreshArguments) == set(REFRESH_ARGUMENTS)
    chain = keys(keywords.ChainKeywords) - keys(keywords.DagKeywords)
    assert chain == named(PUBLIC["materialized_views_dag"]) - {"dag_id", "views", "schedule"}


@pytest.mark.parametrize("name", ["RefreshMaterializedViewOperator", "PlanRefreshOperator"])
def test_both_ways_to_give_an_argument_have_one_type(name: str) -> None:
    given = get_type_hints(keywords.RefreshArguments)
    written = {key: str(of.annotation) for key, of in parameters(PUBLIC[name]).items()}
    space = {**vars(keywords), "Any": Any}
    assert {key: eval(written[key], space) for key in given} == given


def _lines(checked: str, file: str) -> set[int]:
    return {int(line) for line in re.findall(rf"{file}:(\d+):.*error", checked)}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_accept_a_dag_file_and_find_each_mistake(checker: str) -> None:
    """Through ``py.typed``. pyright needs Node.js, so `make check` has an environment for it."""
    command = [sys.executable, "-m", "mypy"]
    if checker == "pyright":
        if (program := os.environ.get("AIRFLOW_MV_TEST_PYRIGHT")) is None:
            pytest.skip("AIRFLOW_MV_TEST_PYRIGHT does not name a pyright")
        command = [program, "--pythonpath", sys.executable, "--level", "error"]
    files = [FILES / name for name in ("typed_dag.py", "wrong_dag.py")]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    lines = files[1].read_text(encoding="utf-8").splitlines()
    assert _lines(done.stdout, "typed_dag.py") == set(), done.stdout
    assert _lines(done.stdout, "wrong_dag.py") == {number for number, text in enumerate(lines, 1) if "# wrong" in text}
