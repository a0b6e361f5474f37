# SPDX-License-Identifier: Apache-2.0
"""Imports of modules that a refresh loads lazily, before processes are forked. No thread is started."""

from __future__ import annotations

import rich.console
import rich.table
import sqlglot
from sqlalchemy import create_engine

import tests.torture.interrupted
import tests.torture.victims
from tests.builders import QUERY

LOADED = rich.console, rich.table, tests.torture.interrupted, tests.torture.victims

for _uri in ("sqlite://", "postgresql+psycopg2://"):
    create_engine(_uri)
sqlglot.transpile(QUERY, read="spark", write="duckdb")
