# SPDX-License-Identifier: Apache-2.0
"""Shared by all commands: options, the catalog, the session, output and exit codes."""

from __future__ import annotations

import contextlib
import functools
import getpass
import importlib
import io
import json
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from datetime import time as clock_time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Console

from airflow_mv.checks import read_checks
from airflow_mv.core.spec.choices import LayoutName
from airflow_mv.core.spec.identifiers import Identifier, split
from airflow_mv.errors import (
    CheckFailedError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
    MaterializedViewError,
    StoppedError,
)
from airflow_mv.foundation.documents import utf8_text
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.publish import Requester
    from airflow_mv.core.refresh import SnapshotSet
    from airflow_mv.core.spec.interval import Span
    from airflow_mv.extras.pins import RunPins
    from airflow_mv.extras.spark.session import InProcessStager


out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
#: Exit code: something differs, or is wrong, and was not repaired.
DIFFERENT = 4

Command = Callable[..., None]

#: The most characters of an unexpected error, and of its trace.
_MAX_LENGTH = 500
_MAX_TRACE_LENGTH = 20_000
#: Rows that are printed as JSON are kept in memory up to this size, and above it in a file.
_SPOOL_BYTES = 16 * 2**20

log = logging.getLogger(__name__)

#: Keys of snapshot ids in stored metadata, which are written as text: JavaScript and jq lose the last digits of numbers
#: above 2^53. Documents of our own have text already, see :func:`airflow_mv.core.spec.identifiers.id_text`.
_SNAPSHOT_IDS = frozenset(
    {"snapshot", "snapshot-id", "snapshot_reference", "snapshot-reference", "parent-snapshot-id", "current-snapshot-id"}
)

#: The layouts of a storage table, as options take them.
LAYOUTS = get_args(LayoutName)
#: Unicode categories: control characters and halves of surrogate pairs.
_CONTROL = ("Cc", "Cs")


def guarded(command: Command) -> Command:
    """Add ``--verbose``, and print this package's errors as one line with an exit code."""

    @click.option("-v", "--verbose", is_flag=True, help="Log what is done, on stderr.")
    @functools.wraps(command)
    def run(*args: Any, verbose: bool, **kwargs: Any) -> None:
        _set_up_logs(verbose=verbose)
        _end_on_signals()
        as_json = bool(kwargs.get("as_json"))
        try:
            command(*args, **kwargs)
        except MaterializedViewError as error:
            text = str(error) if as_json else _last_line(error)
            _print_error(error, text, as_json=as_json, retryable=error.retryable)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            raise  # the reader closed the pipe: click exits quietly
        except OSError as error:
            _print_error(error, f"{type(error).__name__}: {error}", as_json=as_json, retryable=False)
            sys.exit(1)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt as error:
            number = error.number if isinstance(error, _Signalled) else signal.SIGINT
            stopped = StoppedError(f"stopped by {number.name}. The command may be run again")
            _print_error(stopped, str(stopped), as_json=as_json, retryable=stopped.retryable)
            sys.exit(128 + number)
        except Exception as error:  # noqa: BLE001 (an error of a library, which this package should have translated)
            log.info("%s", traceback.format_exc())
            _print_error(error, _unexpected(error), as_json=as_json, retryable=False)
            sys.exit(1)

    return run


def _last_line(error: MaterializedViewError) -> str:
    """Return the line with an error. Failed checks and their rows are printed before it, on lines of their own."""
    if not isinstance(error, CheckFailedError):
        return str(error)
    text, *checks = str(error).splitlines()
    err.print(visible("\n".join(checks)), markup=False)
    return text


def _unexpected(error: Exception) -> str:
    """Describe an error of a library as one line, without secrets and without a stack trace of Java."""
    text = str(error).partition("\n\tat ")[0]
    return f"unexpected {type(error).__name__}: {shortened(text, _MAX_LENGTH)}. `--verbose` shows where it was raised"


