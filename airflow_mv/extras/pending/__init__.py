# SPDX-License-Identifier: Apache-2.0
"""Changes of base tables that a view has not read: what sensors and triggers of base tables wait for."""
