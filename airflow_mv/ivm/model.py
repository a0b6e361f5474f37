# SPDX-License-Identifier: Apache-2.0
"""The inputs and results of the algebra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_mv.ivm.ir import Match
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.reasons import Code, Reason

#: The rows that the relations ``<name>__near_new`` and ``<name>__near_old`` must have, by the base table's name: all
#: that match the change of another table in one of these ways. They may have other rows of their version, too.
Near = frozenset[tuple[str, Match]]


@dataclass(frozen=True, slots=True)
class BaseRelation:
    """One base table of the query.

    The generated SQL reads ``<name>__new``, and of a changed table also ``<name>__old`` and
    ``<name>__delta``: the used columns and ``__w``, the signed number of copies.
    """

    identifier: Identifier
    #: Stem of the relation names, such as ``t0``.
    name: str
    #: Name and Spark type of each column, in order.
    columns: tuple[tuple[str, str], ...]
    #: Whether anything changed.
    changed: bool
    #: Whether rows were only added: every ``__w`` is positive.
    appended_only: bool = False
    #: Columns that are never NULL, before and after the change.
    not_null: frozenset[str] = frozenset()
    #: Whether its rows that match the changes of other tables are gathered while its own change is read. Then the
    #: statements read ``<name>__near_new`` and ``<name>__near_old`` where those rows are enough.
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """Strategy A: the UNION ALL of these SELECTs is inserted. Columns are in the view's order."""

    terms: tuple[str, ...]
    #: How often the terms name each relation.
    reads: Mapping[str, int]
    near: Near = frozenset()


@dataclass(frozen=True, slots=True)
class Signed:
    """The change of the result as a signed bag: the UNION ALL of these SELECTs.

    Columns are the view's, then ``__w``: the number of added (+) or removed (-) copies, not consolidated.
    """

    terms: tuple[str, ...]
    near: Near = frozenset()


@dataclass(frozen=True, slots=True)
class Merged:
    """Strategy B: partial aggregates of the change are combined with the stored rows of the same keys.

    ``signed`` is one SELECT with the view's columns: the changed groups and their partial
    aggregates (of ``merge_rows``: the changed row values, and ``__w`` after them). The stored rows
    of these keys (compare with ``<=>``) are replaced by those of :meth:`combine`.
    Correct only in ANSI mode: otherwise a sum that overflows is NULL, like that of an empty group.
    """

    #: Output columns that identify a group; empty if the view has one row.
    keys: tuple[str, ...]
    signed: str
    #: The statement of :meth:`combine`, with ``stored`` and ``delta`` as names of its relations.
    template: str
    #: For each key whether it is provably never NULL, so that ``=`` may stand for ``<=>``.
    not_null: tuple[bool, ...]
    #: How often ``signed`` names each relation.
    reads: Mapping[str, int]
    near: Near = frozenset()

    def combine(self, stored: str, delta: str) -> str:
        """Return the SELECT of the new rows of the changed groups, columns in the view's order.

        Args:
            stored: Name, as SQL, of a relation with the stored rows of the changed keys, and no other rows.
            delta: Name, as SQL, of a relation with the rows of ``signed``.
        """
        return self.template.replace("`__stored`", stored).replace("`__delta`", delta)


@dataclass(frozen=True, slots=True)
class Replaced:
    """Strategy C: ``storage' = (storage anti-join D) + (Q_new semi-join D)``, compared with ``<=>``.

    ``affected`` selects D: distinct values of ``keys``, columns named like the keys. It is always
    complete. If there are ``constants``, the job may first run each (one row, one boolean): if all are
    false, ``affected_unless_constants`` is complete too, and cheaper; if one is true, nearly every row
    is affected and a full refresh is cheaper. Without ``keys`` the query has one row, and ``affected``
    has rows if the change affects it.
    """

    keys: tuple[str, ...]
    affected: str
    #: For each key whether it is provably never NULL, so that ``=`` may stand for ``<=>``.
    not_null: tuple[bool, ...]
    #: How often the statements together name each relation.
    reads: Mapping[str, int]
    constants: tuple[str, ...] = ()
    affected_unless_constants: str | None = field(default=None)
    near: Near = frozenset()


class RefusedError(Exception):
    """Carries a reason to the public method that returns it. It is never raised out of the package."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(code, message)
