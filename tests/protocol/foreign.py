# SPDX-License-Identifier: Apache-2.0
"""Random combinations of a view's folder and foreign files, with all forms of a location, made from a seed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from pyarrow import ArrowInvalid
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import TableAlreadyExistsError

from airflow_mv.core.catalog import Layout, MaterializedViewCatalog
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import stage
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import DEFAULT_GRACE, maintain
from tests.builders import ORDERS, Lake, orders
from tests.duck import DuckStager

VIEW = "sales.daily"
NOW = timedelta(0)
LONG_MS = int(DEFAULT_GRACE.total_seconds() + 3600) * 1000

Files = dict[str, str]


class Store(Protocol):
    """The place of the files of an arrangement."""

    warehouse: str
    access: dict[str, str]

    def files(self) -> Files:
        """The digest of each file by its path."""

    def put(self, path: str, data: bytes) -> None:
        """Write a file."""

    def get(self, path: str) -> bytes:
        """Read a file."""

    def reset(self, kept: Path | None) -> None:
        """Restore a saved state, or delete everything."""

    def keep(self, to: Path) -> None:
        """Save all files."""

    def make_older(self, ledger: str | None) -> None:
        """Make all files look old, and the entries of the deletion log."""

    def spellings(self, path: str) -> dict[str, str]:
        """Locations that mean the same path."""

    def twins(self, path: str) -> dict[str, str]:
        """Locations that look like a path but mean another one."""

    def path(self, location: str) -> str:
        """The path of a location in its plain form."""


@dataclass
class LocalStore:
    """A local folder."""

    root: Path
    access: dict[str, str] = field(default_factory=dict)

    @property
    def warehouse(self) -> str:
        return f"file://{self.root}/wh"

    def files(self) -> Files:
        return {
            str(path.relative_to(self.root)): hashlib.sha1(path.read_bytes()).hexdigest()
            for path in self.root.rglob("*")
            if path.is_file() and not path.is_symlink() and not path.name.startswith("catalog.db")
        }

    def put(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def get(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def reset(self, kept: Path | None) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        if kept is None:
            (self.root / "wh").mkdir(parents=True)
        else:
            shutil.copytree(kept, self.root, symlinks=True)

    def keep(self, to: Path) -> None:
        shutil.copytree(self.root, to, symlinks=True)

    def make_older(self, ledger: str | None) -> None:
        import os

        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                moment = path.stat().st_mtime - LONG_MS / 1000
                os.utime(path, (moment, moment))
        if ledger is not None and (self.root / ledger).exists():
            self.put(ledger, made_older(self.get(ledger)))

    def path(self, location: str) -> str:
        return str(Path(location.removeprefix("file://")).relative_to(self.root))

    def spellings(self, path: str) -> dict[str, str]:
        full, (head, _, tail) = f"{self.root}/{path}", path.rpartition("/")
        (self.root / "way").mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (self.root / "way" / "in").symlink_to(self.root)
        return {
            "plain": f"file://{full}",
            "no scheme": full,
            "one slash": f"file:{full}",
            "double slash": f"file://{self.root}/{head}//{tail}",
            "dot": f"file://{self.root}/{head}/./{tail}",
            "up": f"file://{self.root}/{head}/x/../{tail}",
            "trailing slash": f"file://{full}/",
            "link": f"file://{self.root}/way/in/{path}",
            "double root": f"file:///{full}",
        }

    def twins(self, path: str) -> dict[str, str]:
        head, _, tail = path.rpartition("/")
        return {
            "upper case": f"file://{self.root}/{head}/{tail.upper()}",
            "percent": f"file://{self.root}/{head}/{tail.replace('-', '%2D')}",
            "prefix": f"file://{self.root}/{path}-2",
        }


@dataclass
class BucketStore:
    """A bucket of an S3 server."""

    endpoint: str
    bucket: str = "lake"

    def __post_init__(self) -> None:
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        self.client: Any = boto3.client("s3", endpoint_url=self.endpoint, **keys)
        self.client.create_bucket(Bucket=self.bucket)
        self.warehouse = f"s3://{self.bucket}/wh"
        self.access = {
            "s3.endpoint": self.endpoint, "s3.region": "us-east-1",
            "s3.access-key-id": "test", "s3.secret-access-key": "test",
        }  # fmt: skip
        self._kept: dict[Path, dict[str, bytes]] = {}

    def files(self) -> Files:
        return {key: tag for key, tag in self._objects().items() if not key.endswith("/")}

    def _objects(self) -> Files:
        """All objects, including those that pyarrow writes for folders."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", ())}

    def put(self, path: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=path, Body=data)

    def get(self, path: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=path)["Body"].read())

    def reset(self, kept: Path | None) -> None:
        wanted = self._kept[kept] if kept else {}
        for key in self._objects():
            if key not in wanted:
                self.client.delete_object(Bucket=self.bucket, Key=key)
        there = self.files()
        for key, data in wanted.items():
            if there.get(key, "").strip('"') != hashlib.md5(data).hexdigest():
                self.put(key, data)

    def keep(self, to: Path) -> None:
        self._kept[to] = {key: self.get(key) for key in self.files()}

    def make_older(self, ledger: str | None) -> None:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        # The server runs in this process; its clients cannot set the time of an object.
        for key in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[self.bucket].keys.values():
            key.last_modified -= timedelta(milliseconds=LONG_MS)
        if ledger is not None and ledger in self.files():
            self.put(ledger, made_older(self.get(ledger)))

    def path(self, location: str) -> str:
        return location.removeprefix(f"s3://{self.bucket}/")

    def spellings(self, path: str) -> dict[str, str]:
        return {
            "plain": f"s3://{self.bucket}/{path}",
            "s3a": f"s3a://{self.bucket}/{path}",
            "s3n": f"s3n://{self.bucket}/{path}",
            "trailing slash": f"s3://{self.bucket}/{path}/",
            "s3a, trailing slash": f"s3a://{self.bucket}/{path}/",
        }

    def twins(self, path: str) -> dict[str, str]:
        head, _, tail = path.rpartition("/")
        return {
            "upper case": f"s3://{self.bucket}/{head}/{tail.upper()}",
            "double slash": f"s3://{self.bucket}/{head}//{tail}",
            "dot": f"s3://{self.bucket}/{head}/./{tail}",
            "percent": f"s3://{self.bucket}/{head}/{tail.replace('-', '%2D')}",
            "prefix": f"s3://{self.bucket}/{path}-2",
        }


