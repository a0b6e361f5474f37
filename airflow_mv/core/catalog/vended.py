# SPDX-License-Identifier: Apache-2.0
"""Credentials that a REST server vends with a table or a view, for the folders of that table or view only.

They end after minutes or hours, and loading the table again gives new ones. Where a server vends credentials and has
vended none for a location, the store's default credentials (the environment, a profile, an instance's role) are not
used silently: they may belong to another account, or reach another store of the same name.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyiceberg.exceptions import NoSuchTableError

from airflow_mv.core.catalog.answers import answered
from airflow_mv.errors import MaterializedViewError, NoCredentialsError
from airflow_mv.foundation.redaction import hide_current, is_secret, secret_forms

log = logging.getLogger(__name__)

#: Catalog property: use the store's default credentials where the server has vended none.
DEFAULT_CREDENTIALS = "airflow-mv.default-credentials"
#: Credentials are loaded again this long before they end.
EARLY_MS = 60_000
#: How long to wait before this happens again: a server may vend credentials that end sooner.
ASK_SECONDS = 10.0
_NAMES_A_CLASS = re.compile(r"(?i)(^|[.-])impl$|(^|\.)auth$|provider$|\.factory$|io-impl")
_STORES = ("s3.", "client.", "gcs.", "adls.", "oss.")
_NO_CREDENTIAL = re.compile(r"refresh-credentials|expires-at")
_ENDS = re.compile(r"expires-at(-ms)?(\.|$)|^expiration-time$")
#: Properties by which a user gives access to a store, by the beginning of their names.
_GIVEN = {
    "s3": ("s3.access-key-id", "s3.profile-name", "s3.role-arn", "s3.anonymous", "s3.signer", "client."),
    "gs": ("gcs.oauth2.token",),
    "abfs": ("adls.",),
    "oss": ("s3.", "client."),
}
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}


def without_classes(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that name no class to load."""
    return {key: value for key, value in properties.items() if not _NAMES_A_CLASS.search(key)}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Vended:
    """The properties and credentials that a server has sent for the files of one table or view.

    Args:
        prefixes: Properties for locations with a prefix; they take precedence.
        load: Loads the table or view again.
    """

    what: str
    config: Mapping[str, str] = field(repr=False)
    prefixes: Mapping[str, Mapping[str, str]] = field(repr=False)
    load: Callable[[], object] = field(repr=False)

    def properties(self, location: str) -> dict[str, str]:
        """Return the properties for a location: those of its longest prefix take precedence."""
        prefix = max((item for item in self.prefixes if location.startswith(item)), key=len, default=None)
        return without_classes({**self.config, **(self.prefixes[prefix] if prefix is not None else {})})

    def has_credentials(self, location: str) -> bool:
        """Whether there are credentials for a location among them."""
        return any(map(_is_credential, self.properties(location)))

    @property
    def is_access(self) -> bool:
        """Whether the server decides on the access to the files: by credentials, or by signing each request."""
        every = [self.config, *self.prefixes.values()]
        signs = any(item.get("s3.remote-signing-enabled") == "true" or "s3.signer" in item for item in every)
        return signs or any(_is_credential(key) for item in every for key in item)

    def has_ended(self, location: str) -> bool:
        """Whether the credentials for a location end within a minute, as far as the server has said when."""
        ends = [value for key, value in self.properties(location).items() if _ENDS.search(key) and value.isdigit()]
        return any(int(value) < time.time_ns() // 1_000_000 + EARLY_MS for value in ends)


class VendedCredentials:
    """The credentials that the server of one catalog has vended to this process."""

    def __init__(self, catalog: str, properties: Mapping[str, str]) -> None:
        self._catalog, self._properties = catalog, properties
        self._by_folder: dict[str, Vended] = {}
        self._warned: set[str] = set()
        self._renewing = threading.Lock()
        self._renewed: dict[str, float] = {}
        #: Schemes of the stores that hold the loaded tables and views.
        self.schemes: set[str] = set()

    def note(self, vended: Vended, folders: Iterable[str]) -> None:
        """Keep what a server has sent with a table or view.

        Args:
            vended: What it has sent.
        """
        for folder in filter(None, folders):
            self.schemes.add(urlsplit(folder).scheme)
            before = self._by_folder.get(_plain(folder))
            if not vended.is_access:
                self._by_folder.pop(_plain(folder), None)
            elif before is None or (before.config, before.prefixes) != (vended.config, vended.prefixes):
                self._by_folder[_plain(folder)] = vended
        if vended.is_access:
            every = {
                f"{number}.{key}": item[key] for number, item in enumerate(vended.prefixes.values()) for key in item
            }
            hide_current(f"{self._catalog}: {vended.what}", secret_forms({**vended.config, **every}))

    def knows(self, location: str) -> bool:
        """Whether the server has vended credentials for a location."""
        found = self._find(location)
        return found is not None and found.has_credentials(location)

    def at(self, location: str) -> Vended | None:
        """Return the access to a location that the server has vended, loaded again if it has ended; ``None`` for none.

        Raises:
            NoCredentialsError: The server vends credentials, has vended none for this location, and the catalog's
                properties give none either.
        """
        if not self._by_folder:
            return None
        found = self._find(location)
        if found is not None and found.has_credentials(location):
            if found.has_ended(location) and self._may_ask(found.what) and self.renewed(location, found):
                found = self._find(location) or found
            return found
        if not self._is_given(location):
            self._require_default(location, found)
        return None

    def renewed(self, location: str, old: Vended) -> bool:
        """Load the table or view of a location again, and return whether the server has vended other credentials.

        Args:
            old: The credentials that have ended or were refused.
        """
        with self._renewing:
            if self._find(location) is not old:
                return True  # another thread has
            try:
                with answered(self._catalog, f"loading {old.what} again, for new credentials"):
                    old.load()
            except (MaterializedViewError, NoSuchTableError) as error:
                log.warning("Could not get new credentials for %s from the catalog's server: %s", old.what, error)
            return self._find(location) is not old

    def _may_ask(self, what: str) -> bool:
        """Whether it is some time ago that a table or view was loaded again because its credentials end."""
        now = time.monotonic()
        if now < self._renewed.get(what, 0) + ASK_SECONDS:
            return False
        self._renewed[what] = now
        return True

    def _find(self, location: str) -> Vended | None:
        path = _plain(location)
        while path:
            if path in self._by_folder:
                return self._by_folder[path]
            path = path.rpartition("/")[0]
        return None

    def _is_given(self, location: str) -> bool:
        """Whether the catalog's properties themselves give access, or none is needed."""
        given = _GIVEN.get(_scheme(location))
        return given is None or any(key.startswith(given) for key in self._properties)

    def _require_default(self, location: str, found: Vended | None) -> None:
        store = "/".join(location.split("/", 3)[:3])
        if self._properties.get(DEFAULT_CREDENTIALS, "").lower() != "true":
            has = f"has only offered to sign requests for {found.what}" if found else "has vended none for it"
            raise NoCredentialsError(
                f"no credentials are known for {location}: the server of catalog {self._catalog!r} vends credentials, "
                f"and {has}. Give the catalog keys of its own for {store}, or set its property {DEFAULT_CREDENTIALS!r} "
                "to true if this process's default credentials (environment, profile, role) may be used"
            )
        if store not in self._warned:
            self._warned.add(store)
            log.warning(
                "Catalog %r vended no credentials for %s; using the default credentials of this process (environment, "
                "profile, role) there, because the property %r allows it",
                self._catalog, store, DEFAULT_CREDENTIALS,
            )  # fmt: skip


def _is_credential(key: str) -> bool:
    return key.startswith(_STORES) and is_secret(key) and not _NO_CREDENTIAL.search(key)


def _scheme(location: str) -> str:
    scheme = urlsplit(location).scheme
    return _SAME.get(scheme, scheme)


def _plain(location: str) -> str:
    """Return a location in one form, without its scheme's variant and a slash at the end."""
    scheme, found, rest = location.rstrip("/").partition("://")
    return f"{_SAME.get(scheme, scheme)}://{rest}" if found else scheme
