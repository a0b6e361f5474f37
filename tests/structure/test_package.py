# SPDX-License-Identifier: Apache-2.0
"""What a user installs: the wheel, its entry points, and the cost of an import."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from airflow_mv.extras.spark.settings import spark_settings
from airflow_mv.extras.spark.submit import build_package
from airflow_mv.version import __version__

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("airflow", "pyspark", "pyiceberg", "pyarrow", "sqlalchemy", "sqlglot", "pydantic", "pandas", "duckdb")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the working tree as for a release."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_contains_only_this_package(wheel: zipfile.ZipFile) -> None:
    """A top-level `tests/` or `airflow/` would overwrite other files in every user's site-packages."""
    assert {name.split("/")[0] for name in wheel.namelist()} == {"airflow_mv", f"airflow_mv-{__version__}.dist-info"}


def test_the_wheel_contains_every_module_and_is_marked_as_typed(wheel: zipfile.ZipFile) -> None:
    """Type checkers ignore the annotations without `py.typed`."""
    in_tree = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "airflow_mv").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "airflow_mv/py.typed" in in_tree
    assert in_tree == {name for name in wheel.namelist() if name.startswith("airflow_mv/")}


def test_the_version_is_written_once(wheel: zipfile.ZipFile) -> None:
    """In the module that the driver has, too. What must repeat it, a name of an image or of a file, has the same."""
    assert "version" in PYPROJECT["project"]["dynamic"]
    for file in ("docker/compose.yaml", "dags_examples/managed_spark/databricks.py", "CHANGELOG.md"):
        named = re.search(r"(?m)(?:airflow-mv:|airflow_mv_job-|^## )(\d+\.\d+\.\d+)", (ROOT / file).read_text())
        assert named, file
        assert named[1] == __version__, file


def test_the_wheel_is_code_and_the_page_and_small(wheel: zipfile.ZipFile) -> None:
    """Documents, examples and tests are in the repository."""
    suffixes = {Path(item.filename).suffix for item in wheel.infolist() if item.filename.startswith("airflow_mv/")}
    assert suffixes <= {".py", ".java", ".js", ".css", ".html", ".svg", ".typed"}
    assert Path(str(wheel.filename)).stat().st_size < 1_200_000


def test_a_package_index_shows_the_readme_with_links_that_work_there(wheel: zipfile.ZipFile) -> None:
    """A relative link leads nowhere outside of the repository."""
    metadata = wheel.read(f"airflow_mv-{__version__}.dist-info/METADATA").decode()
    repository = PYPROJECT["project"]["urls"]["Repository"]
    links = [target for target in re.findall(r"\]\(([^)\s]+)\)", metadata) if not target.startswith("#")]
    own = [target for target in links if target.startswith(repository)]
    assert [target for target in links if not target.startswith("https://")] == []
    named = [re.sub(rf"{repository}/(blob|raw)/main/|#.*", "", target) for target in own]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert f"]({repository}/raw/main/docs/images/page-light.png)" in metadata


def test_the_command_line_of_the_wheel_has_no_demo(wheel: zipfile.ZipFile) -> None:
    """Its code and its data are in the repository only."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from airflow_mv.cli import main; print(*main.commands)"
    done = subprocess.run([sys.executable, "-c", code, str(wheel.filename)], capture_output=True, text=True, check=True)
    assert "refresh" in done.stdout.split()
    assert "demo" not in done.stdout.split()


def test_the_wheel_of_the_job_has_the_zip_s_modules_and_refuses_a_python_without_pyspark(tmp_path: Path) -> None:
    """Databricks installs wheels and takes no zip. The wheel needs neither Airflow nor a dependency."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT / "job-wheel"]
    subprocess.run(build, capture_output=True, check=True)
    (built,) = tmp_path.glob(f"airflow_mv_job-{__version__}-py3-none-any.whl")
    modules = {name for name in zipfile.ZipFile(built).namelist() if name.startswith("airflow_mv/")}
    assert modules == set(zipfile.ZipFile(build_package(tmp_path)).namelist())

    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", built]
    subprocess.run(install, check=True)
    shown = subprocess.run([python.parent / "airflow-mv-job", "--help"], capture_output=True, text=True, check=True)
    assert "with Iceberg 1.10 or newer" in " ".join(shown.stdout.split())
    glue = ["--JOB_ID", "j_1", "--airflow-mv-script", "s3://b/x.json", "--airflow-mv-catalog", "lake"]  # AWS Glue's way
    refused = subprocess.run([python, "-m", "airflow_mv.core.job", *glue], capture_output=True, text=True)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "cannot import PySpark" in refused.stderr


