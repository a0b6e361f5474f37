# SPDX-License-Identifier: Apache-2.0
"""Freshness of views: what changed in the base tables since the recorded refresh."""
