# SPDX-License-Identifier: Apache-2.0
"""The driver's part: Delta tables in Spark."""
