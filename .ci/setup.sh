#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must be there before the first command, each step a no-op when it is there already:
#   setup.sh            Python environment .venv with all packages, Java, Spark's jars
#   setup.sh demo       the same with the packages of the demo alone (.ci/demo.txt)
#   setup.sh matrix     PostgreSQL, which the schedulers of make test-matrix have their data in
#   setup.sh services   what the tests start or call: PostgreSQL's programs, a REST catalog's jars (by Maven),
#                       DuckDB's TPC-DS extension, Chromium, strace, faketime, and `docker-compose config` where CI is set
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly STAMP=$VENV/.setup-stamp DEMO_STAMP=$VENV/.demo-stamp
LOG=$(mktemp)
readonly LOG
trap 'rm -f "$LOG"' EXIT

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# step TITLE COMMAND…: run quietly, say how long it took; show the end of the output only when it fails. Meanwhile a terminal shows
# the seconds and what the command wrote last; elsewhere a line every 15 seconds does.
step() {
    local title=$1 started=$SECONDS shown=$SECONDS status=0 pid
    shift
    printf '==> %s\n' "$title"
    "$@" >"$LOG" 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.5
        if [[ -t 1 ]]; then
            printf '\r\033[K    %d s  %s' $((SECONDS - started)) "$(last_line $((${COLUMNS:-80} - 12)))"
        elif ((SECONDS - shown >= 15)); then
            shown=$SECONDS
            printf '    %d s  %s\n' $((SECONDS - started)) "$(last_line 100)"
        fi
    done
    wait "$pid" || status=$?
    if [[ -t 1 ]]; then printf '\r\033[K'; fi
    if ((status)); then
        tail -n 40 "$LOG" >&2
        die "failed after $((SECONDS - started)) s: $title"
    fi
    printf '    done in %d s\n' $((SECONDS - started))
}

# last_line WIDTH: the last line with text that the running command has written, without control characters.
last_line() { tail -c 2000 "$LOG" | tr '\r' '\n' | sed 's/\x1b\[[0-9;?]*[a-zA-Z]//g' | tr -d '\000-\010\013-\037' | grep '[^[:space:]]' | tail -n 1 | cut -c "1-$1" || true; }

# retry COMMAND…: three tries, for what crosses a network.
retry() {
    local try
    for try in 1 2 3; do
        if "$@"; then return 0; fi
        if ((try < 3)); then sleep $((try * 5)); fi
    done
    return 1
}

can_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# apt_install PACKAGE…: the first of the packages that this release has.
apt_install() {
    local package
    retry apt-get update -q || return 1
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            DEBIAN_FRONTEND=noninteractive retry apt-get install -y -q --no-install-recommends \
                -o DPkg::Lock::Timeout=300 "$package"
            return
        fi
    done
    echo "none of these packages is known: $*"
    return 1
}

# ------------------------------------------------------------------------------------------ Python
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
            >/dev/null 2>&1; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

make_venv() {
    rm -rf "$VENV"
    "$1" -m venv "$VENV"
}

# uv takes a third of pip's time. It has certificates of its own: behind a proxy with another one it needs the system's.
# Where uv cannot be had, or cannot reach what pip's own settings name, pip does it.
# Bytecode is compiled here, on all cores: else the first demo compiles what it imports, for seven seconds.
# requirements.txt has the digests of all that the package, its extras and its build need. Only setuptools, with which pip or uv
# builds PySpark's source archive in a temporary environment, has none.
# install_packages LIST: a part of requirements.txt, or all of it.
install_packages() {
    local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --no-input)
    local uv=("$VENV/bin/uv" pip install --compile-bytecode --python "$VENV/bin/python")
    local pinned=(--require-hashes -r "$1")
    { "${pip[@]}" --require-hashes -r <(sed -n '/^uv==/,/[^\\]$/p' requirements.txt) &&
        { "${uv[@]}" "${pinned[@]}" || "${uv[@]}" --system-certs "${pinned[@]}"; }; } || retry "${pip[@]}" "${pinned[@]}"
    "${pip[@]}" --no-deps --no-build-isolation -e .
}

# has STAMP TEXT: whether the environment works, and was made for this.
has() { [[ -x $VENV/bin/python && -f $1 && $(<"$1") == "$2" ]] && "$VENV/bin/python" -c ''; }

# was_moved: the folder has another path than when the environment was made.
was_moved() { cat "$STAMP" "$DEMO_STAMP" 2>/dev/null | grep -q . && ! cat "$STAMP" "$DEMO_STAMP" 2>/dev/null | grep -qF "$PWD "; }

# demo_list: those packages of requirements.txt, with their digests, that .ci/demo.txt names.
demo_list() { awk 'NR == FNR { wanted[$1]; next } /^[^ ]/ { shown = $1 in wanted } shown' .ci/demo.txt requirements.txt; }

