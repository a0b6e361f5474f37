# SPDX-License-Identifier: Apache-2.0
"""Iceberg's REST routes for views, implemented by this package's view writer and swap, for the compatibility kit.

For tests only. All other routes are forwarded to Iceberg's own server over the same database. Only renaming a view,
which the package never does, is implemented here with SQL.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.sql import VIEW, SqlPointers, stored_namespace
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.view import ViewMetadata, new_view, replace_version, roll_back, with_view_properties
from airflow_mv.errors import (
    AlreadyExistsError,
    InvalidMetadataError,
    NotFoundError,
    UnsupportedError,
    ViewNotFoundError,
)
from tests.builders import without_properties
from tests.rest.proxy import Forwarding
from tests.services import http_server

_TRIES = 20
_LAST_ADDED = -1
_SEPARATOR = "\x1f"

Document = dict[str, Any]


class RestError(Exception):
    """An error response: a status, the name of Java's exception, and its message."""

    def __init__(self, status: HTTPStatus, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def bad_request(message: str) -> RestError:
    """An error of the client."""
    return RestError(HTTPStatus.BAD_REQUEST, "IllegalArgumentException", message)


class Changes:
    """The updates of one commit request, applied to a view's metadata in their order.

    Args:
        view: The metadata that they are applied to.
    """

    def __init__(self, view: ViewMetadata) -> None:
        self.view = view
        self._schemas: dict[int, Document] = {schema.schema_id: schema.document() for schema in view.schemas}
        self._versions: dict[int, Document] = {}

    def apply(self, updates: Sequence[Mapping[str, Any]]) -> ViewMetadata:
        """Return the changed metadata."""
        for item in updates:
            action = str(item["action"])
            method: Callable[[Mapping[str, Any]], None] | None = getattr(self, f"_{action.replace('-', '_')}", None)
            if method is None:
                raise bad_request(f"Cannot convert metadata update action from json: {action}")
            method(item)
        return self.view

    def _assign_uuid(self, item: Mapping[str, Any]) -> None:
        if item["uuid"] != self.view.view_uuid:
            raise bad_request("Cannot reassign uuid")

    def _upgrade_format_version(self, item: Mapping[str, Any]) -> None:
        if item["format-version"] != self.view.format_version:
            raise bad_request(f"Unsupported format version: {item['format-version']}")

    def _set_location(self, item: Mapping[str, Any]) -> None:
        self.view = ViewMetadata.read({**self.view.document(), "location": item["location"]}, source="set-location")

    def _set_properties(self, item: Mapping[str, Any]) -> None:
        self.view = with_view_properties(self.view, item["updates"])

    def _remove_properties(self, item: Mapping[str, Any]) -> None:
        self.view = without_properties(self.view, *item["removals"])

    def _add_schema(self, item: Mapping[str, Any]) -> None:
        self._schemas[item["schema"]["schema-id"]] = item["schema"]
        self._schemas[_LAST_ADDED] = item["schema"]

    def _add_view_version(self, item: Mapping[str, Any]) -> None:
        version = item["view-version"]
        self._versions[version["version-id"]] = version
        self._versions[_LAST_ADDED] = version

    def _set_current_view_version(self, item: Mapping[str, Any]) -> None:
        version = self._versions.get(item["view-version-id"])
        if version is None:
            self.view = roll_back(self.view, item["view-version-id"], now_ms=now_ms())
            return
        if version["schema-id"] not in self._schemas:
            raise bad_request(f"Cannot add version with unknown schema: {version['schema-id']}")
        self.view = replace_version(
            self.view, schema=self._schemas[version["schema-id"]], now_ms=now_ms(), **definition(version)
        )


class ViewRoutes:
    """The view routes over one SQL catalog, each a method that returns the response document.

    Args:
        iceberg: The catalog whose tables hold the views.
    """

    def __init__(self, iceberg: SqlCatalog) -> None:
        self._catalog = MaterializedViewCatalog(iceberg)
        self._pointers = SqlPointers(iceberg)
        self._namespace_exists = iceberg.namespace_exists

    def list(self, namespace: str) -> Document:
        """List the views of a namespace."""
        views = self._catalog.list(parts(namespace))
        return {"identifiers": [{"namespace": view.namespace, "name": view.name} for view in views]}

    def load(self, view: Identifier) -> Document:
        """Load a view."""
        return answer(self._catalog.load(view))

    def create(self, namespace: str, request: Document) -> Document:
        """Create a view."""
        view = self.identifier(namespace, request["name"])
        metadata = new_view(
            view_uuid=str(uuid.uuid4()),
            location=request.get("location") or self._catalog.folders.new(view),
            schema=request["schema"],
            properties=request.get("properties") or {},
            now_ms=now_ms(),
            **definition(request["view-version"]),
        )
        return answer(self._catalog.create(view, metadata))

    def commit(self, view: Identifier, request: Document) -> Document:
        """Apply a request's updates; if the pointer has moved, apply them again to the new state."""
        for _ in range(_TRIES):
            base = self._catalog.load(view)
            check(base.metadata, request.get("requirements") or ())
            changed = Changes(base.metadata).apply(request["updates"])
            if changed == base.metadata or self._catalog.replace(base, changed):
                return self.load(view)
        raise RestError(HTTPStatus.CONFLICT, "CommitFailedException", f"Cannot commit {named(view)}: it kept changing")

    def drop(self, view: Identifier) -> None:
        """Drop a view."""
        self._catalog.drop(view)

    def register(self, namespace: str, request: Document) -> Document:
        """Add a row for an existing metadata file."""
        view = self.identifier(namespace, request["name"])
        loaded = self._catalog.load_at(view, request["metadata-location"])
        if self._pointers.get(view)[0] is not None:
            # The package's own locations are new for each creation, so there the same location is the same creation.
            raise AlreadyExistsError(f"{view} exists already")
        self._pointers.insert(view, loaded.metadata_location)
        return answer(loaded)

    def rename(self, request: Document) -> None:
        """Rename a view."""
        source, target = (
            self.identifier(_SEPARATOR.join(request[key]["namespace"]), request[key]["name"])
            for key in ("source", "destination")
        )
        if not self._catalog.exists(source):
            raise ViewNotFoundError(named(source))
        if not self._namespace_exists(target.namespace):
            raise NotFoundError(f"Namespace does not exist: {'.'.join(target.namespace)}")
        statement = (
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == self._catalog.name,
                IcebergTables.table_namespace == stored_namespace(source.namespace),
                IcebergTables.table_name == source.name,
                IcebergTables.iceberg_type == VIEW,
            )
            .values(table_namespace=stored_namespace(target.namespace), table_name=target.name)
        )
        try:
            with self._pointers.engine.begin() as connection:
                connection.execute(statement)
        except IntegrityError:
            kind = "View" if self._catalog.exists(target) else "Table"
            message = f"Cannot rename {named(source)} to {named(target)}. {kind} already exists"
            raise RestError(HTTPStatus.CONFLICT, "AlreadyExistsException", message) from None

    def identifier(self, namespace: str, name: str) -> Identifier:
        """A view's identifier, with the namespace as encoded in a path."""
        return Identifier(self._catalog.name, parts(namespace), name)

    def taken(self, view: Identifier) -> str:
        """Return the name of the owner in Java's wording."""
        exists = self._catalog.exists(view)
        return (
            f"View already exists: {named(view)}" if exists else f"Table with same name already exists: {named(view)}"
        )


