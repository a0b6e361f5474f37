# SPDX-License-Identifier: Apache-2.0
"""How a view stands to its base tables: what changed since the recorded refresh."""