# setup_python all|demo
setup_python() {
    local python stamp list=requirements.txt own=$STAMP
    # The folder's own path is in it because scripts in bin/ break when the folder moves.
    stamp="$PWD $(cat pyproject.toml requirements.txt .ci/demo.txt | sha256sum | cut -d' ' -f1)"
    if has "$STAMP" "$stamp" || { [[ $1 == demo ]] && has "$DEMO_STAMP" "$stamp"; }; then return; fi
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || was_moved; then
        if ! python=$(find_python); then
            can_apt && step "Python 3 with venv (apt-get)" apt_install python3-venv
            python=$(find_python) ||
                die "Python 3.11 to 3.13 with the venv module is needed (Debian: apt-get install python3-venv)." \
                    "Name another interpreter with PYTHON=/path/to/python3.11 make setup."
        fi
        step "virtual environment $VENV ($("$python" --version))" make_venv "$python"
    fi
    rm -f "$STAMP" "$DEMO_STAMP"
    if [[ $1 == demo ]]; then
        own=$DEMO_STAMP list=$VENV/demo-requirements.txt
        demo_list >"$list"
    fi
    step "$(grep -c == "$list") pinned packages (about a minute the first time)" install_packages "$list"
    printf '%s' "$stamp" >"$own"
}

# -------------------------------------------------------------------------------------------- Java
java_major() {
    local java=java
    if [[ -n ${JAVA_HOME:-} ]]; then java=$JAVA_HOME/bin/java; fi
    "$java" -version 2>&1 | sed -nE '1,3s/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}

java_fits() {
    local major
    major=$(java_major || true)
    [[ ${major:-0} -ge 17 ]]
}

setup_java() {
    if java_fits; then return; fi
    if [[ -z ${JAVA_HOME:-} ]] && can_apt; then
        step "Java (apt-get)" apt_install openjdk-17-jre-headless openjdk-21-jre-headless
    fi
    java_fits || die "Spark 4.1 needs Java 17 or newer; found: $(java_major | grep . || echo none)${JAVA_HOME:+ in JAVA_HOME=$JAVA_HOME}." \
        "Install one (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17)" \
        "or point JAVA_HOME at it."
}

# -------------------------------------------------------------------------------------- Spark's jars
# The JVM asks the user database, not $HOME, where Ivy's cache is.
ivy_home() {
    local home
    home=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6 || true)
    echo "${home:-$HOME}/.ivy2.5.2"
}

# The coordinates stand in the package alone. They are asked for again when it changes.
jar_list() {
    local list=$VENV/.spark-packages
    if [[ ! -s $list || $STAMP -nt $list || $DEMO_STAMP -nt $list || airflow_mv/extras/spark/settings.py -nt $list ]]; then
        "$VENV/bin/python" - >"$list.new" <<'PYTHON'
from airflow_mv.extras.spark.settings import spark_settings

uris = ("sqlite:////catalog.db", "postgresql+psycopg2://host/catalog")
properties = ({"type": "sql", "uri": uri, "warehouse": "file:///warehouse"} for uri in uris)
packages = (package for each in properties for package in spark_settings("lake", each).packages)
print(*dict.fromkeys(packages), sep="\n")
PYTHON
        mv "$list.new" "$list"
    fi
    cat "$list"
}

jars_are_there() {
    local cache group name version
    cache=$(ivy_home)/cache
    while IFS=: read -r group name version; do
        [[ -s $cache/$group/$name/jars/$name-$version.jar ]] || return 1
    done < <(jar_list)
}

# fetch_jars COORDINATES: Spark resolves them itself, so that its later sessions find them; the script it then runs is empty.
fetch_jars() {
    local nothing spark_home
    nothing=$(mktemp --suffix=.py)
    spark_home=$("$VENV/bin/python" -c 'import pyspark; print(pyspark.__path__[0])')
    SPARK_HOME=$spark_home PYSPARK_PYTHON=$VENV/bin/python SPARK_LOCAL_IP=127.0.0.1 \
        retry "$spark_home/bin/spark-submit" --master 'local[1]' --packages "$1" "$nothing"
    rm -f "$nothing"
}

# What Ivy has, in its cache and where Spark takes it from, has the digests of docker/jars.sha256.
check_jars() {
    local home jar
    home=$(ivy_home)
    while read -r _ jar; do
        compgen -G "$home/cache/*/*/jars/$jar" || true
        compgen -G "$home/jars/*_$jar" || true
    done <docker/jars.sha256 | xargs -r -d '\n' bash docker/check-jars.sh
}

