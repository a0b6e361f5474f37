# SPDX-License-Identifier: Apache-2.0
"""Check the literals of a DAG file while it is parsed, so that a test that only loads the DAGs finds a wrong one.

The functions are those that read the values at run time. What a template, an XCom or a parameter gives is left to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_mv.checks import Check, as_documents, read_checks
from airflow_mv.core.spec.choices import FallbackPolicy, LayoutName, OnChange, RefreshStrategy
from airflow_mv.core.spec.identifiers import Identifier, split_namespace
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.tasks.scope import NONE, ScopeName, count, moment, percentage, truth, word_of

if TYPE_CHECKING:
    from airflow_mv.core.sql.query import ParsedQuery

#: Reads the value of an argument, given the value and the argument's name. Raises an error of this package.
Reader = Callable[[Any, str], object]

#: Stands for the catalog that the connection gives to a name without one.
_CATALOG = "catalog"


class CheckedOperator(BaseOperator):
    """An operator whose literals are checked when it is made, and when it is mapped."""

    #: How this operator reads arguments that others read in another way.
    literals: ClassVar[Mapping[str, Reader]] = {}

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Map the task, as for ``BaseOperator``.

        Raises:
            MaterializedViewError: A literal is wrong. So do ``expand`` and ``expand_kwargs``.
        """
        cls.check_mapped(kwargs.get("task_id"), kwargs)
        made: OperatorPartial = super().partial(**kwargs)
        made.__class__ = _CheckedPartial
        return made

    @classmethod
    def check_mapped(cls, task_id: Any, arguments: Mapping[str, Any]) -> None:
        """Refuse wrong literals among arguments of a mapped task.

        Raises:
            MaterializedViewError: Names the task, the argument, the value and the nearest legal one.
        """
        check_literals(f"task {task_id}", arguments, own=cls.literals, templated=cls.template_fields)

    def documents_of(self, checks: Any) -> Any:
        """Return the argument ``checks`` so that templates in it are rendered.

        Raises:
            ConfigurationError: A function is none that a name imports.
        """
        with _named(f"task {self.task_id}", "checks"):
            return as_documents(checks)

    def check_literals(self) -> None:
        """Refuse a literal that the task would refuse when it runs. Called at the end of each ``__init__``.

        Raises:
            MaterializedViewError: Names the task, the argument, the value and the nearest legal one.
        """
        if not getattr(self, "_BaseOperator__from_mapped", False):  # else the task runs already
            check_literals(f"task {self.task_id}", vars(self), own=self.literals, templated=self.template_fields)


class _CheckedPartial(OperatorPartial):
    """A mapped task that checks the literals it is expanded with. It has Airflow's fields and no others."""

    __slots__ = ()

    def expand(self, **mapped_kwargs: Any) -> Any:
        """Expand the task, as Airflow does."""
        self._expand_called = True  # else Airflow would also warn, after the error, that the task was never mapped
        for name, values in mapped_kwargs.items():
            for value in values if isinstance(values, list | tuple) else ():
                self._check({name: value})
        return super().expand(**mapped_kwargs)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        """Expand the task, as Airflow does."""
        self._expand_called = True
        for item in kwargs if isinstance(kwargs, list | tuple) else ():
            if isinstance(item, dict):
                self._check(item)
        return super().expand_kwargs(kwargs, strict=strict)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        of_task: Any = self.operator_class
        of_task.check_mapped(self.kwargs.get("task_id"), arguments)


def check_literals(
    owner: str,
    given: Mapping[str, Any],
    *,
    own: Mapping[str, Reader] | None = None,
    templated: Collection[str] = (),
) -> None:
    """Refuse wrong literals among arguments.

    Args:
        owner: Whose arguments they are, for the message.
        own: How this owner reads arguments that others read in another way.
        templated: The arguments that are rendered at run time.

    Raises:
        MaterializedViewError: Names the owner, the argument, the value and the nearest legal one.
    """
    view = given["view"] if isinstance(given.get("view"), str) else "of this task"
    for name, read in {**_READERS, **(own or {})}.items():
        value = _literals(given.get(name), templated=name in templated)
        if value not in NONE:
            with _named(owner, name):
                read(value, view if name in _OF_VIEW else name)


@contextmanager
def _named(owner: str, name: str) -> Iterator[None]:
    """Name the owner and the argument in an error."""
    try:
        yield
    except MaterializedViewError as error:
        has_name = re.search(rf"\b{name}\b", str(error))
        raise type(error)(f"{owner}: {error}" if has_name else f"{owner}: {name}: {error}") from None


