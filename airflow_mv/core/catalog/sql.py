# SPDX-License-Identifier: Apache-2.0
"""View pointers in the tables of a SQL catalog, shared with Java's ``JdbcCatalog`` (V1) and pyiceberg.

pyiceberg's ``SqlCatalog`` owns the engine and the tables; its view calls are not implemented, so the
statements on rows of type ``VIEW`` are here. Each is one statement in its own transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import ColumnElement, and_, delete, insert, inspect, or_, select, true, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from airflow_mv.core.catalog.answers import brief, forbidden_by_database
from airflow_mv.core.catalog.configured import response_timeout
from airflow_mv.core.catalog.database_limits import guard, require_locks
from airflow_mv.core.catalog.loaded import Row
from airflow_mv.core.catalog.pyiceberg_compat import ROWS
from airflow_mv.core.spec.identifiers import MAX_PART_LENGTH, Identifier
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    CommitStateUnknownError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
)

VIEW = "VIEW"
TABLE = "TABLE"
_MAX_LOCATION = 1000
#: Not the mapped class: its first use makes SQLAlchemy configure all mapped classes of the process, and Airflow import
#: all of its own for that, half a second.
_ROWS = ROWS
_BATCH = 400
#: From so many names on, all rows of their namespaces are read in one query. That takes less than to ask for each name.
_MANY = 2_000


#: The kind of a row, and the metadata file that it names.
Entry = tuple[str, str]


@dataclass(frozen=True, slots=True)
class RowSwap:
    """The change of one row among several that change together.

    Args:
        name: The row's name.
        before: What it must be; ``None`` if there must be none.
        after: What it becomes; ``None`` if it is removed.
    """

    name: Identifier
    before: Entry | None
    after: Entry | None


class SqlPointers:
    """Pointers (name -> metadata location) of views and tables in one SQL catalog.

    Args:
        catalog: pyiceberg's catalog; its engine and its name are used.

    Raises:
        ConfigurationError: The tables are of the old layout (V0), which cannot hold views.
    """

    def __init__(self, catalog: SqlCatalog) -> None:
        self.engine = catalog.engine
        self._catalog = catalog.name
        require_locks(self.engine, catalog.properties)
        guard(self.engine, response_timeout(catalog.properties))
        try:
            columns = {column["name"] for column in inspect(self.engine).get_columns(_ROWS.name)}
        except SQLAlchemyError as error:
            raise CatalogUnavailableError(f"catalog {catalog.name}: {brief(error)}") from None
        if "iceberg_type" not in columns:
            raise ConfigurationError(
                f"catalog {catalog.name}: its database has the old schema version V0, which has no views. "
                "Set the catalog property schema_version=v1 once to migrate it"
            )

    def get(self, view: Identifier) -> tuple[str | None, str | None]:
        """Return ``(metadata location, iceberg_type)`` of a name; ``(None, None)`` if there is no row."""
        query = select(_ROWS.c.metadata_location, _ROWS.c.iceberg_type).where(self._is(view))
        with self._session() as session:
            row = session.execute(query).one_or_none()
        return (None, None) if row is None else (row[0], row[1])

    def previous(self, view: Identifier) -> str | None:
        """Return the previous metadata location in the row of a view."""
        query = select(_ROWS.c.previous_metadata_location).where(self._is(view))
        with self._session() as session:
            return session.execute(query).scalar_one_or_none()

    def row(self, name: Identifier) -> Row | None:
        """Return the row of a table or view; ``None`` if there is none."""
        columns = (
            _ROWS.c.iceberg_type,
            _ROWS.c.metadata_location,
            _ROWS.c.previous_metadata_location,
        )
        with self._session() as session:
            found = session.execute(select(*columns).where(self._is(name))).one_or_none()
        return None if found is None else Row(found[0] or TABLE, found[1] or "", found[2])

    def locations(self) -> list[tuple[str, str]]:
        """Return ``(name, metadata location)`` of every table and view of the database, whatever its catalog."""
        parts = (_ROWS.c.catalog_name, _ROWS.c.table_namespace, _ROWS.c.table_name)
        with self._session() as session:
            rows = session.execute(select(*parts, _ROWS.c.metadata_location)).all()
        return [(".".join(name), location) for *name, location in rows if location]

    def names(self, namespace: tuple[str, ...] | None) -> list[tuple[tuple[str, ...], str]]:
        """Return ``(namespace, name)`` of every view, of one namespace or of the whole catalog."""
        query = select(_ROWS.c.table_namespace, _ROWS.c.table_name).where(
            _ROWS.c.catalog_name == self._catalog, _ROWS.c.iceberg_type == VIEW
        )
        if namespace is not None:
            query = query.where(_ROWS.c.table_namespace == stored_namespace(namespace))
        with self._session() as session:
            rows = session.execute(query.order_by(_ROWS.c.table_namespace, _ROWS.c.table_name)).all()
        return [(tuple(space.split(".")), name) for space, name in rows]

    def tables(self, namespace: tuple[str, ...] | None) -> list[tuple[tuple[str, ...], str, str]]:
        """Return ``(namespace, name, metadata location)`` of every table, of one namespace or of the whole catalog."""
        parts = (_ROWS.c.table_namespace, _ROWS.c.table_name, _ROWS.c.metadata_location)
        query = select(*parts).where(_ROWS.c.catalog_name == self._catalog, _is_of(TABLE))
        if namespace is not None:
            query = query.where(_ROWS.c.table_namespace == stored_namespace(namespace))
        with self._session() as session:
            rows = session.execute(query.order_by(*parts[:2])).all()
        return [(tuple(space.split(".")), name, location) for space, name, location in rows if location]

    def locate(self, identifiers: Sequence[Identifier]) -> dict[Identifier, tuple[str, str]]:
        """Look up many names at once: ``{identifier: (metadata location, "TABLE" | "VIEW")}``.

        Names without a row are left out.
        """
        found: dict[Identifier, tuple[str, str]] = {}
        size = _BATCH if len(identifiers) < _MANY else len(identifiers)
        with self._session() as session:
            for start in range(0, len(identifiers), size):
                found |= self._locate(session, identifiers[start : start + size])
        return found

    def _locate(self, session: Session, wanted: Sequence[Identifier]) -> dict[Identifier, tuple[str, str]]:
        by_key = {(stored_namespace(item.namespace), item.name): item for item in wanted}
        names = [
            and_(_ROWS.c.table_namespace == namespace, _ROWS.c.table_name == name)
            for namespace, name in (by_key if len(by_key) <= _BATCH else ())
        ]
        spaces = {namespace for namespace, _ in by_key}
        among = or_(*names) if names else _ROWS.c.table_namespace.in_(spaces) if len(spaces) <= _BATCH else true()
        query = select(
            _ROWS.c.table_namespace,
            _ROWS.c.table_name,
            _ROWS.c.metadata_location,
            _ROWS.c.iceberg_type,
        ).where(_ROWS.c.catalog_name == self._catalog, among)
        return {
            by_key[space, name]: (location, kind or "TABLE")
            for space, name, location, kind in session.execute(query)
            if location and (space, name) in by_key
        }

    def insert(self, view: Identifier, location: str) -> None:
        """Add the row of a new view.

        Raises:
            AlreadyExistsError: The name is taken, by a view or a table.
            ConfigurationError: The catalog's user may not write.
            CommitStateUnknownError: The database gave no answer. The row may be added, even later.
        """
        row = {
            "catalog_name": self._catalog,
            "table_namespace": stored_namespace(view.namespace),
            "table_name": view.name,
            "metadata_location": _checked(location),
            "previous_metadata_location": None,
            "iceberg_type": VIEW,
        }
        try:
            with Session(self.engine) as session:
                session.execute(insert(_ROWS).values(**row))
                session.commit()
        except IntegrityError:
            taken, kind = self.get(view)
            if taken == location:
                return  # a driver or a proxy may have sent the statement twice
            what = "view" if kind == VIEW else "table"
            raise AlreadyExistsError(f"a {what} {view} exists already; choose another name or use replace") from None
        except SQLAlchemyError as error:
            if self._names(view, location):
                return
            if (forbidden := self._forbidden(f"the creation of {view}", error)) is not None:
                raise forbidden from None
            raise CommitStateUnknownError(
                f"view {view}: no response to its creation: {brief(error)}. It may or may not have been created; "
                f"nothing was deleted. Look with `airflow-mv show {view}`, and create it again if it does not "
                "exist"
            ) from None

    def swap(self, view: Identifier, base: str, new: str, *, kind: str = VIEW) -> bool:
        """Move the pointer from ``base`` to ``new``, in one conditional UPDATE.

        Args:
            view: The view; or the table, with the ``kind`` ``TABLE``.
            base: The metadata file that the row must name.
            new: The metadata file that it names afterwards.
            kind: The kind that the row must have.

        Returns:
            Whether the row matched. ``False`` does not prove that an earlier, identical swap was not applied.

        Raises:
            CommitStateUnknownError: The database gave no answer. The swap may be applied, even later.
        """
        statement = (
            update(_ROWS)
            .where(self._is(view), _is_of(kind), _ROWS.c.metadata_location == base)
            .values(metadata_location=_checked(new), previous_metadata_location=base)
        )
        try:
            with Session(self.engine) as session:
                # Committed whatever the count is: a driver may not know it, and then the catalog shows what happened.
                matched = int(session.execute(statement).rowcount)  # type: ignore[attr-defined]
                session.commit()
        except SQLAlchemyError as error:
            text = f"view {view}: no response to the swap {base} -> {new}: {brief(error)}"
            raise CommitStateUnknownError(text, self._forbidden(f"the change of {view}", error)) from None
        return matched == 1

    def swap_rows(self, swaps: Sequence[RowSwap]) -> bool:
        """Change several rows in one transaction, and return whether all of them were as required.

        ``False`` does not prove that an earlier, identical swap was not applied.

        Raises:
            AlreadyExistsError: The name of a new row is taken.
            CommitStateUnknownError: No answer. The swap may be applied, even later.
        """
        names = ", ".join(str(item.name) for item in swaps)
        try:
            with Session(self.engine) as session:
                matched = all(self._swapped(session, item) for item in swaps)
                (session.commit if matched else session.rollback)()
        except IntegrityError:
            raise AlreadyExistsError(
                f"one of the names {names} is taken; nothing was changed. Rename or drop what has it"
            ) from None
        except SQLAlchemyError as error:
            text = f"no response to the swap of {names}: {brief(error)}"
            raise CommitStateUnknownError(text, self._forbidden(f"the change of {names}", error)) from None
        return matched

    def _swapped(self, session: Session, swap: RowSwap) -> bool:
        after = swap.after
        values = {} if after is None else {"iceberg_type": after[0], "metadata_location": _checked(after[1])}
        if swap.before is None:
            key = {"table_namespace": stored_namespace(swap.name.namespace), "table_name": swap.name.name}
            session.execute(insert(_ROWS).values(catalog_name=self._catalog, **key, **values))
            return True
        kind, base = swap.before
        found = (self._is(swap.name), _is_of(kind), _ROWS.c.metadata_location == base)
        statement = (
            delete(_ROWS).where(*found)
            if after is None
            else update(_ROWS).where(*found).values(previous_metadata_location=base, **values)
        )
        return int(session.execute(statement).rowcount) == 1  # type: ignore[attr-defined]

    def delete(self, view: Identifier, *, base: str | None = None, kind: str = VIEW) -> bool:
        """Remove a view's row, and return whether there was one.

        Args:
            view: The view; or the table, with the ``kind`` ``TABLE``.
            base: The metadata file that the row must name; by default any.
            kind: The kind that the row must have.

        Raises:
            ConfigurationError: The catalog's user may not write.
            CommitStateUnknownError: The database gave no answer. The row may be removed, even later.
        """
        statement = delete(_ROWS).where(self._is(view), _is_of(kind))
        if base is not None:
            statement = statement.where(_ROWS.c.metadata_location == base)
        try:
            with Session(self.engine) as session:
                matched = int(session.execute(statement).rowcount)  # type: ignore[attr-defined]
                session.commit()
        except SQLAlchemyError as error:
            if self._names(view, None):
                return True
            if (forbidden := self._forbidden(f"the removal of {view}", error)) is not None:
                raise forbidden from None
            raise CommitStateUnknownError(
                f"view {view}: no response to its removal: {brief(error)}. It may or may not have been dropped: drop "
                "it again; if it does not exist, it was dropped"
            ) from None
        return matched == 1

    def _forbidden(self, what: str, error: SQLAlchemyError) -> ConfigurationError | None:
        return forbidden_by_database(self._catalog, what, error)

    def _names(self, view: Identifier, location: str | None) -> bool:
        """Whether a view's row names a metadata file or, for ``None``, does not exist; ``False`` without an answer."""
        try:
            return self.get(view)[0] == location
        except CatalogUnavailableError:
            return False

    @contextmanager
    def _session(self) -> Iterator[Session]:
        try:
            with Session(self.engine) as session:
                yield session
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            raise CatalogUnavailableError(f"catalog {self._catalog!r} did not respond: {brief(error)}") from None

    def _is(self, view: Identifier) -> ColumnElement[bool]:
        return and_(
            _ROWS.c.catalog_name == self._catalog,
            _ROWS.c.table_namespace == stored_namespace(view.namespace),
            _ROWS.c.table_name == view.name,
        )


def _is_of(kind: str) -> ColumnElement[bool]:
    # Catalogs from before views were supported have no kind in the rows of their tables.
    same = _ROWS.c.iceberg_type == kind
    return same if kind == VIEW else or_(same, _ROWS.c.iceberg_type.is_(None))


def stored_namespace(namespace: tuple[str, ...]) -> str:
    """Return a namespace as it is stored: the parts joined by dots.

    Raises:
        InvalidIdentifierError: A part contains a dot, so that the text would mean another namespace, or the
            text is too long for its column.
    """
    text = ".".join(namespace)
    for part in namespace:
        if "." in part:
            raise InvalidIdentifierError(
                f"the part {part!r} of a namespace contains a dot. A SQL catalog joins the parts with dots, so it "
                "cannot distinguish it from two parts; use a namespace without dots"
            )
    if len(text) > MAX_PART_LENGTH:
        raise InvalidIdentifierError(
            f"the namespace {text[:40]}… has {len(text)} characters: a SQL catalog allows {MAX_PART_LENGTH}"
        )
    return text


def _checked(location: str) -> str:
    if len(location) > _MAX_LOCATION:
        raise InvalidMetadataError(f"location {location[:80]}… has {len(location)} characters; the catalog allows 1000")
    return location
