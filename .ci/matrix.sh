#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A part of the tests in a fresh environment for each supported version of Airflow and of Python:
#   matrix.sh                        all cells
#   CELLS="3.3.2 3.13" matrix.sh     this one: Airflow and Python
#   matrix.sh --list                 print all cells, as the list that a workflow's matrix takes
# Java and Spark's jars must be there (make setup). uv finds the interpreters, or downloads them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PINNED=$(sed -n 's/^apache-airflow==//p' constraints.txt)
readonly ONE=${CELLS:-}
readonly ALL=("3.2.2 3.11" "$PINNED 3.11" "$PINNED 3.12" "$PINNED 3.13")
if [[ ${1:-} == --list ]]; then
    printf 'cells=['
    printf '"%s"\n' "${ALL[@]}" | paste -sd, | tr -d '\n'
    printf ']\n'
    exit
fi
# A day soon after the release. Until then there was what Airflow's own constraints file names, more or less.
declare -rA RELEASED=([3.2.2]=2026-06-01 [3.3.0]=2026-07-15)
# All of the pure core; of Airflow the provider, whole DAGs with Spark, retries, waiting, backfills, and the page's answers.
readonly PART=(
    tests/core/{spec,sql,catalog,freshness} tests/core/refresh/test_*.py tests/core/ivm/test_rules.py tests/plugin
    tests/airflow/test_{airflow_compat,backfill,checks,hooks,operators,provider,retries,sensors,sharing,spark_provider,triggers}.py
)
readonly UV=$PWD/.venv/bin/uv

# pyenv's commands find the selected versions only: select all.
all_of_pyenv() {
    if command -v pyenv >/dev/null; then pyenv versions --bare | grep -E '^3\.1[123]\.[0-9]+$' | paste -sd:; fi
}

# install PYTHON AIRFLOW: the package as into an existing Airflow, whose packages stay where they fit.
install() {
    local python=$1 airflow=$2 constraints=constraints.txt
    if [[ $airflow != "$PINNED" ]]; then
        "$UV" pip install --quiet --python "$python" --exclude-newer "${RELEASED[$airflow]}" \
            "apache-airflow==$airflow" || return
        constraints=$(dirname "$python")/constraints.txt
        "$UV" pip freeze --python "$python" | awk -F== '
            { name = tolower($1); gsub("_", "-", name) }
            NR == FNR { there[name]; next }
            !(name in there)' - constraints.txt >"$constraints"
    fi
    "$UV" pip install --quiet --python "$python" -c "$constraints" "apache-airflow==$airflow" -e ".[test]"
}

# cell AIRFLOW PYTHON FOLDER
cell() {
    local python=$3/bin/python warnings=()
    # Libraries of an older Airflow warn of each other, which is no failure of these tests.
    if [[ $1 != "$PINNED" ]]; then warnings=(-W default); fi
    PYENV_VERSION=$(all_of_pyenv) "$UV" venv --quiet --python "$2" "$3" && install "$python" "$1" &&
        "$python" -m pytest -q -p no:cacheprovider "${warnings[@]}" --numprocesses 2 --dist loadfile \
            -m "not slow and not browser and not postgres and not rest and not cluster" "${PART[@]}"
}

if [[ -n $ONE ]]; then cells=("$ONE"); else cells=("${ALL[@]}"); fi
failed=()
for each in "${cells[@]}"; do
    read -r airflow python <<<"$each"
    home=$(mktemp -d)
    printf '==> Airflow %s, Python %s\n' "$airflow" "$python"
    started=$SECONDS
    cell "$airflow" "$python" "$home/venv" || failed+=("$each")
    printf '==> Airflow %s, Python %s: %d s\n' "$airflow" "$python" $((SECONDS - started))
    rm -rf "$home"
done
if ((${#failed[@]})); then printf 'failed: %s\n' "${failed[@]}" && exit 1; fi
