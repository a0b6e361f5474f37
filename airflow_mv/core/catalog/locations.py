# SPDX-License-Identifier: Apache-2.0
"""Locations: whether two spellings mean one file or folder, and which folders a view's files may be in.

A store can be reached by several spellings: ``s3a://`` and ``s3://``, ``hdfs://nn:8020/`` and ``hdfs:///``,
percent-encoding, doubled slashes, upper case where the store ignores it. :func:`exact` decides what is allowed or
proven. Two locations with the same exact form are the same file. Only the aliases of a scheme and a default port are
treated as equal. :func:`lies_in` resolves links as well. What must not be deleted is decided by the canonical form of
:mod:`airflow_mv.extras.maintenance.matcher`.

**Untrusted input.** Metadata files are read with this process's rights. A view names its storage table by a path. A
user who can write a view could name any file of any store that this process can reach, and have it read, or have
new files written beside it. The path must therefore be below a folder that the catalog's owner has chosen: the
warehouse, the folder of the view's own pointer, or one in the catalog property ``airflow-mv.allowed-locations``.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote as percent
from urllib.parse import unquote, urlsplit

from airflow_mv.errors import (
    InvalidMetadataError,
    RefusedLocationError,
)

if TYPE_CHECKING:
    from airflow_mv.core.spec.table_metadata import (
        TableMetadata,  # it imports pydantic, which a look at the cache does without
    )

log = logging.getLogger(__name__)

#: Schemes that mean the same store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs", "": "file"}
_DEFAULT_PORTS = {"hdfs": ":8020"}
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(?://([^/]*))?(.*)", re.DOTALL)
_MAX_ENCODINGS = 8


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
    for _ in range(_MAX_ENCODINGS):
        plain = unquote(text)
        if plain == text:
            break
        text = plain
    return text


# -------------------------------------------------------------------- with this host's file systems


def lies_in(location: str, folders: Iterable[str]) -> bool:
    """Whether a location is certainly in one of the folders, or is one of them. Links are followed."""
    place = exact_form(location)
    return any(is_within(place, exact_form(folder)) for folder in folders)


def exact_form(location: str) -> str:
    """Return the form that is equal only for the same location, with links followed."""
    parts = split_location(location)
    return exact(os.path.realpath(parts.path)) if parts.is_local else exact(location)


def check_regular(location: str, *, what: str) -> None:
    """Refuse a location with an empty, ``.`` or ``..`` segment, which stores resolve in different ways.

    Raises:
        InvalidMetadataError: It has such a segment, perhaps percent-encoded.
    """
    segment = irregular_segment(location)
    if segment is not None:
        raise InvalidMetadataError(
            f"{what}: {location!r} has the path segment {segment}, which means different folders on different "
            "stores. Write the location without it"
        )


#: Schemes a metadata location may have: object stores and file systems, never http(s).
SCHEMES = frozenset(
    {"", "file", "s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs", "hdfs", "viewfs", "oss"}
)


#: The maximum length of a location: an object store's key has at most 1,024 bytes.
_MAX_LENGTH = 1200


#: Control characters, which are in no location.
_CONTROL = re.compile(r"[\x00-\x1f]")


def check_location(location: str, *, what: str) -> None:
    """Refuse a text that is not a location in a store.

    Raises:
        InvalidMetadataError: It is empty, too long or relative, has ``..`` or control characters, is an http(s) URL,
            or names a file of another host.
    """
    if len(location) > _MAX_LENGTH:
        raise InvalidMetadataError(
            f"{what}: {location[:80]!r}… has {len(location)} characters: no store has such a name"
        )
    if not location or location != location.strip() or _CONTROL.search(location):
        raise InvalidMetadataError(f"{what}: {location!r} is not a location")
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise InvalidMetadataError(f"{what}: {location!r} is not a location: {error}") from None
    if parts.scheme not in SCHEMES:
        raise InvalidMetadataError(f"{what}: {location!r}: the scheme {parts.scheme!r} is not supported")
    if ".." in unquote(parts.path).split("/"):
        raise InvalidMetadataError(f"{what}: {location!r} leads out of its folder")
    if parts.scheme == "" and not location.startswith("/"):
        raise InvalidMetadataError(f"{what}: {location!r} is not an absolute location")
    if parts.scheme == "file" and parts.netloc:
        raise InvalidMetadataError(f"{what}: {location!r} names a host: write file:///path")


def is_location(location: str) -> bool:
    """Whether :func:`check_location` accepts a text."""
    try:
        check_location(location, what="file")
    except InvalidMetadataError:
        return False
    return True


def path_segment(name: str) -> str:
    """Return a name as one safe path segment. Plain names are not changed."""
    segment = percent(name, safe="-_=+ ").replace(" ", "_").replace("%", "~")
    return segment if segment.strip(".") else segment.replace(".", "~2E")


def join(base: str, *segments: str) -> str:
    """Join a location and segments with single slashes."""
    return "/".join([base.rstrip("/"), *segments])


def is_local(location: str) -> bool:
    """Whether a location is in this host's own file system."""
    return urlsplit(location).scheme in ("", "file")


