# SPDX-License-Identifier: Apache-2.0
"""The arguments shared by the operators that plan a refresh."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from airflow.sdk import BaseOperator, Context

from airflow_mv.checks import read_checks
from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks.dag_run import run_facts
from airflow_mv.operators.task import given_document
from airflow_mv.tasks.scope import NONE, RefreshScope, ScopeName, count, moment, scope_of, truth, word_of

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.refresh import RefreshOptions, SnapshotSet
    from airflow_mv.core.refresh.inputs import Bound
    from airflow_mv.core.spec.identifiers import Identifier
    from airflow_mv.extras.pins import RunPins


@dataclass(frozen=True, slots=True)
class RefreshArguments:
    """The arguments by which a task says how it plans a refresh, after Airflow has rendered them.

    :class:`~airflow_mv.operators.RefreshMaterializedViewOperator` explains them.

    Args:
        takes_pins: Whether the task was given ``pins``, whatever they are rendered to.
    """

    as_of: str | datetime | None
    full: bool | str
    on_fallback: str | None
    max_full_bytes: int | str | None
    pins: Any
    checks: Any
    scope: str
    interval_column: str | None
    interval_length: str | timedelta | None
    max_snapshots: int | str | None
    max_bytes: int | str | None
    takes_pins: bool

    @classmethod
    def of(cls, task: BaseOperator, *, takes_pins: bool) -> RefreshArguments:
        """Read them from the attributes of a task."""
        return cls(**{name: getattr(task, name) for name in REFRESH_ARGUMENTS}, takes_pins=takes_pins)

    def pinned(self, catalog: MaterializedViewCatalog, view: Identifier) -> SnapshotSet | None:
        """Return the run's pinned base tables, checked again; ``None`` if the task has no pins.

        Raises:
            ConfigurationError: ``pins`` is something else.
            PinError: A pinned snapshot has expired, or the view reads another table.
        """
        from airflow_mv.extras.pins import restore

        if not self.takes_pins:
            return None
        if self.as_of not in NONE:
            raise ConfigurationError(
                f"view {view}: as_of={self.as_of!r} has no effect with pins; set as_of on the PinBaseTablesOperator"
            )
        return restore(catalog, view, run_pins(self.pins))

    def options(self, context: Context, log: Logger) -> RefreshOptions:
        """Return the options of the refresh.

        Args:
            context: The task's context: the run decides what ``scope`` means.
            log: Where the choice is logged.

        Raises:
            ConfigurationError: One of them is invalid.
        """
        from airflow_mv.core.refresh import RefreshOptions
        from airflow_mv.core.spec.choices import FallbackPolicy

        found = self._scope_of(context, log)
        return RefreshOptions(
            as_of=moment(self.as_of, field="as_of") or found.as_of,
            full=truth(self.full, field="full") or found.full,
            interval=found.interval,
            bound=self._bound(),
            on_fallback=word_of(self.on_fallback, get_args(FallbackPolicy), field="on_fallback"),
            max_full_bytes=count(self.max_full_bytes, field="max_full_bytes", unit="bytes"),
            checks=() if self.checks in NONE else read_checks(self.checks, source="checks"),
        )

    def _bound(self) -> Bound | None:
        commits = count(self.max_snapshots, field="max_snapshots", unit="commits")
        size = count(self.max_bytes, field="max_bytes", unit="bytes")
        if commits is None and size is None:
            return None
        from airflow_mv.extras.catch_up import CatchUp

        return CatchUp(commits, size)

    def _scope_of(self, context: Context, log: Logger) -> RefreshScope:
        from airflow_mv.core.spec.times import duration

        found = scope_of(
            run_facts(context),
            word_of(self.scope, get_args(ScopeName), field="scope") or "whole",
            column=None if self.interval_column in NONE else self.interval_column,
            length=duration(self.interval_length, what="interval_length"),
        )
        if found.as_of is not None and self.takes_pins:
            if self.scope == "as_of":
                raise ConfigurationError(
                    f"the base tables are pinned already, so this task cannot read them {found.why}: choose the time "
                    "in the task that pins"
                )
            found = replace(found, as_of=None)  # the run's parameter is for the task that pins
        if found != RefreshScope():
            rows = f"the rows of {found.interval}" if found.interval else "the whole view"
            log.info("This run refreshes %s: %s", rows, found.why)
        return found


#: Their names. An operator that takes them has them as template fields.
REFRESH_ARGUMENTS: tuple[str, ...] = tuple(
    field.name for field in fields(RefreshArguments) if field.name != "takes_pins"
)


def run_pins(value: Any) -> RunPins:
    """Parse pins from XCom or a rendered template.

    Raises:
        ConfigurationError: There are none.
        InvalidMetadataError: They are invalid.
    """
    from airflow_mv.extras.pins import RunPins

    wanted = (
        "not the output of a PinBaseTablesOperator; write pins=pin.output, and clear that task if its XCom was deleted"
    )
    document = given_document(value, field="pins", wanted=wanted)
    return RunPins.read(document, source="pins")