def _end_on_signals() -> None:
    """Exit like an interrupted program, after cleanup: otherwise a signal leaves files with secrets."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _end)


class _Signalled(KeyboardInterrupt):
    """A signal that ends the program. py4j closes the connection of a call that a :class:`KeyboardInterrupt` ends."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("KeyboardInterrupt while"))  # py4j's
    raise _Signalled(signal.Signals(number))


def _print_error(error: Exception, message: str, *, as_json: bool, retryable: bool) -> None:
    """Print an error on stderr: as one line, and a place in SQL below it. JSON has one line."""
    lines = message.splitlines()
    quoted = lines[-2:] if not as_json and lines[1:] and lines[-1].strip() == "^" else []
    kept = [line for line in lines[: len(lines) - len(quoted)] if line.strip(" ^")]
    text = visible(" ".join(" ".join(kept).split()))
    if as_json:
        document = {"error": {"code": type(error).__name__, "message": text, "retryable": retryable}}
        text = json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")
    else:
        text = "\n".join([f"error: {text}", *map(visible, quoted)])
    err.print(text, markup=False)


class JsonErrors(click.Group):
    """Commands whose errors of usage are also JSON where the call has ``--json``."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command."""
        given = list(sys.argv[1:] if args is None else args)
        _set_up_streams(as_json="--json" in given)
        if "--json" not in given:
            return super().main(given, *rest, **options)
        try:
            result = super().main(given, *rest, **{**options, "standalone_mode": False})
        except click.UsageError as error:
            usage = click.UsageError(error.format_message())
            _print_error(usage, usage.message, as_json=True, retryable=False)
            sys.exit(error.exit_code)
        except click.Abort as error:
            _print_error(error, "stopped", as_json=True, retryable=False)
            sys.exit(1)
        sys.exit(result if isinstance(result, int) else 0)


