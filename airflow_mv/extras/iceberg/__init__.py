# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables that are in no catalog as base tables, named by path."""
