# SPDX-License-Identifier: Apache-2.0
"""Names of views and tables: a catalog, a namespace of one or more parts, and a name; and how Spark SQL quotes them.

The written form is Spark's: parts joined by dots, odd parts in backticks. Names keep their case. A base table in no
catalog is named by its format and its directory: ``iceberg.`/path/to/table```. The kinds of base tables are those of
the "Iceberg Materialized View Spec", Design 1, section "Base table". The current state of a table that is named by path
is found by the extra that has the name of its format (:mod:`airflow_mv.core.catalog.path_tables`).

Standard library only, because the driver uses it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from airflow_mv.errors import ConfigurationError, InvalidIdentifierError, InvalidQueryError

_ESCAPED = re.compile(r"['\\\x00-\x1f\x7f]|\$(?=\{)")


def quote(name: str) -> str:
    """Return a name as a quoted Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def quoted(parts: Iterable[str]) -> str:
    """Return the parts of a name as a quoted name of Spark SQL."""
    return ".".join(quote(part) for part in parts)


def string_literal(text: str) -> str:
    """Return a Spark string literal that means exactly the text.

    Raises:
        InvalidQueryError: The text holds half a surrogate pair, which Spark cannot store.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidQueryError(f"{text!r} is not Unicode text") from error
    return "'" + _ESCAPED.sub(_escaped, text) + "'"


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return f"\\{character}" if character in "'\\" else f"\\u{ord(character):04x}"


def id_text(snapshot: int | None) -> str | None:
    """Return a snapshot id as all JSON documents and XComs have it. Programs lose the last digits of large numbers."""
    return None if snapshot is None else str(snapshot)


# ------------------------------------------------------------------------------- kinds of base tables


#: A name by path has the format and the path, and perhaps one more part, such as ``branch_x``.
_PATH_PARTS = (2, 3)
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_SELECTOR = re.compile(r"(?P<kind>branch|tag|snapshot_id|at_timestamp)_(?P<value>.+)", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class BaseTableKind:
    """A kind of base tables.

    Args:
        type: The ``type`` of its record.
        data_source: The first part of its names in SQL, which are like ``iceberg.`/path/to/table```; empty if a name
            begins with a catalog.
        registered: Whether the job reads it through a metadata file, which it registers in its staging catalog.
            Otherwise Spark finds it by its own name.
        is_iceberg: Whether its metadata and files are those of Iceberg. Another format is read by an extra.
    """

    type: str
    data_source: str = ""
    registered: bool = False
    is_iceberg: bool = True


METASTORE = BaseTableKind("iceberg-metastore")
ICEBERG_BY_PATH = BaseTableKind("iceberg-filesystem", "iceberg", registered=True)
DELTA_BY_PATH = BaseTableKind("deltalake-filesystem", "delta", is_iceberg=False)
#: The kinds that are named by path, by their format.
BY_FORMAT = {kind.data_source: kind for kind in (ICEBERG_BY_PATH, DELTA_BY_PATH)}
#: The format in the names of tables that are recorded with a type.
FORMATS = {kind.type: kind.data_source for kind in BY_FORMAT.values()}


def kind_of(parts: Sequence[str]) -> BaseTableKind:
    """Return the kind of the table that a name means.

    Args:
        parts: The parts of the name as written, without backticks.
    """
    by_path = len(parts) in _PATH_PARTS and _ABSOLUTE.match(parts[1])
    return BY_FORMAT.get(parts[0].lower(), METASTORE) if by_path else METASTORE


@dataclass(frozen=True, slots=True)
class Selector:
    """The part of a name that selects a state of a table, as in ``lake.sales.orders.branch_audit``.

    Args:
        kind: ``branch``, ``tag``, ``snapshot_id`` or ``at_timestamp``. Spark reads any branch or tag by either of the
            first two.
        value: The name of the branch or tag, the snapshot's id, or milliseconds since the epoch.
    """

    kind: str
    value: str

    @property
    def name(self) -> str:
        """The last part of the name."""
        return f"{self.kind}_{self.value}"

    @property
    def pins(self) -> bool:
        """Whether it always selects the same rows. A branch and a tag can be moved."""
        return self.kind in ("snapshot_id", "at_timestamp")


def selector_of(name: str) -> Selector | None:
    """Return what the last part of a name may select.

    Args:
        name: The part. A table may also have such a name.
    """
    match = _SELECTOR.fullmatch(name)
    if match is None:
        return None
    found = Selector(match["kind"], match["value"])
    return None if found.pins and not _NUMBER.fullmatch(found.value) else found


# -------------------------------------------------------------------------------------------- names


MAX_PART_LENGTH = 255
MAX_LENGTH = 64 * MAX_PART_LENGTH
#: An object store's key has at most 1,024 bytes.
MAX_PATH_LENGTH = 1200

_PART = re.compile(r"`((?:[^`]|``)*)`|([\w-]+)")
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs"})


class Identifier(str):
    """The full name of a view or a table, and its parts.

    Its text is for people and for :meth:`parse`: backticks only where needed. Two names are equal if their parts are.

    Attributes:
        parts: Catalog, the parts of the namespace, and name.
        kind: The kind of the table, if it is a base table.
        path: The directory of a table that is named by it.
        selector: What the last part may select. There may also be a table of the whole name, which Spark reads then.
    """

    __slots__ = ("catalog", "kind", "name", "namespace", "parts", "path", "selector")

    catalog: str
    namespace: tuple[str, ...]
    name: str
    parts: tuple[str, ...]
    kind: BaseTableKind
    path: str | None
    selector: Selector | None

    def __new__(cls, catalog: str, namespace: tuple[str, ...], name: str) -> Self:
        """Refuse parts that no catalog can hold."""
        parts = (catalog, *namespace, name)
        kind = kind_of(parts)
        longest = MAX_PART_LENGTH if kind is METASTORE else MAX_PATH_LENGTH
        for part in parts:
            _check_part(part, longest)
        if not namespace and kind is METASTORE:
            raise InvalidIdentifierError(f"{name!r} has no namespace: write catalog.namespace.name")
        self = super().__new__(cls, _written(parts))
        self.catalog, self.namespace, self.name, self.parts = catalog, namespace, name, parts
        self.kind, self.path = kind, None if kind is METASTORE else parts[1]
        self.selector = selector_of(name) if len(parts) > (3 if kind is METASTORE else 2) else None
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[str, ...], str]]:
        """Copy and pickle by the parts."""
        return type(self), (self.catalog, self.namespace, self.name)

    @classmethod
    def parse(
        cls, text: str, *, default_catalog: str | None = None, default_namespace: tuple[str, ...] = ()
    ) -> Identifier:
        """Read a written name such as ``lake.sales.daily`` or ``lake.`2024 Q1`.daily``.

        Args:
            text: The name. A part with characters other than letters, digits, ``_`` and ``-`` is in
                backticks, with each backtick inside doubled.
            default_catalog: The catalog of a name with one or two parts. Names with more parts
                begin with their catalog.
            default_namespace: The namespace of a name with one part.

        Raises:
            InvalidIdentifierError: The text is not a name, or has too few parts.
        """
        return cls.of(split(text), default_catalog=default_catalog, default_namespace=default_namespace)

    @classmethod
    def of(
        cls, parts: tuple[str, ...], *, default_catalog: str | None = None, default_namespace: tuple[str, ...] = ()
    ) -> Identifier:
        """Make an identifier of unquoted parts, completed by the defaults as in :meth:`parse`.

        Args:
            parts: The parts as they are, without backticks.
            default_catalog: The catalog of a name with one or two parts.
            default_namespace: The namespace of a name with one part.

        Raises:
            InvalidIdentifierError: A part is not legal, or there are too few.
        """
        if (kind := kind_of(parts)) is not METASTORE:
            return cls(kind.data_source, parts[1:-1], parts[-1])
        if len(parts) == 1:
            parts = (*default_namespace, *parts)
            complete = (default_catalog, *parts) if default_catalog and default_namespace else parts
        elif len(parts) == 2 and default_catalog:
            complete = (default_catalog, *parts)
        else:
            complete = parts
        if len(complete) < 3:
            raise InvalidIdentifierError(f"{quoted(parts)} has too few parts: write catalog.namespace.name")
        return cls(complete[0], complete[1:-1], complete[-1])

    @property
    def selects_from(self) -> Identifier | None:
        """The table that :attr:`selector` selects from, or ``None`` if the last part can only be a table's name."""
        if self.selector is None:
            return None
        return Identifier(self.catalog, self.namespace[:-1], self.namespace[-1])

    def sql(self) -> str:
        """The name for a Spark statement: every part in backticks."""
        return quoted(self.parts)

    @property
    def within_catalog(self) -> str:
        """Namespace and name, as text that :func:`split` reads."""
        return quoted(self.parts[1:])

    @property
    def full_namespace(self) -> str:
        """Catalog and namespace, as text that :func:`split_namespace` reads."""
        return _written(self.parts[:-1])


