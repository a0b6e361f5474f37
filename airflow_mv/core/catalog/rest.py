# SPDX-License-Identifier: Apache-2.0
"""Views of a REST catalog. REST has no compare-and-swap for views, so a refresh does not change them.

pyiceberg can create, load, list and drop views over REST, but cannot replace them, and drops fields that it does not
know. This module therefore sends the requests itself, through pyiceberg's session, which keeps the credentials.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Capability, RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError
from requests import Response

from airflow_mv.core.catalog.answers import NO_ANSWER, UNPROVEN, answered, brief, one_line
from airflow_mv.core.catalog.configured import response_timeout
from airflow_mv.core.catalog.loaded import LoadedView
from airflow_mv.core.catalog.pyiceberg_compat import LOAD_VIEW, encoded_namespace, endpoints_of, session_of
from airflow_mv.core.catalog.rest_session import bound_session
from airflow_mv.core.catalog.vended import Vended, VendedCredentials
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import CREATION_ID_PROPERTY, definition_tag, parse_settings
from airflow_mv.core.spec.view import ViewMetadata, parse_view
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    CommitStateUnknownError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    NotFoundError,
    UnsupportedError,
)

log = logging.getLogger(__name__)

#: Placeholder for a location that the server chooses.
CHOSEN_BY_THE_CATALOG = "chosen-by-the-catalog"
#: Why a server has no views, and what to do if that is wrong.
NAMES_NO_VIEWS = (
    "(its configuration names no view endpoints; if it has them, set the catalog's property 'view-endpoints-supported' "
    "to 'true')"
)
_NEEDED = (LOAD_VIEW, Capability.V1_LIST_VIEWS)
_NEEDED_FOR_TABLES = (
    Capability.V1_LOAD_TABLE,
    Capability.V1_LIST_TABLES,
    Capability.V1_CREATE_TABLE,
    Capability.V1_UPDATE_TABLE,
    Capability.V1_DELETE_TABLE,
)
_LAST_ADDED = -1
_TABLE = "namespaces/{namespace}/tables/{table}"


class TableProperties(msgspec.Struct, rename="kebab"):
    """The part of a table's metadata that a listing needs."""

    properties: dict[str, Any] = msgspec.field(default_factory=dict)
    refs: msgspec.Raw = msgspec.Raw(b"")

    @property
    def has_definition(self) -> bool:
        """Whether the table has the tag of a view's definition. Its branches and tags are not decoded for that."""
        return definition_tag("").encode() in bytes(self.refs)


class _TableAnswer(msgspec.Struct):
    """The part of the answer with a table that a listing needs."""

    metadata: TableProperties


