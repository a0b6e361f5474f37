#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the image is made of: Java, a virtual environment with the package, Spark's jars.
# The Dockerfile runs it; a test runs it too, into a temporary folder:
#   install.sh PREFIX     makes PREFIX/venv and PREFIX/jars
set -euo pipefail
readonly PREFIX=${1:?usage: install.sh PREFIX}
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly SOURCE

if ! command -v java >/dev/null; then
    mkdir -p /usr/share/man/man1 # slim images may lack it, and Java's package needs it
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openjdk-17-jre-headless
    apt-get clean
    rm -rf /var/lib/apt/lists/*
fi

python3 -m venv "$PREFIX/venv"
readonly PYTHON=$PREFIX/venv/bin/python
# Each package has its digest in docker/requirements.txt, also those that only build this one. Only setuptools has none,
# with which pip builds PySpark's source archive in a temporary environment.
pip=("$PYTHON" -m pip install --no-cache-dir --disable-pip-version-check)
"${pip[@]}" --require-hashes -r "$SOURCE/docker/requirements.txt"
"${pip[@]}" --no-deps --no-build-isolation "$SOURCE[spark,postgres]"

# 70 MB that no program uses.
find "$PREFIX"/venv/lib/python3*/site-packages/{numpy,pandas,pyarrow} -type d -name tests -prune -exec rm -rf {} +

# The jars, for whoever runs Spark: AIRFLOW_MV_JARS names the folder, and nobody but root may write there.
SPARK_HOME=$("$PYTHON" -c 'import pyspark; print(pyspark.__path__[0])')
export SPARK_HOME PYSPARK_PYTHON=$PYTHON
nothing=$(mktemp --suffix=.py)
ivy=$(mktemp -d)
packages=$("$PYTHON" -c '
from airflow_mv.extras.spark.settings import spark_settings

properties = {"type": "sql", "uri": "postgresql+psycopg2://host/catalog", "warehouse": "s3://bucket/warehouse"}
print(*spark_settings("lake", properties).packages, sep=",")
')
# A container that is being built may have no entry for its own name in /etc/hosts.
SPARK_LOCAL_IP=127.0.0.1 "$SPARK_HOME/bin/spark-submit" --master 'local[1]' --conf "spark.jars.ivy=$ivy" \
    --packages "$packages" "$nothing"
bash "$SOURCE/docker/check-jars.sh" "$ivy"/jars/*.jar
mkdir -p "$PREFIX/jars"
install --mode=644 "$ivy"/jars/*.jar "$PREFIX/jars"
rm -rf "$nothing" "$ivy"
