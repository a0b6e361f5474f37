#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests that compare rows, with pairs of Spark and Iceberg that managed Spark ships:
#   pairs.sh                         all pairs
#   PAIRS="4.0.2 1.10.1" pairs.sh    this one: PySpark and Iceberg
# Java must be there (make setup). Spark fetches Iceberg's jar from Maven.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# EMR 7 and Glue 5.1, the newest Iceberg for Spark 3.5; EMR 8, the newest for Spark 4.0; Glue 6.0 and Dataproc 3.0.
readonly ALL=("3.5.8 1.10.1" "3.5.8 1.12.0" "4.0.2 1.10.1" "4.0.2 1.11.0" "4.1.3 1.11.0")
readonly PART=(
    tests/core/job/test_{delta,apply}.py tests/engine/test_refresh_equals_recompute.py
    tests/engine/incremental/test_{fuzz,regenerated_sql}.py
)

OWN=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("pyspark"))')
readonly OWN

# pair PYSPARK ICEBERG FOLDER: with the environment of .venv, in which this PySpark is found first.
pair() {
    local but=""
    # A client of Spark Connect needs a server of Spark 4.1; other versions refuse the quotes of that query.
    if [[ $1 != 4.1.* ]]; then but="not connect and not regenerated_sql_differs"; fi
    if [[ $2 == 1.10.* ]]; then but+=" and not values_that_cannot_be_compared"; fi # it cannot update VARIANT columns
    # It has no VARIANT and not each of the calls, and rows of rewritten files are not read by their ids.
    if [[ $1 == 3.5.* ]]; then but+=" and not values_that_cannot_be_compared and not every_call and not rewritten_files"; fi
    [[ $1 == "$OWN" ]] || .venv/bin/uv pip install --quiet --python .venv/bin/python --target "$3" "pyspark==$1" &&
        PYTHONPATH=$3:$PWD AIRFLOW_MV_TEST_ICEBERG=$2 .venv/bin/python -m pytest -q -p no:cacheprovider \
            -m "not slow" -k "$but" "${PART[@]}"
}

if [[ -n ${PAIRS:-} ]]; then pairs=("$PAIRS"); else pairs=("${ALL[@]}"); fi
failed=()
for each in "${pairs[@]}"; do
    read -r spark iceberg <<<"$each"
    home=$(mktemp -d)
    printf '==> Spark %s, Iceberg %s\n' "$spark" "$iceberg"
    pair "$spark" "$iceberg" "$home" || failed+=("$each")
    rm -rf "$home"
done
if ((${#failed[@]})); then printf 'failed: %s\n' "${failed[@]}" && exit 1; fi
