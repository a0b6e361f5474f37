# SPDX-License-Identifier: Apache-2.0
"""Create views without Spark: the columns that Spark will give a query, and the empty table that it would make."""
