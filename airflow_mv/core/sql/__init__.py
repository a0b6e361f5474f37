# SPDX-License-Identifier: Apache-2.0
"""A view's SQL: parse, pin and rewrite it."""