def _set_up_streams(*, as_json: bool) -> None:
    """Write JSON in UTF-8 in every locale, and escape what the encoding of other output does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")


def with_json(command: Command) -> Command:
    """Add ``--json``."""
    what = "One JSON document on stdout. Logs go to stderr; so does an error, as one line of JSON."
    return click.option("--json", "as_json", is_flag=True, help=what)(command)


def common(command: Command) -> Command:
    """Add the options of all commands on views: ``--json``, ``--conn-id``, ``--verbose``."""
    connection = click.option("--conn-id", help="Take the catalog from this Airflow connection of type iceberg.")
    return with_json(connection(guarded(command)))


def sparked(command: Command) -> Command:
    """Add ``--master`` and ``--remote``."""
    command = click.option("--master", help="Spark master; by default local[*].")(command)
    return click.option("--remote", help="Spark Connect URL, sc://host:port.")(command)


def how(command: Command) -> Command:
    """Add the refresh options, and pass ``options`` to the command."""

    @with_checks
    @with_interval
    @functools.wraps(command)
    def with_options(
        *, as_of: str | None, full: bool, on_fallback: Any, max_full_bytes: int | None, interval: Any, checks: Any,
        max_snapshots: int | None, max_bytes: int | None, **rest: Any,
    ) -> Any:  # fmt: skip
        from airflow_mv.core.refresh import RefreshOptions

        bound = None
        if max_snapshots is not None or max_bytes is not None:
            from airflow_mv.extras.catch_up import CatchUp

            bound = CatchUp(max_snapshots, max_bytes)
        options = RefreshOptions(parse_time(as_of), full, on_fallback, max_full_bytes, interval, checks, bound)
        return command(options=options, **rest)

    policies = click.Choice(["full", "fail", "skip"])
    fallback = (
        "What to do if an incremental view must be recomputed in full. full: recompute it; fail: end with an error; "
        "skip: leave the view stale. By default the view's property, else full."
    )
    budget = "Refuse a full refresh of an incremental view if it would read more bytes of base table files than this."
    bound = "Read at most this many new commits of the base tables; the next refresh reads the rest."
    size = "Read new commits of the base tables up to this many bytes of added and removed files; at least one commit."
    for option in (
        click.option("--max-bytes", type=click.IntRange(min=1), help=size),
        click.option("--max-snapshots", type=click.IntRange(min=1), help=bound),
        click.option("--max-full-bytes", type=click.IntRange(min=0), help=budget),
        click.option("--on-fallback", type=policies, help=fallback),
        click.option("--full", is_flag=True, help="Recompute even if nothing has changed."),
        click.option("--as-of", help="Read the base tables as of this time, ISO 8601 or ms."),
    ):
        with_options = option(with_options)
    return with_options


def with_checks(command: Command) -> Command:
    """Add ``--check``, and pass ``checks`` to the command."""

    @functools.wraps(command)
    def with_read(*, checks: tuple[str, ...], **rest: Any) -> Any:
        return command(checks=read_checks(list(checks), source="--check") if checks else (), **rest)

    what = "A check that the new rows must pass before they are published: a condition, a query over {rows}, or JSON."
    return click.option("--check", "checks", multiple=True, metavar="TEXT", help=what)(with_read)


def with_interval(command: Command) -> Command:
    """Add ``--interval START END`` and ``--interval-column``, and pass ``interval`` to the command."""

    @functools.wraps(command)
    def with_span(*, interval: tuple[str, str] | None, interval_column: str | None, **rest: Any) -> Any:
        if interval is None and interval_column is not None:
            raise click.UsageError("--interval-column needs --interval START END")
        return command(interval=_span(*interval, interval_column) if interval else None, **rest)

    column = "A date, timestamp or timestamptz of the view; by default its property airflow-mv.interval-column."
    with_span = click.option("--interval-column", metavar="COLUMN", help=column)(with_span)
    which = "Only the rows of this interval, ISO 8601, the end excluded."
    return click.option("--interval", nargs=2, metavar="START END", help=which)(with_span)


def _span(start: str, end: str, column: str | None) -> Span | None:
    from airflow_mv.core.spec.interval import Span

    times = parse_time(start), parse_time(end)
    return Span(times[0], times[1], column) if times[0] and times[1] else None


def with_time_travel(command: Command) -> Command:
    """Add the options that choose earlier rows, and pass ``wanted`` to the command."""

    @functools.wraps(command)
    def with_wanted(
        *, as_of: str | None, bases_as_of: str | None, refresh_id: str | None, sequence_number: int | None,
        snapshot_id: int | None, **rest: Any,
    ) -> Any:  # fmt: skip
        from airflow_mv.extras.history.time_travel import TimeTravel

        given = (as_of, refresh_id, sequence_number, snapshot_id, bases_as_of)
        if sum(value is not None for value in given) > 1:
            raise click.UsageError("give one of --as-of, --bases-as-of, --refresh-id, --sequence-number, --snapshot-id")
        wanted = TimeTravel(parse_time(as_of), refresh_id, sequence_number, snapshot_id, parse_time(bases_as_of))
        return command(wanted=wanted.given, **rest)

    bases = "The rows that were computed from the base tables as they were at this time, or earlier."
    for option in (
        click.option("--snapshot-id", type=int, help="The rows in this snapshot of the storage table."),
        click.option("--sequence-number", type=int, help="The rows of the refresh with this sequence number."),
        click.option("--refresh-id", help="The rows of this refresh."),
        click.option("--bases-as-of", help=bases),
        click.option("--as-of", help="The view's rows as of this time, ISO 8601 or ms."),
    ):
        with_wanted = option(with_wanted)
    return with_wanted


def open_catalog(views: Sequence[str], conn_id: str | None) -> tuple[MaterializedViewCatalog, list[Identifier]]:
    """Open the catalog that all the views are in.

    Raises:
        ConfigurationError: The views are in several catalogs.
    """
    identifiers = named_views(views)
    return open_named(identifiers[0].catalog, conn_id), identifiers


def named_views(views: Sequence[str]) -> list[Identifier]:
    """Return the names of one or more views of one catalog.

    Raises:
        ConfigurationError: The views are in several catalogs.
    """
    identifiers = [Identifier.parse(view) for view in views]
    names = sorted({identifier.catalog for identifier in identifiers})
    if len(names) != 1:
        raise ConfigurationError(f"the views are in several catalogs ({', '.join(names)}): one call for each catalog")
    return identifiers


def chosen_views(
    views: Sequence[str], namespace: str | None, conn_id: str | None, *, whole: str | None = None
) -> tuple[MaterializedViewCatalog, list[Identifier]]:
    """Open the catalog of the named views, or of all materialized views of a namespace or of a whole catalog.

    Raises:
        ConfigurationError: The views are in several catalogs.
        NotFoundError: There is no such namespace.
    """
    from airflow_mv.common.each import materialized_views

    if whole is not None:
        catalog = open_named(whole, conn_id)
        return catalog, materialized_views(catalog, None)
    if bool(views) == (namespace is not None):
        raise click.UsageError("name views, or --namespace CATALOG.NAMESPACE")
    if namespace is None:
        return open_catalog(views, conn_id)
    name, space = split_namespace(namespace, conn_id)
    catalog = open_named(name, conn_id)
    return catalog, materialized_views(catalog, space)


@contextlib.contextmanager
def airflow_connections() -> Iterator[None]:
    """Find Airflow's connections, also those in its database.

    Outside of its own processes Airflow logs to stdout, which is reserved for the JSON document. No command uses
    Airflow's asynchronous access to the database, for which another driver would have to be installed (``asyncpg``).
    """
    # Airflow 3.1 takes no empty URL. The driver of this one is installed with Airflow, and nothing is opened.
    unused = _default_variable("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC", "sqlite+aiosqlite://")
    with contextlib.redirect_stdout(sys.stderr), unused:
        _load_airflow()
        from airflow_mv.hooks.airflow_compat import connections_of_the_database

        with connections_of_the_database():
            yield


def _load_airflow() -> None:
    """Import Airflow, which then reads its settings. Warnings still go to stderr; Airflow would print them to stdout.

    Raises:
        ConfigurationError: It is not installed, or the URL of its database is wrong, or needs another driver.
    """
    show_warning = warnings.showwarning
    try:
        importlib.import_module("airflow")
    except Exception as error:  # noqa: BLE001 (Airflow's, SQLAlchemy's or the driver's)
        raise ConfigurationError(
            f"Airflow cannot be loaded, but --conn-id needs it ({type(error).__name__}: "
            f"{shortened(' '.join(str(error).split()), _MAX_LENGTH)}). Check that AIRFLOW__DATABASE__SQL_ALCHEMY_CONN "
            "(sql_alchemy_conn in [database] of airflow.cfg) is the URL of your Airflow's database, and that Airflow "
            "and the database's driver are installed here"
        ) from None
    warnings.showwarning = show_warning
    # Airflow masks each value of a connection's extra, and warns of those that are short, such as `sql`.
    for masker in ("airflow", "airflow.sdk"):
        logging.getLogger(f"{masker}._shared.secrets_masker.secrets_masker").setLevel(logging.ERROR)
    logging.getLogger("py4j").setLevel(logging.WARNING)


@contextlib.contextmanager
def _default_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable that is not set, for a while."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def open_named(name: str, conn_id: str | None) -> MaterializedViewCatalog:
    """Open a catalog by its name, from pyiceberg's configuration or from an Airflow connection."""
    if conn_id is None:
        from airflow_mv.core.catalog import MaterializedViewCatalog

        return MaterializedViewCatalog(name)
    with airflow_connections():
        from airflow_mv.hooks import MaterializedViewHook

        return MaterializedViewHook(conn_id).catalog_named(name)