def checked_on_disk(location: str, whole: str, *, what: str) -> bool:
    """Whether a location is on a disk of this host, after :func:`check_location`.

    Args:
        whole: The location, with the scheme that its catalog gives to a path without one.
    """
    check_location(location, what=what)
    return on_disk(whole)


def on_disk(location: str) -> bool:
    """Whether a location is on a disk of this host. All other stores have deadlines."""
    return is_local(location) and remote_mount(urlsplit(location).path) is None


#: Catalog property: more folders, separated by commas.
ALLOWED = "airflow-mv.allowed-locations"


#: Table properties that set where Iceberg writes files, in all versions of the format.
PLACES = {"write.data.path", "write.metadata.path", "write.folder-storage.path", "write.object-storage.path"}


def allowed_folders(properties: Mapping[str, str], metadata_location: str) -> tuple[str, ...]:
    """Return the folders that may contain a view's files.

    Args:
        metadata_location: The view's pointer, from the catalog.
    """
    listed = properties.get(ALLOWED, "").split(",")
    own = metadata_location.rpartition("/")[0].removesuffix("/metadata")
    folders = (properties.get("warehouse", ""), own, *(folder.strip() for folder in listed))
    return tuple(dict.fromkeys(folder for folder in folders if _is_folder(folder)))


def in_folder(metadata: str, pointer: str) -> tuple[str, ...]:
    """Return the folder of a table if its catalog chose it and the table was not moved since.

    Args:
        metadata: The folder of the table's metadata files when it was created, as recorded in the view.
    """
    folders = [folder.removesuffix("/metadata") for folder in (metadata, pointer.rpartition("/")[0])]
    same = all(map(_is_folder, folders)) and exact_form(folders[0]) == exact_form(folders[1])
    return (folders[1],) if same else ()


def check_confined(location: str, folders: Iterable[str], *, what: str) -> None:
    """Refuse a location that is in none of the folders. Links are followed.

    Args:
        location: A file or folder.
        folders: From :func:`allowed_folders`.
        what: Names the view and the role of the location, for the message.

    Raises:
        RefusedLocationError: It is outside of all of them.
        InvalidMetadataError: It is not a location.
    """
    check_location(location, what=what)
    allowed = tuple(folders)
    if not lies_in(location, allowed):
        raise RefusedLocationError(
            f"{what}: {location!r} lies outside of this catalog's folders ({', '.join(allowed) or 'none'}). If it "
            f"may be read, list its folder in the catalog property {ALLOWED!r}"
        )