def made_older(ledger: bytes) -> bytes:
    """A deletion log whose entries are older than the grace."""
    document = json.loads(ledger)
    marks = document["unreachable-since-ms"]
    return json.dumps(
        {**document, "unreachable-since-ms": {key: value - LONG_MS for key, value in marks.items()}}
    ).encode()


# -- a view with all kinds of garbage, made once ---------------------------------------------------


@dataclass
class Template:
    """A view whose files are saved, to be restored for each arrangement.

    Args:
        kept: Where its files are saved.
        folder: The path of its folder.
        storage: The path of its storage table's folder.
        own: The paths of its files.
    """

    kept: Path
    folder: str
    storage: str
    own: frozenset[str]


@contextmanager
def opened(store: Store, database: Path, layout: Layout) -> Iterator[Lake]:
    """The lake of one arrangement."""
    iceberg = SqlCatalog("lake", uri=f"sqlite:///{database}", warehouse=store.warehouse, **store.access)
    iceberg.create_namespace_if_not_exists("sales")
    catalog = MaterializedViewCatalog(iceberg)
    try:
        yield Lake(iceberg, catalog, DuckStager(catalog, iceberg), layout)
    finally:
        iceberg.engine.dispose()


def template(store: Store, scratch: Path, layout: Layout) -> Template:
    """A view that was refreshed twice, with a staged refresh that was never published."""
    store.reset(None)
    database = scratch / f"{layout}.db"
    with opened(store, database, layout) as home:
        home.table()
        home.view()
        view = home.catalog.load(VIEW)
        folder = store.path(view.metadata.location)
        for number in range(2):
            home.append((10 + number, "east", number))
            home.refresh()
        home.append()
        stage(home.catalog, plan_refresh(home.catalog, VIEW), home.stager)
        storage = store.path(home.storage().table.location)
    own = frozenset(path for path in store.files() if path.startswith(f"{folder}/"))
    kept = scratch / f"{layout}-kept"
    store.keep(kept)
    return Template(kept, folder, storage, own)


# -- arrangements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """Another table, or foreign files: where, in which form of the location, and how they were created."""

    kind: str
    where: str
    spelling: str


@dataclass(frozen=True)
class Plot:
    """One arrangement.

    Args:
        seed: The seed of its random choices.
        layout: The layout of the view.
        command: The command that is run.
        placed: The foreign tables and files.
        view_at: The location in the view's metadata if it was changed, and the form of that location.
    """

    seed: int
    layout: Layout
    command: str
    placed: tuple[Placed, ...]
    view_at: tuple[str, str] | None

    @property
    def benign(self) -> bool:
        """Whether no foreign files are in the view's folder."""
        return self.view_at is None and all(item.where == "beside" and item.kind != "loose" for item in self.placed)


