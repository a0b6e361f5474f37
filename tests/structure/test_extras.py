# SPDX-License-Identifier: Apache-2.0
"""The core works without its extras: tests of its commands pass on a copy of the package without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Packages and modules.
EXTRAS = sorted(path.name for path in (ROOT / "airflow_mv/extras").iterdir() if not path.name.startswith("_"))
#: Create, replace, plan, refresh, publish and status.
TESTS = {
    "core/refresh/test_refresh.py": (
        "test_a_stale_view_is_recomputed_and_the_reason_is_reported",
        "test_a_replaced_definition_is_recomputed_into_the_same_table",
        "test_an_incremental_view_follows_the_fallback_policy",
        "test_appended_rows_that_no_filter_matches_need_no_spark_job",
        "test_views_of_one_run_are_computed_from_one_set_of_snapshots",
    ),
    "contract/test_publication.py": (
        "test_a_refresh_that_is_published_twice_lands_once",
        "test_a_process_that_dies_at_the_change_is_completed_by_the_next_one",
    ),
}
#: Runs the tests, and requires that the package came from this folder.
CODE = """\
import sys
from pathlib import Path
import pytest
ended = pytest.main(sys.argv[1:])
loaded = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "airflow_mv"]
others = [file for file in loaded if not Path(file).is_relative_to(Path.cwd())]
assert loaded and not others, others
assert not [name for name in sys.modules if name.startswith("airflow_mv.extras.")]
sys.exit(ended)
"""


def test_without_any_extra_the_tests_of_the_core_pass(tmp_path: Path) -> None:
    _pass_without(EXTRAS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_without_an_extra_the_tests_of_the_core_pass(extra: str, tmp_path: Path) -> None:
    _pass_without([extra], tmp_path)


def _pass_without(extras: Sequence[str], folder: Path) -> None:
    """Run the tests on a copy of the package from which some extras were deleted."""
    shutil.copytree(ROOT / "airflow_mv", folder / "airflow_mv", ignore=shutil.ignore_patterns("__pycache__"))
    for extra in extras:
        place = folder / "airflow_mv/extras" / extra
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    for name in ("tests", "examples", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    tests = [f"tests/{file}::{test}" for file, names in TESTS.items() for test in names]
    done = subprocess.run(
        [sys.executable, "-c", CODE, "-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", _ONLY_SQLITE, *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


_ONLY_SQLITE = "not postgres and not rest and not glue and not hive"
