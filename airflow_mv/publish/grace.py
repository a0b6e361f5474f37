# SPDX-License-Identifier: Apache-2.0
"""How long files stay that nothing needs any more, and how long what was staged can be trusted to be there."""

from __future__ import annotations

from datetime import timedelta

from airflow_mv.catalog import MaterializedViewCatalog

#: How long stays what is needless. It has to be more than twice as long as the longest refresh.
DEFAULT_GRACE = timedelta(days=3)


def oldest_lasting_ms(catalog: MaterializedViewCatalog, folder: str) -> int:
    """Return the time since which a file must have been written for half of the grace to be left to it.

    Args:
        catalog: Where the folder is.
        folder: Its store's clock counts.
    """
    return catalog.files.now_ms(folder) - DEFAULT_GRACE // timedelta(milliseconds=2)
