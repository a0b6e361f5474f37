# SPDX-License-Identifier: Apache-2.0
"""The workflows run make targets and nothing else, so that what they do can be done on any machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"(?m)^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(encoding="utf-8")))


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_command_of_a_workflow_is_a_make_target(workflow: Path) -> None:
    for step in steps_of(workflow):
        if "run" in step:
            command = re.fullmatch(r'make (?:-s )?([a-z-]+)(?: >>"\$GITHUB_OUTPUT")?', step["run"].strip())
            assert command, step["run"]
            assert command[1] in TARGETS
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+|[0-9a-f]{40})", step["uses"])


def test_the_checks_the_tests_the_matrix_the_site_and_the_builds_have_a_job() -> None:
    runs = " ".join(step.get("run", "") for workflow in WORKFLOWS for step in steps_of(workflow))
    assert set(re.findall(r"make (?:-s )?([a-z-]+)", runs)) >= {"check", "test", "test-matrix", "docs", "dist"}
