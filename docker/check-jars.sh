#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-jars.sh JAR…: each has the SHA-256 that jars.sha256 has for its name. Ivy puts the group before the name.
set -euo pipefail
list=$(dirname "${BASH_SOURCE[0]}")/jars.sha256
readonly list

status=0
for jar in "$@"; do
    name=${jar##*/}
    digest=$(sha256sum <"$jar")
    digest=${digest%% *}
    if ! grep -qxF -e "$digest  $name" -e "$digest  ${name#*_}" "$list"; then
        printf '%s\n' "$jar: SHA-256 $digest is not that of docker/jars.sha256. Delete the file and run this again." >&2
        status=1
    fi
done
exit "$status"
