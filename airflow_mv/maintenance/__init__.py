# SPDX-License-Identifier: Apache-2.0
"""What looks after a view between its refreshes: expiry, orphans, a rollback, and taking it away with its files."""
