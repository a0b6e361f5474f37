# SPDX-License-Identifier: Apache-2.0
"""The canonical form of a location: one text for all spellings of one file or folder.

A store can be reached by several spellings: ``s3a://`` and ``s3://``, ``hdfs://nn:8020/`` and ``hdfs:///``,
percent-encoding, doubled slashes, upper case where the store ignores it. There are two forms:

- :func:`canonical` decides what must not be deleted. Two different files may share it. One file never has two, except
  through links, which :mod:`airflow_mv.catalog.places` resolves.
- :func:`exact` decides what is allowed or proven. Two locations with the same exact form are the same file. Only the
  aliases of a scheme and a default port are treated as equal.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from typing import NamedTuple
from urllib.parse import unquote

#: Schemes that mean the same store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs", "": "file"}
#: Schemes whose host may be left out, or be an alias.
_WITHOUT_HOST = frozenset({"file", "hdfs", "viewfs"})
#: Schemes whose host is ``container@account``.
_AZURE = frozenset({"abfss", "wasbs"})
_DEFAULT_PORTS = {"hdfs": ":8020"}
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(?://([^/]*))?(.*)", re.DOTALL)
#: pyiceberg ignores a location's text from one of these characters on, and in the last segment from a semicolon on.
#: The latter is left out of every segment: the last one of a folder is not the last one of its files.
_END_OF_PATH, _PARAMETERS = re.compile(r"[?#]"), re.compile(r"(?<!/\.)(?<!/\.\.);[^/]*")
_MOST_ENCODINGS = 8


class Parts(NamedTuple):
    """The parts of a location.

    Args:
        scheme: In lower case, aliases replaced; ``file`` if the location has none.
        host: A bucket, a container with its account, a name node.
        path: The rest, unchanged.
    """

    scheme: str
    host: str
    path: str

    @property
    def is_local(self) -> bool:
        """Whether it is in a file system of this host."""
        return self.scheme == "file"


def split_location(location: str) -> Parts:
    """Split a location into its parts. This never fails."""
    found = _PARTS.fullmatch(location)
    scheme, host, path = (found[1].lower(), found[2] or "", found[3]) if found else ("", "", location)
    return Parts(_ALIASES.get(scheme, scheme), host, path)


def exact(location: str) -> str:
    """Return the exact form: locations with the same form are the same file or folder. Links are not resolved."""
    scheme, host, path = split_location(location)
    return f"{scheme}://{host.removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}{path.rstrip('/')}"


def canonical(location: str) -> str:
    """Return the canonical form, which all spellings of a file or folder share. Links are not resolved."""
    scheme, host, path = split_location(location)
    shown = _PARAMETERS.sub("", _END_OF_PATH.split(path, maxsplit=1)[0])
    plain = posixpath.normpath("/" + decoded(shown).lstrip("/")).rstrip("/")
    return unicodedata.normalize("NFC", f"//{_host(scheme, host)}{plain}".casefold())


def is_within(form: str, folder: str) -> bool:
    """Whether a canonical or exact form is that of a folder, or of something below it."""
    return form == folder or form.startswith(f"{folder}/")


def irregular_segment(location: str) -> str | None:
    """Return the first empty, ``.`` or ``..`` segment of a path, quoted for a message; ``None`` if there is none.

    Percent-encoded segments count. A slash at the end does not.
    """
    path = decoded(split_location(location).path)
    segments = path.removesuffix("/").split("/")[1:] if path.startswith("/") else path.removesuffix("/").split("/")
    if path in ("", "/"):
        return None
    return next((f"{segment or '//'!r}" for segment in segments if segment in ("", ".", "..")), None)


def decoded(text: str) -> str:
    """Undo percent-encoding, even if it was applied several times."""
    for _ in range(_MOST_ENCODINGS):
        plain = unquote(text)
        if plain == text:
            break
        text = plain
    return text


def _host(scheme: str, host: str) -> str:
    if scheme in _WITHOUT_HOST:
        return ""
    if scheme in _AZURE:
        container, _, account = host.rpartition("@")
        return f"{container}@{account.partition('.')[0].partition(':')[0]}"
    return host.rpartition("@")[2].partition(":")[0]