# The tests' object store. Only they need it: 60 MB.
setup_s3() {
    local bundle
    bundle=$(jar_list | sed -nE 's/^(org.apache.iceberg):iceberg-spark-runtime-[^:]+:(.*)/\1:iceberg-aws-bundle:\2/p')
    if [[ -s $(ivy_home)/cache/${bundle%%:*}/iceberg-aws-bundle/jars/iceberg-aws-bundle-${bundle##*:}.jar ]]; then return; fi
    step "Iceberg's jar for S3, for the tests" fetch_jars "$bundle"
    step "digests of the jars" check_jars
}

setup_jars() {
    local checked=$VENV/.jars-checked
    jar_list >/dev/null
    if ! jars_are_there; then
        rm -f "$checked"
        step "Spark's jars: Iceberg and the catalogs' drivers, into $(ivy_home)" fetch_jars "$(jar_list | paste -sd,)"
        jars_are_there || die "Spark resolved its packages, but they are not in $(ivy_home)"
    fi
    if [[ $checked -nt docker/jars.sha256 ]]; then return; fi
    step "digests of the jars" check_jars
    touch "$checked"
}

# -------------------------------------------------------------------------------------- PostgreSQL
has_postgres() {
    [[ -n ${AIRFLOW_MV_TEST_POSTGRES_URL:-} ]] || command -v initdb >/dev/null ||
        compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

# The tests start a server of their own; the one that the package may start on 5432 is left alone.
setup_postgres() {
    if has_postgres; then return; fi
    if can_apt; then
        step "PostgreSQL (apt-get)" apt_install postgresql
    else
        printf '%s\n' "==> PostgreSQL is missing, so its tests will be skipped: install your system's package" \
            "    (Debian, Ubuntu: sudo apt-get install postgresql) or set AIRFLOW_MV_TEST_POSTGRES_URL." >&2
    fi
}

# ------------------------------------------------------------------------------------ REST catalog
# The coordinates stand in tests/rest/pom.xml; Maven is needed only when they or the Java sources changed.
setup_rest() {
    if "$VENV/bin/python" -m tests.rest.java --check; then return; fi
    if ! command -v mvn >/dev/null; then
        if ! can_apt; then
            printf '%s\n' "==> Maven is missing, so the tests on a REST catalog will be skipped: install your system's" \
                "    package (Debian, Ubuntu: sudo apt-get install maven)." >&2
            return
        fi
        step "Maven (apt-get)" apt_install maven
    fi
    step "a REST catalog's jars, for the tests" retry "$VENV/bin/python" -m tests.rest.java
}

# Each of the tests' Sparks starts in half the time; without it they are slower and nothing else.
setup_archive() {
    if compgen -G "$VENV/spark-*.jsa" >/dev/null && [[ -e $VENV/local-files.jar ]]; then return; fi
    step "Spark's classes in one file, for the tests" "$VENV/bin/python" -m tests.core.job.archive
}

# The tests generate its data and its queries. The extension is made for another DuckDB than the project's.
setup_tpcds() {
    if compgen -G ".bench/tpcds-*/installed" >/dev/null; then return; fi
    step "DuckDB's TPC-DS extension, for the tests" retry "$VENV/bin/python" -m tests.core.ivm.tpcds
}

# Only the browser: Playwright comes from PyPI with its driver, and downloads nothing.
setup_chromium() {
    if [[ -n ${AIRFLOW_MV_TEST_CHROMIUM:-} ]] || command -v chromium >/dev/null; then return; fi
    if can_apt; then
        step "Chromium (apt-get)" apt_install chromium
    else
        printf '%s\n' "==> Chromium is missing, so the tests of the page in a browser will be skipped: install your system's" \
            "    package (Debian: sudo apt-get install chromium) or set AIRFLOW_MV_TEST_CHROMIUM to a browser's path." >&2
    fi
}

# It reads the compose file, no engine is needed. A developer's machine is spared: the test says so and is skipped.
setup_compose() {
    if [[ -z ${CI:-} ]] || docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null; then return; fi
    if can_apt; then step "docker-compose, to check docker/compose.yaml (apt-get)" apt_install docker-compose; fi
}

# Power cuts are made from the record of a process's calls, and hosts with wrong clocks by faketime. Without them these
# slow tests are skipped.
setup_faults() {
    local tool
    for tool in strace faketime; do
        if ! command -v "$tool" >/dev/null && can_apt; then step "$tool (apt-get)" apt_install "$tool"; fi
    done
}

case ${1:-all} in
    all | demo)
        setup_java
        setup_python "${1:-all}"
        setup_jars
        ;;
    matrix) setup_postgres ;;
    services)
        setup_postgres
        setup_rest
        setup_s3
        setup_archive
        setup_tpcds
        setup_chromium
        setup_compose
        setup_faults
        ;;
    *) die "unknown part: $1 (one of: all, demo, matrix, services)" ;;
esac
