# SPDX-License-Identifier: Apache-2.0
"""Lakes in each catalog and layout."""

from __future__ import annotations

from tests.homes import every_home, registered_home

__all__ = ["every_home", "registered_home"]
