# SPDX-License-Identifier: Apache-2.0
"""The cost of a refresh and of determining freshness, compared with alternatives. See README.md."""