def check_places(table: TableMetadata, folders: Iterable[str], *, what: str) -> None:
    """Refuse a storage table whose files would be written outside of the folders.

    Args:
        table: The table. Its properties may name other folders than its location for new files.
        folders: From :func:`allowed_folders`.
        what: Names the view and the table, for the message.

    Raises:
        RefusedLocationError: One of its places is outside of all of them.
        InvalidMetadataError: One of them is not a location.
    """
    places = {"field 'location'": table.location}
    places |= {f"property {key!r}": table.properties[key] for key in PLACES & table.properties.keys()}
    for name, place in places.items():
        check_confined(place, folders, what=f"{what}, {name}")
        check_regular(place, what=f"{what}, {name}")


def check_own_file(location: str, own: str, folders: Iterable[str], *, what: str) -> None:
    """Refuse a metadata file that is in the view's folder, but belongs elsewhere by its content.

    It is a copy of another view's or table's file, and using it would read or write the other one.

    Args:
        own: The folder that is known to be the view's.
        folders: The folders for metadata files in its content.
        what: Names the view and the role of the file, for the message.

    Raises:
        InvalidMetadataError: It is such a copy.
    """
    wanted = tuple(folders)
    if lies_in(location, (own,)) and not lies_in(location, wanted):
        raise InvalidMetadataError(
            f"{what}: {location} is the metadata file of another view or table: its content belongs in {wanted[0]}"
        )


def metadata_folders(table: TableMetadata) -> tuple[str, ...]:
    """Return the folders that a table's metadata files are written to."""
    own = (f"{table.location.rstrip('/')}/metadata", table.properties.get("write.metadata.path", ""))
    return tuple(folder for folder in own if folder)


def _is_folder(location: str) -> bool:
    """Whether this is a folder of a store. A REST catalog's warehouse may be just a name."""
    try:
        check_location(location, what="folder")
    except InvalidMetadataError:
        return False
    parts = urlsplit(location)
    # The root of a machine's disk is not allowed: every file is below it.
    return bool(parts.path.strip("/")) or (bool(parts.netloc) and parts.scheme != "file")


# ------------------------------------------------------------------------------------ network file systems

_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "ncpfs"}
)
#: Seconds after which the mounts are read again.
_MOUNT_SECONDS = 60.0
#: File systems in user space that are on this machine's own disks.
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs"})


def remote_kind(path: str) -> str | None:
    """Return the type of a path's network file system; ``None`` if it is local or unknown."""
    kind = mounted_as(os.path.realpath(path), _mounts())
    return kind if _is_remote(kind) else None


def remote_mount(path: str) -> str | None:
    """Return the mount of the network file system that an absolute path is in; ``None`` for a disk. It opens nothing.

    Mounts are looked up again after some seconds.
    """
    plain = os.path.normpath(path)
    mounts = _remote_mounts(int(time.monotonic() // _MOUNT_SECONDS))
    return next((mount for mount in mounts if plain == mount or plain.startswith(f"{mount}/")), None)


@lru_cache(maxsize=1)
def _remote_mounts(_period: int) -> tuple[str, ...]:
    found = [place for place, kind in dict(_mounted(_mounts())).items() if place and _is_remote(kind)]
    return tuple(sorted(found, key=len, reverse=True))


def _mounts() -> str:
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # not Linux


def _is_remote(kind: str) -> bool:
    return kind in _REMOTE or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def mounted_as(path: str, mounts: str) -> str:
    """Return the file system type of an absolute path.

    Args:
        path: The path, without symbolic links.
        mounts: The text of ``/proc/self/mountinfo``. Of two mounts at one place the later one counts.
    """
    best, kind = "", ""
    for place, mounted in _mounted(mounts):
        if (path == place or path.startswith(f"{place}/")) and len(place) >= len(best):
            best, kind = place, mounted
    return kind


def _mounted(mounts: str) -> Iterator[tuple[str, str]]:
    """Yield place and type of each mount."""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) >= 5 and rest:
            yield words[4].encode().decode("unicode_escape").rstrip("/"), rest.split()[0]