def split_namespace(namespace: str, conn_id: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the catalog's name and the namespace; the name may be left out where only one catalog is configured.

    Raises:
        InvalidIdentifierError: It is not clear which catalog is meant.
    """
    parts = split(namespace)
    names = _configured()
    if len(parts) == 1 and conn_id is None and len(names) == 1:
        parts = (names[0], *parts)
    if len(parts) == 1:
        raise InvalidIdentifierError(f"{namespace!r} is not a namespace with its catalog: write catalog.namespace")
    return parts[0], parts[1:]


def catalog_names(name: str, conn_id: str | None) -> list[str]:
    """Return the given name, or the names of all configured catalogs.

    Raises:
        ConfigurationError: No catalog is configured, or a connection is given without a name.
    """
    if name:
        return [name]
    if conn_id is not None:
        raise ConfigurationError("with --conn-id, give the name of its catalog: --all CATALOG")
    names = _configured()
    if not names:
        raise ConfigurationError("no catalog is configured; set PYICEBERG_CATALOG__<NAME>__TYPE and its properties")
    return names


def catalog_of_query(sql: str, conn_id: str | None) -> str:
    """Return the catalog in which a query's short names are looked up: the only configured one, or one that it names.

    Raises:
        ConfigurationError: It is not clear which catalog is meant.
        InvalidQueryError: The query cannot be read.
    """
    from airflow_mv.core.sql.query import parse_query

    names = _configured()
    if len(names) == 1 and conn_id is None:
        return names[0]
    query = parse_query(sql, view="view", default_catalog="", default_namespace=())
    named = [reference.identifier.catalog for reference in query.references]
    found = next((name for name in named if name and (conn_id is not None or name in names)), None)
    if found is None:
        raise ConfigurationError("the query names no configured catalog: write catalog.namespace.table, or give a view")
    return found


def _configured() -> list[str]:
    from airflow_mv.core.catalog.configured import configured

    return sorted(configured())


def stager_for(catalog: MaterializedViewCatalog, master: str | None, remote: str | None) -> InProcessStager:
    """Return the stager of a command. Progress goes to stderr."""
    if master and remote:
        raise click.UsageError("--master and --remote exclude each other")
    from airflow_mv.extras.spark.session import InProcessStager

    return InProcessStager(catalog, master=master, remote=remote, report=progress)


def this_user() -> Requester:
    """Return who runs the command, and where."""
    from airflow_mv.core.publish import Requester

    try:
        return Requester(user=getpass.getuser(), host=socket.gethostname())
    except (OSError, KeyError):  # a container whose user has no name
        return Requester(host=socket.gethostname())


def progress(line: str) -> None:
    """Show a line of progress."""
    err.print(f"  {visible(line)}", style="dim", markup=False)


def print_json(document: Any, *, plain: bool = False) -> None:
    """Print the document of a ``--json`` call, always as strict JSON.

    Args:
        plain: It has texts as keys, and no values that JSON does not have. The check takes longer than the printing.
    """
    # Half of a surrogate pair cannot be encoded as UTF-8, so it is escaped.
    sys.stdout.write(_json(document, plain=plain).encode("utf-8", "backslashreplace").decode("utf-8") + "\n")


def print_json_rows(document: Mapping[str, Any], rows: Iterable[Any]) -> None:
    """Print a document with the field ``rows``, which may be larger than memory.

    They are collected in a temporary file: if an error is raised on the way, nothing was printed.

    Args:
        document: All other fields.
    """
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8", errors="backslashreplace") as spool:
        spool.write(f'{_json(document)[:-1]}, "rows": [')
        for number, row in enumerate(rows):
            spool.write(f"{', ' if number else ''}{_json(row)}")
        spool.write("]}\n")
        spool.seek(0)
        shutil.copyfileobj(spool, sys.stdout)


def _json(document: Any, *, plain: bool = False) -> str:
    return json.dumps(document if plain else _strict(document), default=str, ensure_ascii=False, allow_nan=False)


def _strict(value: Any) -> Any:
    """Return a value that strict JSON can hold: no NaN, no infinity, only string keys, snapshot ids as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(_as_text(item) if key in _SNAPSHOT_IDS else item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | clock_time):
        return value.isoformat()
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def visible(text: str) -> str:
    """Escape control characters: stored text must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _CONTROL else char for char in text)


def _escaped(char: str) -> str:
    return char if char in "\n\t" else char.encode("unicode_escape").decode("ascii")


def parse_time(text: str | None) -> datetime | None:
    """Read a point in time: ISO 8601 (without a zone in UTC), or milliseconds since the epoch.

    Raises:
        InvalidIdentifierError: The text is not a time (exits with the code for wrong usage).
    """
    if text is None:
        return None
    from airflow_mv.core.spec.times import parse_time as parse_iso

    try:
        return parse_iso(text)
    except ValueError:
        raise InvalidIdentifierError(
            f"{text!r} is not a time; write it like 2013-06-30T00:00:00+00:00, or in milliseconds since the epoch"
        ) from None


class _WithoutSecrets(logging.Formatter):
    """Removes secrets from what is logged, traces of libraries included."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return shortened(super().format(record), _MAX_TRACE_LENGTH)


def _set_up_logs(*, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_WithoutSecrets("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("airflow_mv").setLevel(logging.INFO if verbose else logging.WARNING)


@click.command()
@click.argument("views", nargs=-1)
@click.option("--namespace", help="All materialized views of catalog.namespace.")
@click.option("--as-of", help="Read the base tables as of this time, ISO 8601 or ms.")
@common
def pin(
    *, views: tuple[str, ...], namespace: str | None, as_of: str | None, as_json: bool, conn_id: str | None
) -> None:
    """Record the base snapshots that several refreshes share.

    Reads metadata only.

    Give the --json document to `refresh --pins FILE`; it lists the views in the order to refresh them.
    """
    from airflow_mv.common.each import left_out
    from airflow_mv.extras.pins import pin_base_tables

    catalog, identifiers = chosen_views(views, namespace, conn_id)
    found = pin_base_tables(catalog, identifiers, as_of=parse_time(as_of))
    if as_json:
        print_json(found.document())
    else:
        _show(found)
    for error in left_out(catalog):
        raise error


def _show(found: RunPins) -> None:
    for name, held in found.base_tables.items():
        out.print(f"{name}  {'empty' if held.snapshot_id is None else held.snapshot_id}", markup=False)
    for view, names in found.views.items():
        out.print(f"{view}  after {', '.join(names)}" if names else view, markup=False)
    for name, why in found.faults.items():
        out.print(f"not pinned: {name}: {why}", markup=False)


def query_text(sql: str | None, file: Path | None) -> str | None:
    """Return the query of ``--sql`` or ``--sql-file``.

    Raises:
        InvalidQueryError: The file is not text in UTF-8.
    """
    if sql and file:
        raise click.UsageError("--sql and --sql-file exclude each other")
    if file is None:
        return sql
    return utf8_text(file.read_bytes(), source=str(file))


def with_pins(command: Command) -> Command:
    """Add ``--pins``."""
    return click.option(
        "--pins",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read the base tables as `airflow-mv pin --json` has pinned them in this file.",
    )(command)


def pins_of(catalog: MaterializedViewCatalog, views: Sequence[Identifier], file: Path | None) -> SnapshotSet | None:
    """Read a file of pins, for these views.

    Raises:
        InvalidMetadataError: The file holds no pins.
        PinError: They do not fit (any more).
    """
    from airflow_mv.core.freshness.state import SnapshotSet
    from airflow_mv.extras.pins import RunPins, restore

    if file is None:
        return None
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise InvalidMetadataError(f"pins in {file}: no JSON: {error}") from None
    run = RunPins.read(document, source=f"pins in {file}")
    found = SnapshotSet()
    for view in views:
        given = restore(catalog, view, run)
        found.tables.update(given.tables)
        found.queries.update(given.queries)
    return found