KINDS = ("table", "table", "data path", "metadata path", "other database", "other database, data path", "loose", "view")
WHERE = ("beside", "inside", "in storage", "in data", "in metadata", "equal", "storage", "above", "twin")
COMMANDS = ("now", "made_older", "purge")
VIEW_AT = ("namespace", "warehouse", "other", "parent of other", "own")


def plot(seed: int, spellings: tuple[str, ...], twins: tuple[str, ...]) -> Plot:
    """Choose an arrangement."""
    choice = random.Random(seed)
    placed = tuple(
        Placed(kind, where, choice.choice(twins if where == "twin" else spellings))
        for kind, where in ((choice.choice(KINDS), choice.choice(WHERE)) for _ in range(choice.randint(0, 3)))
    )
    moved = (choice.choice(VIEW_AT), choice.choice(spellings)) if choice.random() < 0.15 else None
    return Plot(seed, choice.choice(("pointed", "registered")), choice.choice(COMMANDS), placed, moved)


@dataclass
class Attack:
    """Builds arrangements one after the other in one store, and checks them.

    Args:
        store: The store.
        scratch: For catalogs and templates.
    """

    store: Store
    scratch: Path
    templates: dict[str, Template] = field(default_factory=dict)
    collected: int = 0
    refused: int = 0
    benign: int = 0
    foreign: int = 0

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The location forms and the lookalike locations that the store has."""
        self.store.reset(None)
        return tuple(self.store.spellings("a/b")), tuple(self.store.twins("a/b"))

    def carry_out(self, plot: Plot) -> None:
        """Build an arrangement, run its command, and check the result."""
        if plot.layout not in self.templates:
            self.templates[plot.layout] = template(self.store, self.scratch, plot.layout)
        made = self.templates[plot.layout]
        self.store.reset(made.kept)
        database = self.scratch / "current.db"
        shutil.copy(self.scratch / f"{plot.layout}.db", database)
        with opened(self.store, database, plot.layout) as home:
            for number, item in enumerate(plot.placed):
                with suppress(TableAlreadyExistsError, ArrowInvalid):  # pyarrow refuses an empty path segment
                    _place(home, self.store, made, item, number, self.scratch)
            if plot.view_at is not None:
                _move_view(home, self.store, made, plot.view_at)
            self._judge(home, plot, made)

    def _judge(self, home: Lake, plot: Plot, made: Template) -> None:
        before = self.store.files()
        foreign = {
            path: digest for path, digest in before.items() if path not in made.own and "/deletion-log.json" not in path
        }
        foreign = {path: digest for path, digest in foreign.items() if not _is_moved_view(self.store, path)}
        error = None
        try:
            _run(home, self.store, plot.command, made)
        except MaterializedViewError as refusal:
            error = refusal
        after = self.store.files()
        lost = sorted(path for path, digest in foreign.items() if after.get(path) != digest)
        assert lost == [], f"{plot}: {lost} ({error})"
        self.foreign += len(foreign)
        self.refused += error is not None
        self.collected += error is None
        if plot.benign:
            self.benign += 1
            assert error is None, f"{plot}: {error}"
            _check_benign(home, plot, after, made)
        elif (plot.command != "purge" or error is not None) and plot.view_at is None:
            assert len(home.read()) == 3, plot


def _run(home: Lake, store: Store, command: str, made: Template) -> None:
    if command == "purge":
        purge(home.catalog, VIEW)
    elif command == "now":
        maintain(home.catalog, VIEW, older_than=NOW)
    else:
        maintain(home.catalog, VIEW)
        store.make_older(f"{made.folder}/maintenance/deletion-log.json")
        maintain(home.catalog, VIEW)


def _check_benign(home: Lake, plot: Plot, after: Files, made: Template) -> None:
    """All garbage is deleted: the protection must not work by deleting nothing."""
    below = {path for path in after if path.startswith(f"{made.folder}/")}
    if plot.command == "purge":
        assert below == set(), plot
        return
    assert len(home.read()) == 3, plot
    if plot.command == "now" or plot.layout == "pointed":  # a staged branch is not garbage before its snapshot is old
        assert len(below) < len(made.own), f"{plot}: nothing was collected"
    if plot.command == "now":
        assert not maintain(home.catalog, VIEW, older_than=NOW).collected.unproven, plot


def _spell(store: Store, path: str, spelling: str) -> str:
    return {**store.spellings(path), **store.twins(path)}[spelling]


def _target(store: Store, made: Template, item: Placed, number: int) -> str:
    """The folder of another table, in one of its location forms."""
    inner = f"in-{number}"
    path = {
        "beside": f"wh/sales/other-{number}",
        "inside": f"{made.folder}/{inner}",
        "in storage": f"{made.storage}/{inner}",
        "in data": f"{made.storage}/data",
        "in metadata": f"{made.folder}/metadata/{inner}",
        "equal": made.folder,
        "storage": made.storage,
        "above": "wh/sales",
        "twin": made.folder,
    }[item.where]
    return _spell(store, path, item.spelling)


def _place(home: Lake, store: Store, made: Template, item: Placed, number: int, scratch: Path) -> None:
    place, beside = _target(store, made, item, number), f"{store.warehouse}/sales/t-{number}"
    if item.kind == "loose":
        _loose(store, made, item, number)
        return
    if item.kind == "view":
        _view_there(home, place, number)
        return
    if item.kind.startswith("other database"):
        database = scratch / f"other-{number}.db"
        database.unlink(missing_ok=True)
        other = SqlCatalog("theirs", uri=f"sqlite:///{database}", warehouse=store.warehouse, **store.access)
        other.create_namespace_if_not_exists("sales")
        path = {"write.data.path": place} if item.kind.endswith("path") else {}
        _table(other, f"sales.t{number}", beside if path else place, path)
        other.engine.dispose()
        return
    path = {"data path": {"write.data.path": place}, "metadata path": {"write.metadata.path": place}}.get(item.kind, {})
    _table(home.iceberg, f"sales.t{number}", beside if path else place, path)


def _table(catalog: Any, name: str, location: str, properties: dict[str, str]) -> None:
    table = catalog.create_table(name, schema=ORDERS, location=location, properties=properties)
    table.append(orders([(1, "theirs", 1)]))


def _view_there(home: Lake, place: str, number: int) -> None:
    """Create another user's plain view whose metadata has this location."""
    plain = home.plain_view(f"plain{number}", "SELECT * FROM lake.sales.orders")
    document = {**plain.metadata.document(), "location": place}
    with suppress(MaterializedViewError):
        new = home.catalog.write_metadata(ViewMetadata.read(document, source="theirs"), number=1)
        home.catalog.swap(plain.identifier, plain.metadata_location, new)


