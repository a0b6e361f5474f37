#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the image is made of: Java, a virtual environment with the package, Spark's jars.
# The Dockerfile runs it; a test runs it too, into a temporary folder:
#   install.sh PREFIX     makes PREFIX/venv, PREFIX/ivy and PREFIX/spark-conf
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
"$PYTHON" -m pip install --no-cache-dir --disable-pip-version-check \
    -c "$SOURCE/constraints.txt" "$SOURCE[spark,postgres]"

# 70 MB that no program uses.
find "$PREFIX"/venv/lib/python3*/site-packages/{numpy,pandas,pyarrow} -type d -name tests -prune -exec rm -rf {} +

# One place for the jars, whoever runs Spark; read through SPARK_CONF_DIR.
mkdir -p "$PREFIX/spark-conf"
printf 'spark.jars.ivy %s\n' "$PREFIX/ivy" >"$PREFIX/spark-conf/spark-defaults.conf"

SPARK_HOME=$("$PYTHON" -c 'import pyspark; print(pyspark.__path__[0])')
export SPARK_HOME SPARK_CONF_DIR=$PREFIX/spark-conf PYSPARK_PYTHON=$PYTHON
nothing=$(mktemp --suffix=.py)
packages=$("$PYTHON" -c '
from airflow_mv.catalog.spark import spark_settings

properties = {"type": "sql", "uri": "postgresql+psycopg2://host/catalog", "warehouse": "s3://bucket/warehouse"}
print(*spark_settings("lake", properties).packages, sep=",")
')
# A container that is being built may have no entry for its own name in /etc/hosts.
SPARK_LOCAL_IP=127.0.0.1 "$SPARK_HOME/bin/spark-submit" --master 'local[1]' --packages "$packages" "$nothing"
rm -f "$nothing"
# Ivy has each jar twice: one file with two names takes half of the space.
find "$PREFIX/ivy/jars" -name '*.jar' | while read -r jar; do
    find "$PREFIX/ivy/cache" -name '*.jar' -size "$(stat -c %s "$jar")c" -exec cmp -s {} "$jar" \; -exec ln -f {} "$jar" \;
done
chmod -R a+rwX "$PREFIX/ivy"
