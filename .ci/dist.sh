#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the wheel and the source archive into dist, check what a package index would refuse, and write into build
# the list of packages that they are tested with, for scanners (an SBOM in CycloneDX's form). Then install each into a fresh
# environment, and try it there: version, imports, and the commands of docs/first-view.md, which refresh a view with Spark.
# With TAG=v1.2.3 in the environment, another version is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BIN=$PWD/.venv/bin
VERSION=$(sed -nE 's/^__version__ = "(.*)"/\1/p' airflow_mv/version.py)
readonly VERSION TAG=${TAG:-}
unset PYTHONPATH

if [[ -n $TAG && $TAG != "v$VERSION" ]]; then
    echo "dist: the tag is $TAG, but the version in airflow_mv/version.py is $VERSION" >&2
    exit 1
fi

# try ARTEFACT FOLDER
try() {
    local bin=$2/venv/bin
    "$BIN/uv" venv --quiet --python "$BIN/python" "$2/venv"
    "$BIN/uv" pip install --quiet --python "$bin/python" -c constraints.txt "airflow-mv[spark] @ file://$1"
    [[ $("$bin/airflow-mv" --version) == *"$VERSION"* ]]
    (cd "$2" && "$bin/python" - <<'PYTHON')
import sys
from pathlib import Path

import airflow_mv
from airflow_mv.dags import *
from airflow_mv.hooks import *
from airflow_mv.operators import *
from airflow_mv.sensors import *
from airflow_mv.triggers import *

assert Path(airflow_mv.__file__).is_relative_to(sys.prefix), airflow_mv.__file__
PYTHON
    AIRFLOW_MV_TEST_BIN=$bin "$BIN/python" -m pytest -q -p no:cacheprovider tests/docs/test_first_view.py
}

rm -f dist/airflow_mv-*
"$BIN/python" -m build --no-isolation --outdir dist . >/dev/null
mkdir -p build
tools=$(mktemp -d)
"$BIN/uv" venv --quiet --python "$BIN/python" "$tools"
"$BIN/uv" pip install --quiet --python "$tools/bin/python" --require-hashes -r .ci/release.txt
"$tools/bin/twine" check --strict dist/airflow_mv-*
# CycloneDX's tool takes a version that stands in the file.
sed "s/^dynamic = .*/version = \"$VERSION\"/" pyproject.toml >"$tools/pyproject.toml"
"$tools/bin/python" -W ignore -m cyclonedx_py requirements --pyproject "$tools/pyproject.toml" --mc-type library \
    --output-reproducible --output-file "build/airflow_mv-$VERSION.cdx.json" docker/requirements.txt
rm -rf "$tools"
for artefact in "$PWD/dist/airflow_mv-$VERSION-py3-none-any.whl" "$PWD/dist/airflow_mv-$VERSION.tar.gz"; do
    folder=$(mktemp -d)
    started=$SECONDS
    try "$artefact" "$folder" || { rm -rf "$folder" && exit 1; }
    rm -rf "$folder"
    printf '==> %s: installed and tried in %d s\n' "dist/${artefact##*/}" $((SECONDS - started))
done