def _loose(store: Store, made: Template, item: Placed, number: int) -> None:
    """Write foreign files that no metadata names, with names like the view's."""
    base = {"in storage": made.storage, "in data": f"{made.storage}/data", "in metadata": f"{made.folder}/metadata"}
    folder = base.get(item.where, made.folder)
    uuid = f"00000000-0000-0000-0000-00000000000{number}"
    for name, data in {
        "notes.txt": b"mine", "_SUCCESS": b"", f"00000-0-{uuid}-00001.parquet": b"rows", f".x{number}.crc": b"crc",
        f"0000{number}-{uuid}.metadata.json": b'{"table-uuid": "theirs", "location": "elsewhere", "format-version": 2}',
        f"snap-1-{uuid}.avro": b"Obj", f"staged/{uuid}.json": b"{}", f"clock-{uuid}.tmp": b"mine",
        f"day=1/{uuid}.parquet": b"rows",
    }.items():  # fmt: skip
        store.put(f"{folder}/{name}", data)


def _move_view(home: Lake, store: Store, made: Template, to: tuple[str, str]) -> None:
    """Change the location in the view's metadata to another folder."""
    view = home.catalog.load(VIEW)
    _table(home.iceberg, "sales.victim", f"{store.warehouse}/victims/victim", {})
    path = {
        "namespace": "wh/sales", "warehouse": "wh", "other": "wh/victims/victim", "parent of other": "wh/victims",
        "own": made.folder,
    }[to[0]]  # fmt: skip
    document = {**view.metadata.document(), "location": _spell(store, path, to[1])}
    location = f"{view.metadata.location}/metadata/00099-moved.metadata.json"
    home.catalog.files.write(location, ViewMetadata.read(document, source="moved").to_bytes())
    assert home.catalog.swap(view.identifier, view.metadata_location, location)


def _is_moved_view(store: Store, path: str) -> bool:
    return path.endswith("00099-moved.metadata.json")