def _written(parts: tuple[str, ...]) -> str:
    return ".".join([part if _is_plain(part) else quote(part) for part in parts])


def _is_plain(part: str) -> bool:
    """Whether a part has ASCII letters, digits and ``_`` only, and does not begin with a digit."""
    return part.isascii() and part.isidentifier()


#: Where a storage table is: its name in the catalog or, if it is in none, its metadata file.
StoragePlace = Identifier | str


def split(text: str) -> tuple[str, ...]:
    """Split a written name into its parts, without checking them.

    Args:
        text: Parts joined by dots, see :meth:`Identifier.parse`.

    Raises:
        InvalidIdentifierError: A part is empty or not readable, a backtick has no partner, or the text is
            longer than any name.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidIdentifierError(f"{text[:40]!r}… is not a name: it has {len(text)} characters")
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise _no_name(text, position)
        quoted, plain = match.groups()
        parts.append(plain if quoted is None else quoted.replace("``", "`"))
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            raise _no_name(text, position)
        position += 1


def split_namespace(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a written namespace into the catalog's name and the namespace.

    Raises:
        InvalidIdentifierError: See :func:`split`.
        ConfigurationError: The catalog is missing.
    """
    catalog, *namespace = split(text)
    if not namespace:
        raise ConfigurationError(f"namespace {text!r} is not full: write catalog.namespace")
    return catalog, tuple(namespace)


def _no_name(text: str, position: int) -> InvalidIdentifierError:
    shown = repr(text) if len(text) <= MAX_PART_LENGTH else f"{text[:MAX_PART_LENGTH]!r}…"
    return InvalidIdentifierError(f"{shown} is not a name: {_explain(text, position)}")


def _explain(text: str, position: int) -> str:
    """Explain why a name cannot be read at a position."""
    rest = text[position:]
    if not rest or rest[0] == ".":
        return f"part at character {position + 1} is empty"
    if rest[0] == "`":
        return f"the backtick at character {position + 1} is unbalanced"
    return f"put the part with {rest[0]!r} at character {position + 1} in backticks"


def _check_part(part: str, longest: int) -> None:
    """Refuse a part that is empty, too long or holds characters that cannot be written."""
    if not part:
        raise InvalidIdentifierError("a name has an empty part")
    if len(part) > longest:
        raise InvalidIdentifierError(
            f"the part {part[:40]!r}… of a name has {len(part)} characters: at most {longest} are allowed"
        )
    for character in "" if part.isprintable() else part:
        if unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise InvalidIdentifierError(f"the part {part!r} of a name holds the control character {character!r}")
