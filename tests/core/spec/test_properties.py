# SPDX-License-Identifier: Apache-2.0
"""Which properties of its storage table a view's owner may choose."""

from __future__ import annotations

import pytest

from airflow_mv.core.spec.properties import missing_properties, storage_properties
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import ConfigurationError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("write.data.path", "/elsewhere"),
        ("write.metadata.path", "/elsewhere"),
        ("write.object-storage.path", "/elsewhere"),
        ("write.location-provider.impl", "com.acme.Provider"),
        ("write.metadata.delete-after-commit.enabled", "true"),
        ("write.metadata.previous-versions-max", "1"),
        ("airflow-mv.storage-of", "sales.other"),
        ("materialized_view_metadata", "{}"),
        ("gc.enabled", "false"),
        ("write.parquet.x' = 'y", "z"),
        ("format-version", "1"),
        ("format-version", "4"),
        ("", "x"),
    ],
)
def test_paths_classes_and_what_maintenance_relies_on_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"view v, property airflow-mv\.storage\."):
        storage_properties({f"airflow-mv.storage.{key}": value}, view="v")


def test_what_differs_is_written_and_the_format_version_never_goes_back() -> None:
    chosen = storage_properties(
        {
            "airflow-mv.storage.format-version": "2",
            "airflow-mv.storage.write.parquet.compression-codec": "zstd",
            "airflow-mv.storage.write.distribution-mode": "hash",
            "airflow-mv.storage-table": "sales.other",
            "owner": "sales",
        },
        view="v",
    )
    table = TableMetadata(format_version=3, location="/t", properties={"write.distribution-mode": "hash"})
    assert missing_properties(chosen, table) == {"write.parquet.compression-codec": "zstd"}
    older = TableMetadata(format_version=1, location="/t")
    assert missing_properties(chosen, older) == chosen