def _literals(value: Any, *, templated: bool) -> Any:
    """Return the part of a value that is not left to run time; ``None`` if there is none."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if _is_literal(item, templated=templated)} or None
    if isinstance(value, list | tuple | set | frozenset):
        return [item for item in value if _is_literal(item, templated=templated)] or None
    return value if _is_literal(value, templated=templated) else None


def _is_literal(value: Any, *, templated: bool) -> bool:
    if isinstance(value, str):
        return not (templated and ("{{" in value or "{%" in value))
    if isinstance(value, dict):
        return all(_is_literal(item, templated=templated) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(_is_literal(item, templated=templated) for item in value)
    return isinstance(value, int | float | Decimal | date | timedelta | Check)


# --------------------------------------------------------------------------------------------------- Readers


def words(*allowed: str) -> Reader:
    """Return the reader of an argument that is one of some words."""
    return lambda value, field: word_of(value, allowed, field=field)


def _view(value: Any, field: str) -> Identifier:
    if not isinstance(value, str):
        raise ConfigurationError(f"{field} is {value!r}, which is not a name: write catalog.namespace.name")
    return Identifier.parse(value, default_catalog=_CATALOG)


def _views(value: Any, field: str) -> object:
    if isinstance(value, str):
        return _view(value, field)
    names = [*value, *(name for names in value.values() for name in names)] if isinstance(value, dict) else value
    return [_view(name, field) for name in names]


def _definitions(value: Any, field: str) -> object:
    return [_view(name, field) for name in value]  # their SQL is that of other tasks


def _sql(value: Any, view: str) -> ParsedQuery:
    from airflow_mv.core.sql.query import parse_query

    return parse_query(value, view=view, default_catalog=_CATALOG, default_namespace=(_CATALOG,))


def _properties(value: Mapping[str, Any], view: str) -> None:
    from airflow_mv.core.spec.choices import DIALECTS_PROPERTY, TRANSPILE_PROPERTY
    from airflow_mv.core.spec.properties import READERS_PROPERTY, check_given

    if wrong := next((key for key, text in value.items() if not isinstance(text, str)), None):
        raise ConfigurationError(f"view {view}, property {wrong} is {value[wrong]!r}; it must be a text")
    check_given(value, view=view)
    if READERS_PROPERTY in value:
        from airflow_mv.extras.readers import known_readers

        known_readers(value[READERS_PROPERTY], view=view)
    for key in (DIALECTS_PROPERTY, TRANSPILE_PROPERTY):
        if key in value:
            _dialects(value[key].split(","), key)


def _dialects(value: Collection[str], _field: str) -> object:
    from airflow_mv.core.sql.translation import known_dialects

    return known_dialects(value)


def _partition_fields(value: Any, _field: str) -> object:
    from airflow_mv.core.spec.properties import partition_field

    return [partition_field(item) for item in value]


def _sort_columns(value: Any, view: str) -> object:
    from airflow_mv.core.spec.properties import sort_columns

    return sort_columns(value, view=view)


def _requirements(value: Any, _field: str) -> object:
    from airflow_mv.extras.explain.requirement import Requirement

    return [Requirement.read(item) for item in value]


def _states(value: Any, field: str) -> object:
    from airflow_mv.extras.fleet.readiness import Readiness

    if isinstance(value, str):
        raise ConfigurationError(f"{field} is {value!r}; it must be a list of states: {', '.join(Readiness)}")
    return [Readiness.named(item) for item in value]


def _duration(value: Any, field: str) -> object:
    return duration(value, what=field)


def _moment(value: Any, field: str) -> object:
    return moment(value, field=field)


def _count_of(unit: str) -> Reader:
    return lambda value, field: count(value, field=field, unit=unit)


#: Their readers are given the view's name.
_OF_VIEW = frozenset({"sql", "properties", "sort_by"})
_READERS: Mapping[str, Reader] = {
    "view": _view,
    "views": _views,
    "tables": _views,
    "definitions": _definitions,
    "namespace": lambda value, _field: split_namespace(value),
    "sql": _sql,
    "scope": words(*get_args(ScopeName)),
    "refresh_strategy": words(*get_args(RefreshStrategy)),
    "layout": words(*get_args(LayoutName)),
    "on_change": words(*get_args(OnChange)),
    "on_fallback": words(*get_args(FallbackPolicy)),
    "require": _requirements,
    "properties": _properties,
    "partition_by": _partition_fields,
    "sort_by": _sort_columns,
    "dialects": _dialects,
    "checks": lambda value, field: read_checks(value, source=field),
    "full": lambda value, field: truth(value, field=field),
    "max_full_bytes": _count_of("bytes"),
    "max_snapshots": _count_of("commits"),
    "max_bytes": _count_of("bytes"),
    "version_id": _count_of("versions"),
    "as_of": _moment,
    "interval_start": _moment,
    "interval_end": _moment,
    "interval_length": _duration,
    "older_than": _duration,
    "max_staleness": _duration,
    "wait_for_outcome": _duration,
    "quiet_period": _duration,
    "wait_at_most": _duration,
    "at_most_every": _duration,
    "remind_every": _duration,
    "sample": lambda value, field: percentage(value, field=field),
    "states": _states,
    "freshness": words("chain", "direct"),
}
