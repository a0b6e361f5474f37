#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A part of the tests in a fresh environment for each supported version of Python:
#   matrix.sh                        all cells
#   matrix.sh "3.3.2 3.13" …         these: Airflow and Python
# Java and Spark's jars must be there (make setup). uv finds the interpreters, or downloads them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# constraints.txt has one version of Airflow. With another one, each package is the newest that fits.
readonly PINNED=$(sed -n 's/^apache-airflow==//p' constraints.txt)
readonly CELLS=("$PINNED 3.11" "$PINNED 3.12" "$PINNED 3.13")
readonly PART=(
    tests/spec tests/plan tests/catalog tests/incremental/test_rules.py tests/plugin/test_survey.py
    tests/airflow/test_{provider,airflow_compat,triggers}.py
)
readonly UV=$PWD/.venv/bin/uv

cell() {
    local airflow=$1 python=$2 home=$3 constraints=()
    "$UV" venv --quiet --python "$python" "$home"
    if [[ $airflow == "$PINNED" ]]; then constraints=(-c constraints.txt); fi
    "$UV" pip install --quiet --python "$home/bin/python" "${constraints[@]}" "apache-airflow==$airflow" -e ".[test]"
    "$home/bin/python" -m pytest -q -p no:cacheprovider \
        -m "not slow and not browser and not postgres and not rest and not cluster" "${PART[@]}"
}

if (($#)); then cells=("$@"); else cells=("${CELLS[@]}"); fi
failed=()
for each in "${cells[@]}"; do
    read -r airflow python <<<"$each"
    home=$(mktemp -d)
    echo "==> Airflow $airflow, Python $python"
    cell "$airflow" "$python" "$home/venv" || failed+=("$each")
    rm -rf "$home"
done
if ((${#failed[@]})); then printf 'failed: %s\n' "${failed[@]}" && exit 1; fi