def test_every_folder_of_the_package_is_a_package() -> None:
    """A folder without `__init__.py` works in a checkout and fails in type checkers and zipped drivers."""
    folders = {path.parent for path in (ROOT / "airflow_mv").rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("group", "name"),
    [("apache_airflow_provider", "provider_info"), ("console_scripts", "airflow-mv")],
)
def test_every_entry_point_names_an_existing_object(group: str, name: str) -> None:
    """If one provider cannot be loaded, Airflow drops its whole list of providers."""
    (entry_point,) = distribution("airflow-mv").entry_points.select(group=group, name=name)
    assert callable(entry_point.load())


@pytest.mark.parametrize(
    "module", ["airflow_mv", "airflow_mv.errors", "airflow_mv.core.script", "airflow_mv.provider_info"]
)
def test_an_import_loads_no_heavy_module(module: str) -> None:
    """Airflow imports these modules in every process, and a Spark driver has only PySpark."""
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_dag_file_loads_nothing_that_only_its_tasks_need() -> None:
    """Airflow parses every DAG file repeatedly, and needs neither catalogs nor SQL there, nor Spark's provider."""
    files = [str(file) for file in (ROOT / "dags_examples").glob("*.py") if "airflow.providers" not in file.read_text()]
    assert len(files) >= 10
    code = (
        "import runpy, sys; import airflow.dag_processing.processor; before = set(sys.modules)\n"
        "for package in ('dags', 'operators', 'sensors', 'triggers'): exec(f'from airflow_mv.{package} import *')\n"
        "for file in sys.argv[1:]: runpy.run_path(file)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "airflow_mv.operators.spark" in loaded
    spark = ("requests", "openlineage", "airflow.providers.apache", "airflow.providers.openlineage")
    # Airflow itself loads more of Airflow with the first task. The order of a chain's views is in their SQL.
    heavy = tuple(f"{name}." for name in (*HEAVY, *spark) if name not in ("airflow", "sqlglot"))
    assert [name for name in loaded if f"{name}.".startswith(heavy)] == []


@pytest.mark.parametrize("package", ["dags", "operators", "sensors", "triggers"])
def test_a_star_imports_every_public_name(package: str) -> None:
    """Names that are imported on first use are no attributes of their package before."""
    source = (ROOT / "airflow_mv" / package / "__init__.py").read_text()
    expected = set(re.findall(r"^ *from airflow_mv\.\S+ import (\w+) as \1$", source, re.MULTILINE))
    found: dict[str, object] = {}
    exec(f"from airflow_mv.{package} import *", found)
    assert expected
    assert expected <= found.keys()


def test_every_declared_dependency_is_pinned() -> None:
    """An unpinned dependency may have another version tomorrow."""
    pinned = pins()
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    declared = [Requirement(text) for group in (PYPROJECT["project"]["dependencies"], *extras) for text in group]
    wrong = [
        str(requirement)
        for requirement in declared
        if requirement.name != "airflow-mv"
        and not requirement.specifier.contains(pinned.get(requirement.name.lower().replace("_", "-"), "0"))
    ]
    assert wrong == []


def test_every_pinned_package_installs_with_the_oldest_patch_of_each_python() -> None:
    """Debian 12 has Python 3.11.2. A pinned package for 3.11.5 or later makes `make demo` fail there."""
    refused = []
    for name in pins():
        with suppress(PackageNotFoundError):  # it is for another Python or another system
            required = distribution(name).metadata.get_all("Requires-Python") or [""]
            wanted = SpecifierSet(required[0])
            refused += [(name, python) for python in ("3.11.0", "3.12.0", "3.13.0") if not wanted.contains(python)]
    assert refused == []


def test_both_distributions_that_write_pyspark_have_one_version() -> None:
    """They share files: with two versions `import pyspark` fails."""
    assert pins()["pyspark"] == pins()["pyspark-client"]


def test_the_constraints_are_names_and_versions_only() -> None:
    """pip refuses a file of digests as `-c`. A path or a URL would be valid on one machine only."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, equals, version = line.partition("==")
        assert equals, line
        assert not set("@/: ") & set(name + version), line


@pytest.mark.parametrize("file", ["requirements.txt", "docker/requirements.txt"])
def test_each_package_is_installed_by_its_digest(file: str) -> None:
    """Without a digest an index could serve another file. An address would be valid on one machine only."""
    constraints, found = pins(), {}
    for line in (ROOT / file).read_text().replace(" \\\n   ", "").splitlines():
        text, *digests = line.split(" --hash=")
        requirement = Requirement(text)
        assert requirement.url is None
        assert digests
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in digests), text
        found[_normalized(requirement.name)] = str(requirement.specifier).removeprefix("==")
    assert found.items() <= constraints.items()
    builders = {_normalized(Requirement(text).name) for text in PYPROJECT["build-system"]["requires"]}
    assert builders <= found.keys()


def test_the_digests_are_of_all_that_is_installed() -> None:
    """What the environment of the tests has is what `requirements.txt` names: its versions are the constraints."""
    text = (ROOT / "requirements.txt").read_text()
    assert set(re.findall(r"^([^ ]+)==", text, re.MULTILINE)) == pins().keys()
    installed = {_normalized(item.name) for item in distributions()}
    assert installed - pins().keys() <= {"airflow-mv", "airflow-mv-job", "pip", "setuptools", "wheel"}


def test_a_jar_with_another_digest_is_refused(tmp_path: Path) -> None:
    """Each package that Spark is given is listed; Ivy's names begin with the group."""
    listed = [line.split()[1] for line in (ROOT / "docker" / "jars.sha256").read_text().splitlines()]
    packages = spark_settings("lake", {"type": "sql", "uri": "postgresql://h/c", "warehouse": "s3://b/w"}).packages
    names = [(group, f"{name}-{version}.jar") for group, name, version in (item.split(":") for item in packages)]
    assert {name for _, name in names} <= set(listed)
    for group, name in names:
        jar = tmp_path / f"{group}_{name}"
        jar.write_bytes(b"another file")
        checked = subprocess.run([ROOT / "docker" / "check-jars.sh", jar], capture_output=True, text=True, check=False)
        assert checked.returncode == 1
        assert f"{jar}: SHA-256" in checked.stderr


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-")


def pins() -> dict[str, str]:
    """The pinned version of each package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {_normalized(line.partition("==")[0]): line.partition("==")[2] for line in lines}


@pytest.mark.slow
def test_a_package_index_accepts_the_wheel_and_the_source_distribution(tmp_path: Path) -> None:
    """The wheel is built from the source distribution, as pip builds it where it finds no wheel."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(build, capture_output=True, check=True)
    files = sorted(tmp_path.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    check = [Path(sys.executable).parent / "uv", "tool", "run", "twine", "check", "--strict", *files]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("airflow", ["3.1.8", "3.2.0", "3.2.2", "3.3.0", "3.3.2"])
def test_an_installation_does_not_change_the_version_of_airflow(wheel: zipfile.ZipFile, airflow: str) -> None:
    """As in docs/install.md: pip takes the version that is there, and the newest of all others."""
    found = _resolved(wheel, airflow)
    assert found.returncode == 0, found.stderr
    assert f"apache-airflow=={airflow}" in found.stdout.splitlines()


@pytest.mark.slow
def test_an_unsupported_airflow_is_refused_by_the_installation(wheel: zipfile.ZipFile) -> None:
    found = _resolved(wheel, "3.0.6")
    assert found.returncode != 0
    assert f"airflow-mv=={__version__} depends on apache-airflow>=3.1.8,<3.4" in " ".join(found.stderr.split())


def _resolved(wheel: zipfile.ZipFile, airflow: str) -> subprocess.CompletedProcess[str]:
    """Let uv choose the versions, without installing anything."""
    command = [Path(sys.executable).parent / "uv", "pip", "compile", "-q", "--no-header", "--no-annotate", "-"]
    wanted = f"airflow-mv[spark] @ {Path(str(wheel.filename)).as_uri()}\napache-airflow=={airflow}\n"
    return subprocess.run(command, input=wanted, capture_output=True, text=True, check=False)


def test_the_demo_installs_what_its_extras_need_in_the_pinned_versions() -> None:
    """`make demo` takes these packages from requirements.txt, and none that only a test needs."""
    pinned = (ROOT / "constraints.txt").read_text().split()
    chosen = (ROOT / ".ci" / "demo.txt").read_text().split()
    assert set(chosen) <= set(pinned)
    names = {item.partition("==")[0] for item in chosen}
    assert needed("airflow-mv", ("spark", "postgres", "demo")) - {"airflow-mv"} <= names
    assert not names & {"pytest", "mypy", "moto", "playwright", "hypothesis"}


def needed(name: str, extras: tuple[str, ...]) -> set[str]:
    """Return an installed package and what it requires with these extras, directly or not."""
    found: dict[str, set[str]] = {}
    waiting = [(name, extras)]
    while waiting:
        package, wanted = waiting.pop()
        fresh = {"", *wanted} - found.setdefault(package, set())
        found[package] |= fresh
        for text in distribution(package).requires or () if fresh else ():
            requirement = Requirement(text)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in fresh):
                waiting.append((canonicalize_name(requirement.name), tuple(requirement.extras)))
    return set(found)