def namespaces_of(catalog: Catalog, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the namespaces that a catalog lists, at any depth.

    Args:
        parent: Only those in this namespace.

    Raises:
        CatalogUnavailableError: It does not even know the list of all namespaces: the answer is not the catalog's own.
    """
    try:
        listed = catalog.list_namespaces(parent)
    except NoSuchNamespaceError:
        if parent:
            return  # it was dropped meanwhile
        raise CatalogUnavailableError(
            f"catalog {catalog.name!r} did not respond (listing namespaces): the status is 404, from a proxy or "
            "another server; check the catalog's uri if this persists"
        ) from None
    for space in listed:
        yield tuple(space)
        if len(space) > len(parent):
            yield from namespaces_of(catalog, tuple(space))


class RestViews:
    """The views of one REST catalog.

    Args:
        catalog: pyiceberg's catalog; its session and its addresses are used.
        vended: Keeps the credentials that the server vends with views.
    """

    def __init__(self, catalog: RestCatalog, vended: VendedCredentials) -> None:
        self._catalog, self._vended = catalog, vended
        bound_session(session_of(catalog), response_timeout(catalog.properties))

    @property
    def supported(self) -> bool:
        """Whether the server declares that it supports views."""
        return all(endpoint in endpoints_of(self._catalog) for endpoint in _NEEDED)

    @property
    def commits_tables(self) -> bool:
        """Whether the server declares that it supports what a view needs that is a table."""
        return all(endpoint in endpoints_of(self._catalog) for endpoint in _NEEDED_FOR_TABLES)

    def load(self, view: Identifier) -> LoadedView | None:
        """Load a view, or return ``None`` if there is none of this name.

        Raises:
            InvalidMetadataError: The metadata that the server returned is broken.
        """
        response = self._request("GET", view, f"loading view {view}")
        if response.status_code == 404:
            return None
        return self._loaded(view, self._accepted(response, f"loading view {view}"))

    def names(self, namespace: tuple[str, ...] | None) -> list[tuple[tuple[str, ...], str]]:
        """Return ``(namespace, name)`` of every view, of one namespace or of the whole catalog."""
        self._require_views()
        found: list[tuple[tuple[str, ...], str]] = []
        with answered(self._catalog.name, "listing views"):
            for space in [namespace] if namespace is not None else namespaces_of(self._catalog):
                try:
                    found += [(tuple(item[:-1]), item[-1]) for item in self._catalog.list_views(space)]
                except NoSuchNamespaceError:
                    continue
        return sorted(found)

    def table_properties(self, table: Identifier) -> TableProperties:
        """Return the properties and references of a table, for a listing of many.

        Neither credentials nor the snapshots of its history are requested: both may cost the server more than the rest.

        Raises:
            NotFoundError: There is no such table.
            InvalidMetadataError: The answer is not one with a table.
        """
        what = f"loading table {table}"
        namespace = encoded_namespace(self._catalog, table.namespace)
        url = self._catalog.url(_TABLE, namespace=namespace, table=_encoded(table.name))
        no_credentials = {"X-Iceberg-Access-Delegation": None}
        response = self._sent("GET", url, what, params={"snapshots": "refs"}, headers=no_credentials)
        if response.status_code == 404:
            raise NotFoundError(f"there is no table {table} in catalog {self._catalog.name!r}")
        try:
            answer = msgspec.json.decode(self._accepted(response, what).content, type=_TableAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            source = f"table {table}, response of catalog {self._catalog.name!r}"
            raise InvalidMetadataError(f"{source}: {error}") from None
        return answer.metadata

    def create(self, view: Identifier, metadata: ViewMetadata) -> LoadedView:
        """Create a view. The server chooses its uuid, and its location if none is given.

        Raises:
            AlreadyExistsError: The name is taken, by a view or a table.
            CommitStateUnknownError: No answer. The view may be created, even later.
        """
        what = f"creating view {view}"
        version = metadata.current_version.document()
        body = {
            "name": view.name,
            "schema": metadata.schema_.document(),
            "view-version": version,
            "properties": dict(metadata.properties),
            **({"location": metadata.location} if metadata.location != CHOSEN_BY_THE_CATALOG else {}),
        }
        refusal: MaterializedViewError
        response: Response | None = None
        try:
            response = self._request("POST", view, what, body=body, create=True)
            if response.ok:
                return self._loaded(view, response)
            refusal = _refusal(self._catalog.name, response, what)
        except (CatalogUnavailableError, InvalidMetadataError) as error:
            refusal = error
        # Only a success proves anything: after any other answer, check whether the view was created.
        found, known = self._loaded_or_unknown(view)
        wanted = metadata.properties.get(CREATION_ID_PROPERTY)
        if found is not None and wanted and found.metadata.properties.get(CREATION_ID_PROPERTY) == wanted:
            return found
        if response is not None and response.status_code == 409 and known:
            kind = "view" if found is not None else "table"
            raise AlreadyExistsError(f"a {kind} {view} exists already; choose another name or use replace")
        if response is not None and known and _is_refused(response):
            raise refusal
        raise CommitStateUnknownError(
            f"{refusal}. It may or may not have been created; look with `airflow-mv show {view}`, and create it "
            "again if it does not exist"
        )

    def _loaded_or_unknown(self, view: Identifier) -> tuple[LoadedView | None, bool]:
        """Return the view, if there is one, and whether the server gave a conclusive answer."""
        try:
            return self.load(view), True
        except MaterializedViewError:
            return None, False

    def replace(self, view: LoadedView, metadata: ViewMetadata) -> bool:
        """Commit the differences between a loaded view and its new metadata; return whether they were applied.

        The server applies the changes to the view's current state, and checks only its uuid.

        Raises:
            CommitStateUnknownError: No answer, or an inconclusive one. The change may be applied, even later.
        """
        what = f"replacing view {view.identifier}"
        changes = view_updates(view.metadata, metadata)
        if not changes:
            return True
        uuid = {"type": "assert-view-uuid", "uuid": view.metadata.view_uuid}
        try:
            response = self._request("POST", view.identifier, what, body={"requirements": [uuid], "updates": changes})
            if response.ok:
                self._loaded(view.identifier, response)  # otherwise it is not a catalog's answer
                return True
        except (CatalogUnavailableError, InvalidMetadataError) as error:
            raise CommitStateUnknownError(str(error)) from None
        if response.status_code == 409:
            return False
        refusal = _refusal(self._catalog.name, response, what)
        raise CommitStateUnknownError(str(refusal), refusal if _is_refused(response) else None)

    def delete(self, view: Identifier) -> bool:
        """Drop a view, and return whether there was one.

        Raises:
            CommitStateUnknownError: No answer. The view may be dropped, even later.
        """
        what = f"dropping view {view}"
        response: Response | None = None
        try:
            response = self._request("DELETE", view, what)
            if response.ok:
                return True
            refusal = _refusal(self._catalog.name, response, what)
        except CatalogUnavailableError as error:
            refusal = error
        listed = self._listed(view)
        # A server that cannot read the view's metadata file does not respond a load either, until the deadline.
        found, known = (None, False) if listed else self._loaded_or_unknown(view)
        if known and found is None:
            return response is None or response.status_code != 404
        if response is not None and (known or listed) and _is_refused(response):
            raise refusal
        raise CommitStateUnknownError(
            f"{refusal}. It may or may not have been dropped: drop it again; if it does not exist, it was "
            "dropped. A server that lists the view and can neither load nor drop it may not be able to read its "
            f"metadata file: delete that file, which the server's log names, then run `airflow-mv drop {view} --force`"
        )

    def _listed(self, view: Identifier) -> bool:
        """Whether the server lists the view, which it can without reading the view's metadata file."""
        try:
            return (view.namespace, view.name) in self.names(view.namespace)
        except MaterializedViewError:
            return False

    def _loaded(self, view: Identifier, response: Response) -> LoadedView:
        source = f"view {view}, response of catalog {self._catalog.name!r}"
        try:
            answer = response.json()
            location, document = str(answer["metadata-location"]), answer["metadata"]
            config = {str(key): str(value) for key, value in (answer.get("config") or {}).items()}
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise InvalidMetadataError(f"{source}: {type(error).__name__}: {error}") from None
        metadata = parse_view(json.dumps(document).encode(), view=str(view), location=location)
        access = Vended(f"view {view}", config, {}, partial(self.load, view))
        self._vended.note(access, (metadata.location, metadata.metadata_folder))
        return LoadedView(
            view, location, metadata, parse_settings(metadata.properties, view=str(view), location=location)
        )

    def _require_views(self) -> None:
        if not self.supported:
            raise UnsupportedError(
                f"the server of the REST catalog {self._catalog.name!r} has no support for views {NAMES_NO_VIEWS}, "
                "which materialized views need. It may hold base tables"
            )

    def _request(
        self, method: str, view: Identifier, what: str, *, body: dict[str, Any] | None = None, create: bool = False
    ) -> Response:
        self._require_views()
        namespace = encoded_namespace(self._catalog, view.namespace)
        path = "namespaces/{namespace}/views" if create else "namespaces/{namespace}/views/{view}"
        url = self._catalog.url(path, namespace=namespace, view=_encoded(view.name))
        return self._sent(method, url, what, json=body)

    def _sent(self, method: str, url: str, what: str, **request: Any) -> Response:
        try:
            return session_of(self._catalog).request(method, url, **request)
        except NO_ANSWER as error:
            raise CatalogUnavailableError(
                f"catalog {self._catalog.name!r} did not respond ({what}): {brief(error)}"
            ) from None

    def _accepted(self, response: Response, what: str) -> Response:
        """Return the answer of a successful request, or raise the error of a failed one."""
        if response.ok:
            return response
        raise _refusal(self._catalog.name, response, what)


def view_updates(old: ViewMetadata, new: ViewMetadata) -> list[dict[str, Any]]:
    """Return the updates, as in the REST specification, between two states of a view's metadata."""
    updates: list[dict[str, Any]] = []
    if new.current_version_id != old.current_version_id:
        updates += _version_updates(old, new)
    changed = {key: value for key, value in new.properties.items() if old.properties.get(key) != value}
    removed = sorted(old.properties.keys() - new.properties.keys())
    if changed:
        updates.append({"action": "set-properties", "updates": changed})
    if removed:
        updates.append({"action": "remove-properties", "removals": removed})
    return updates


def _version_updates(old: ViewMetadata, new: ViewMetadata) -> list[dict[str, Any]]:
    if any(item.version_id == new.current_version_id for item in old.versions):
        return [{"action": "set-current-view-version", "view-version-id": new.current_version_id}]
    version, updates = new.current_version.document(), []
    if all(item.schema_id != version["schema-id"] for item in old.schemas):
        updates.append({"action": "add-schema", "schema": new.schema_.document()})
        version["schema-id"] = _LAST_ADDED
    return [
        *updates,
        {"action": "add-view-version", "view-version": version},
        {"action": "set-current-view-version", "view-version-id": _LAST_ADDED},
    ]


def _refusal(catalog: str, response: Response, what: str) -> MaterializedViewError:
    code = response.status_code
    if code in (401, 419):
        return ConfigurationError(f"catalog {catalog!r} refused the credentials for {what}; check its properties")
    try:
        error = response.json()["error"]
        reason = f"{error['type']}: {one_line(str(error['message']))}"
    except (ValueError, KeyError, TypeError, RESTError):
        reason = f"status {code}"
    if code == 403:
        return ConfigurationError(f"catalog {catalog!r} forbids {what}: {reason}")
    if code >= 500 or code in UNPROVEN:
        return CatalogUnavailableError(f"catalog {catalog!r} failed at {what}: {reason}")
    return UnsupportedError(f"catalog {catalog!r} cannot do {what}: {reason}")


def _is_refused(response: Response) -> bool:
    """Whether an answer means that a change was not made. It must be confirmed by loading the view."""
    return 400 <= response.status_code < 500 and response.status_code not in UNPROVEN


def _encoded(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
