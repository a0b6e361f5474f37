# SPDX-License-Identifier: Apache-2.0
"""OpenLineage facets of a refresh. Imported only if OpenLineage is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    catalog_dataset,
    dataset_type_dataset,
    dataset_version_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    sql_job,
    symlinks_dataset,
)

from airflow_mv.core.spec.identifiers import id_text
from airflow_mv.lineage.facts import Facts, Table

#: The run facet's key.
REFRESH_FACET = "airflowMv_refresh"
REFRESH_FACET_SCHEMA = "urn:airflow-mv:openlineage:1-0-0:RefreshRunFacet"


@attr.define
class RefreshRunFacet(RunFacet):
    """How a view was refreshed, and why; described by ``docs/openlineage/RefreshRunFacet.json``."""

    view: str
    mode: str
    state: str
    reasons: list[dict[str, str]]
    baseTables: list[dict[str, Any]]
    outcome: str | None = None
    refreshId: str | None = None
    rowsWritten: int | None = None

    @staticmethod
    def _get_schema() -> str:
        return REFRESH_FACET_SCHEMA


def operator_lineage(facts: Facts, *, published: bool) -> OperatorLineage[Any, Any]:
    """Return the lineage in the form that the OpenLineage provider expects from an operator.

    Args:
        facts: The refresh.
        published: Whether new rows were published: only then the view is an output.
    """
    result = facts.result
    return OperatorLineage(
        inputs=[_dataset(InputDataset, table) for table in facts.inputs],
        outputs=[_output(facts)] if published else [],
        run_facets={
            REFRESH_FACET: RefreshRunFacet(
                view=str(facts.plan.view),
                mode=str((result or facts.plan).mode),
                state=str(facts.plan.state),
                reasons=[reason.to_dict() for reason in (result or facts.plan).reasons],
                baseTables=[
                    # As strings: snapshot ids exceed JavaScript's safe integers.
                    {"name": item.identifier, "from": id_text(item.recorded), "to": id_text(item.current)}
                    for item in facts.plan.changes
                ],
                outcome=result.outcome if result else None,
                refreshId=result.refresh_id if result else None,
                rowsWritten=result.rows_written if result else None,
            )
        },
        job_facets={"sql": sql_job.SQLJobFacet(query=facts.sql, dialect="spark")},
    )


def _output(facts: Facts) -> OutputDataset:
    dataset: OutputDataset = _dataset(OutputDataset, facts.view)
    if facts.result is not None:
        rows = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=facts.result.rows_written)
        dataset.outputFacets = {"outputStatistics": rows}
    return dataset


def _dataset(kind: type[Dataset], table: Table) -> Any:
    catalog = table.catalog
    kinds = ("VIEW", "MATERIALIZED") if table.is_view else ("TABLE", None)
    facets: dict[str, DatasetFacet] = {
        "schema": schema_dataset.SchemaDatasetFacet(fields=_fields(table.fields)),
        "datasetType": dataset_type_dataset.DatasetTypeDatasetFacet(*kinds),
        "catalog": catalog_dataset.CatalogDatasetFacet(
            framework="iceberg",
            type="jdbc" if catalog["type"] == "sql" else catalog["type"],
            name=catalog["name"],
            metadataUri=catalog["uri"] or None,
            warehouseUri=catalog["warehouse"] or None,
            source="airflow-mv",
        ),
    }
    if table.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(table.version)
    if table.symlinks:
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(
            [symlinks_dataset.Identifier(link.namespace, link.name, "TABLE") for link in table.symlinks]
        )
    return kind(namespace=table.name.namespace, name=table.name.name, facets=facets)


def _fields(fields: Iterable[Mapping[str, Any]]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [_field(field["name"], field["type"], field.get("doc")) for field in fields]


def _field(name: str, kind: Any, doc: str | None = None) -> schema_dataset.SchemaDatasetFacetFields:
    """Return a column's field. Parts of nested types are fields: ``_element``, ``_key``, ``_value`` if unnamed."""
    if not isinstance(kind, Mapping):
        return schema_dataset.SchemaDatasetFacetFields(name, str(kind), doc)
    parts = {"list": ("array", ("element",)), "map": ("map", ("key", "value"))}
    word, children = parts.get(kind["type"], ("struct", ()))
    nested = [_field(f"_{child}", kind[child]) for child in children] or _fields(kind.get("fields", []))
    return schema_dataset.SchemaDatasetFacetFields(name, word, doc, fields=nested)
