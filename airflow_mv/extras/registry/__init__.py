# SPDX-License-Identifier: Apache-2.0
"""The registry: every materialized view and every refresh of a catalog, in two Iceberg tables.

It is an index that can be rebuilt. The truth stays in the metadata of the views and their storage tables.
"""
