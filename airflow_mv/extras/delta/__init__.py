# SPDX-License-Identifier: Apache-2.0
"""Delta tables as base tables, which are named by path: ``delta.`/path/to/table```."""