def now_ms() -> int:
    """The current time."""
    return time.time_ns() // 1_000_000


def parts(namespace: str) -> tuple[str, ...]:
    """The parts of a namespace as encoded in a path."""
    return tuple(namespace.split(_SEPARATOR))


def named(view: Identifier) -> str:
    """A view's name as Java writes it, without the catalog."""
    return ".".join((*view.namespace, view.name))


def answer(view: LoadedView) -> Document:
    """The response document for a view."""
    return {"metadata-location": view.metadata_location, "metadata": view.metadata.document(), "config": {}}


def check(view: ViewMetadata, requirements: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a commit whose requirements do not hold; only one kind is supported."""
    for requirement in requirements:
        if requirement["type"] != "assert-view-uuid" or requirement["uuid"] != view.view_uuid:
            message = f"Requirement failed: UUID does not match: expected {view.view_uuid}: {requirement}"
            raise RestError(HTTPStatus.CONFLICT, "CommitFailedException", message)


def definition(version: Mapping[str, Any]) -> Document:
    """A request's view version, as arguments of this package's functions."""
    texts: dict[str, str] = {}
    for item in version["representations"]:
        dialect = item["dialect"].lower()
        if dialect in map(str.lower, texts):
            raise bad_request(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        texts[item["dialect"]] = item["sql"]
    return {
        "sql": texts,
        "default_catalog": version.get("default-catalog"),
        "default_namespace": tuple(version["default-namespace"]),
        "summary": version.get("summary") or {},
    }


@contextmanager
def facade(iceberg: SqlCatalog, upstream: str) -> Iterator[str]:
    """Yield the address of the façade.

    Args:
        iceberg: The catalog whose views it serves.
        upstream: The address of Iceberg's server over the same catalog, for all other routes.
    """

    class Handler(_Handler):
        routes = ViewRoutes(iceberg)
        other = urlsplit(upstream).netloc

    with http_server(Handler) as port:
        yield f"http://127.0.0.1:{port}"


class _Handler(Forwarding):
    routes: ViewRoutes

    def answer(self, body: bytes) -> None:
        """Answer the routes of views, and forward all others."""
        route = self._route([unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")])
        if route is None:
            super().answer(body)
            return
        try:
            document = route(json.loads(body) if body else {})
        except RestError as error:
            self._send(error.status, {"message": str(error), "type": error.kind})
            return
        self._send(HTTPStatus.OK if document is not None else HTTPStatus.NO_CONTENT, document)

    def _route(self, path: list[str]) -> Callable[[Document], Document | None] | None:
        routes = self.routes
        match (self.command, *path):
            case "GET", "v1", "namespaces", namespace, "views":
                return lambda _: self._named(None, namespace, lambda: routes.list(namespace))
            case "POST", "v1", "namespaces", namespace, "views":
                return lambda request: self._named(
                    request["name"], namespace, lambda: routes.create(namespace, request)
                )
            case "POST", "v1", "namespaces", namespace, "register-view":
                return lambda request: self._named(
                    request["name"], namespace, lambda: routes.register(namespace, request)
                )
            case "POST", "v1", "views", "rename":
                return lambda request: self._renamed(request)
            case method, "v1", "namespaces", namespace, "views", name:
                view = routes.identifier(namespace, name)
                calls: dict[str, Callable[[Document], Document | None]] = {
                    "GET": lambda _: routes.load(view),
                    "HEAD": lambda _: routes.load(view) and None,
                    "POST": lambda request: routes.commit(view, request),
                    "DELETE": lambda _: routes.drop(view),
                }
                return lambda request: self._named(name, namespace, lambda: calls[method](request))
        return None

    def _renamed(self, request: Document) -> None:
        source = request["source"]
        self._named(source["name"], _SEPARATOR.join(source["namespace"]), lambda: self.routes.rename(request))

    def _named(self, name: str | None, namespace: str, call: Callable[[], Document | None]) -> Document | None:
        """Call, and translate this package's errors to Java's."""
        dotted = ".".join((*parts(namespace), name or ""))
        try:
            return call()
        except ViewNotFoundError:
            raise RestError(HTTPStatus.NOT_FOUND, "NoSuchViewException", f"View does not exist: {dotted}") from None
        except NotFoundError as error:
            raise RestError(HTTPStatus.NOT_FOUND, "NoSuchNamespaceException", str(error)) from None
        except AlreadyExistsError:
            message = self.routes.taken(self.routes.identifier(namespace, name or ""))
            raise RestError(HTTPStatus.CONFLICT, "AlreadyExistsException", message) from None
        except (InvalidMetadataError, UnsupportedError) as error:
            raise bad_request(str(error)) from None

    def _send(self, status: HTTPStatus, document: Document | None) -> None:
        content = b"" if document is None else document
        if status >= HTTPStatus.BAD_REQUEST:
            content = {"error": {**document, "code": int(status)}}
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.write(int(status), {"Content-Type": "application/json"}, data)
