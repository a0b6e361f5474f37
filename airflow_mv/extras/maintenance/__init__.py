# SPDX-License-Identifier: Apache-2.0
"""Maintenance of views: expiry of snapshots, orphan files, rollback, repair, and dropping a view with its files."""
