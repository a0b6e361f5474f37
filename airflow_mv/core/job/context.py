# SPDX-License-Identifier: Apache-2.0
"""The shared state of a run's steps: the session, small results that are collected locally, executor time, clean-up."""

from __future__ import annotations

import pkgutil
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from airflow_mv.core.job.session import present_settings, settings_below, temporary_settings
from airflow_mv.core.job.versions import Capabilities
from airflow_mv.core.script import SNAPSHOT_PROPERTY, STAGING_CATALOG, STAGING_NAMESPACE, Delta, TableRead
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.errors import IncrementalRefusedError
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext  # a Connect client has none

#: The driver holds a result of at most this many rows, as a relation whose size the optimizer knows.
MAX_LOCAL_ROWS = 20_000
#: ComputedRows rows are in one partition for each so many of them.
_ROWS_HELD = 200_000
_PARTITIONS = "spark.sql.shuffle.partitions"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_PARTITION_BYTES = 16 * 2**20
_CAUSED_BY = "Caused by: "
#: Where few rows are expected, at least so many partitions are searched for them at once.
_PARTITIONS_SEARCHED = 32
#: The name of the metrics that Spark observes while it runs a query.
_METRICS = "airflow_mv_metrics"
#: The alias under which a condition is tested on the rows of a base table.
ROWS = "__airflow_mv"
#: The partitions of a range in its physical plan.
_SPLITS = re.compile(r"splits=(\d+)")
_compiled: dict[tuple[int, str], Any] = {}


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """Rows of a query that has run.

    Args:
        frame: The rows, in the driver or on the executors.
        rows: Their number.
        aggregates: The aggregates of them that were asked for.
    """

    frame: DataFrame
    rows: int
    aggregates: Sequence[Any] = ()


class SparkJava:
    """Java objects of a classic session, by py4j: Iceberg's tables and scan tasks. Spark Connect has none."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self._jvm: Any = getattr(spark, "_jvm", None)
        self.can = Capabilities(self._jvm)
        self._sets: list[tuple[Any, str]] = []
        self._statements: Any = None

    def find(self, name: str) -> Any:
        """Return a Java class by its full name. An attribute for each part of the name would take py4j 5 ms, not 0.05.

        Args:
            name: Such as ``java.lang.Long``.
        """
        return getattr(self._jvm, name)

    def long(self, number: int) -> Any:
        """Return a Java ``Long``; py4j would make a small number an ``Integer``."""
        return self.find("java.lang.Long").valueOf(str(number))

    def array(self, kind: str, items: Sequence[Any]) -> Any:
        """Return a Java array of a class of ``java.lang``."""
        gateway: Any = self._spark.sparkContext._gateway
        array = gateway.new_array(self.find(f"java.lang.{kind}"), len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array

    def helper(self, name: str, table: Any, *arguments: Any) -> Any:
        """Return an object of a Java class of this package, which is compiled with the classes of a Java table.

        Args:
            name: The class.
            table: The table, its first argument.
            arguments: The other arguments: Java objects, or ``None``.
        """
        return self._constructor(name, table.getClass().getClassLoader()).newInstance(
            self.array("Object", [table, *arguments])
        )

    def compiles(self, name: str, table: Any) -> bool:
        """Whether a Java class of this package compiles with the driver's classes."""

        def compiled() -> bool:
            try:
                self._constructor(name, table.getClass().getClassLoader())
            except Exception:  # noqa: BLE001 (py4j's error)
                return False
            return True

        return self.can.answer(name, compiled)

    def _constructor(self, name: str, loader: Any) -> Any:
        """Return the constructor of a Java class of this package."""
        key = (int(self.find("java.lang.System").identityHashCode(loader)), name)
        if key not in _compiled:
            source = pkgutil.get_data("airflow_mv.core.job", f"{name}.java") or b""
            compiler = self.find("org.codehaus.janino.SimpleCompiler")()
            compiler.setParentClassLoader(loader)
            compiler.cook(source.decode())
            _compiled[key] = compiler.getClassLoader().loadClass(name).getConstructors()[0]
        return _compiled[key]

    def run(self, sql: str) -> None:
        """Run a statement, whose commits get the entries of their summaries from the session's settings."""
        if self.can.stamps_by_setting():
            self._spark.sql(sql)
            return
        if self._statements is None:
            loader = self.find("java.lang.Thread").currentThread().getContextClassLoader()
            session = self._spark._jsparkSession
            self._statements = self._constructor("Stamped", loader).newInstance(self.array("Object", [session]))
        summary = self.find("java.util.HashMap")()
        for key, value in settings_below(self._spark, SNAPSHOT_PROPERTY).items():
            summary.put(key, value)
        self._statements.run(sql, summary)

    def staging_catalog(self, name: str) -> Any:
        """Return the run's staging catalog, by its name, as Iceberg's Java object."""
        return self._spark._jsparkSession.sessionState().catalogManager().catalog(name).icebergCatalog()

    def staged_identifier(self, name: str) -> Any:
        """Return Iceberg's identifier of a table in the staging catalog."""
        return self.find("org.apache.iceberg.catalog.TableIdentifier").parse(f"{STAGING_NAMESPACE}.{name}")

    def table(self, name: str) -> Any:
        """Load a Java table by its quoted Spark name."""
        return self.find("org.apache.iceberg.spark.Spark3Util").loadIcebergTable(self._spark._jsparkSession, name)

    def stored(self, table: str, branch: str | None) -> Any:
        """Load the storage table as a Java table.

        Args:
            table: Its quoted Spark name, perhaps with the branch of this run.
        """
        return self.table(table.removesuffix(f".{quote(f'branch_{branch}')}"))

    def clustered_by(self, table: str, branch: str | None) -> frozenset[str]:
        """Return the columns that the storage table is partitioned or sorted by, see :meth:`stored`."""
        stored = self.stored(table, branch)
        sources = {field.sourceId() for order in (stored.spec(), stored.sortOrder()) for field in order.fields()}
        return frozenset(stored.schema().findColumnName(source) for source in sources)

    def staged(self, table: Any, tasks: Any) -> DataFrame:
        """Return the rows of scan tasks, read as ``rewrite_data_files`` reads them."""
        name = str(uuid.uuid4())
        self._sets.append((table, name))
        self._task_sets().stageTasks(table, name, tasks)
        return self._read_set(table, name)

    def _read_set(self, table: Any, name: str) -> DataFrame:
        self._table_cache().add(name, table)
        reader = self._spark.read.format("iceberg")
        if self.can.reads_tasks_by_option():
            reader = reader.option("scan-task-set-id", name)
        rows: DataFrame = reader.load(name)
        return rows

    def reads_tasks(self, table: Any) -> bool:
        """Whether a set of scan tasks is read as such. Iceberg reads all rows under a name that it does not know."""
        return self.can.answer("reads_tasks", lambda: self._plans_set(table))

    def _plans_set(self, table: Any) -> bool:
        name = str(uuid.uuid4())
        self._sets.append((table, name))
        try:
            relation = self._read_set(table, name)._jdf.queryExecution().analyzed()
            builder = relation.table().newScanBuilder(relation.options())
        except Exception:  # noqa: BLE001 (py4j's error or Spark's)
            return False
        return str(builder.getClass().getSimpleName()) == "SparkStagedScanBuilder"

    def releases(self) -> Iterator[Callable[[], Any]]:
        """Yield what releases the staged scan tasks."""
        for table, name in self._sets:
            yield partial(self._task_sets().removeTasks, table, name)
            yield partial(self._table_cache().remove, name)
        self._sets = []

    def _task_sets(self) -> Any:
        return self.find("org.apache.iceberg.spark.ScanTaskSetManager").get()

    def _table_cache(self) -> Any:
        # py4j confuses the static get() with the instance's get(String); reflection does not.
        loader = self.find("java.lang.Thread").currentThread().getContextClassLoader()
        cache = loader.loadClass("org.apache.iceberg.spark.SparkTableCache")
        return cache.getMethod("get", self.array("Class", [])).invoke(None, self.array("Object", []))


class JobContext:
    """One run's temporary views and staged scan tasks, and what its incremental steps found.

    Args:
        spark: The run's session, classic or Connect.
    """

    def __init__(self, spark: SparkSession, staging: str) -> None:
        self.spark = spark
        self.staging = staging
        self.jvm: Any = getattr(spark, "_jvm", None)
        self.java = SparkJava(spark)
        self.sql = ""
        #: The branch of the storage table that the run writes to, if it has one.
        self.branch: str | None = None
        #: What the view's query may read.
        self.reads: tuple[TableRead, ...] = ()
        self.deltas: list[Delta] = []
        #: By the view of a base table's change: its rows, if known, and the rows of the table's new snapshot, or -1.
        self.changes: dict[str, int | None] = {}
        self.totals: dict[str, int] = {}
        #: Views of rows that match changes of other tables, which were read together with the change.
        self.gathered: set[str] = set()
        self.keys: int | None = None
        self.written_by = "statement"
        #: Whether the script has a fallback for a step that refuses.
        self.has_fallback = False
        #: Called before the script's last statement that writes.
        self.before_last: Callable[[], None] = lambda: None
        #: What Spark's executors have worked for the run.
        self.executors = ExecutorTime(None, "")
        #: What is known of the past of tables, or is being read, see :mod:`airflow_mv.core.job.history`.
        self.histories: dict[str, object] = {}
        #: Observers of the changed files of a step, by its view, while it is being read, see
        #: :mod:`airflow_mv.core.job.delta`.
        self.read_ahead: dict[str, Future[Any]] = {}
        self._analysed: dict[str, DataFrame] = {}
        self._views: set[str] = set()
        self._held: list[DataFrame] = []

    @property
    def lists_tasks(self) -> bool:
        """Whether scan tasks can be listed: not over Spark Connect."""
        return self.jvm is not None

    # ------------------------------------------------------------------------------------ statements

    def query(self, sql: str) -> DataFrame:
        """Return a query as a frame; the run's error names this SQL if it fails."""
        self.sql = sql
        return as_frame(self.spark, sql)

    def analysed(self, sql: str) -> DataFrame:
        """Return a query as a frame, analysed once a run: what a run reads does not change.

        Args:
            sql: A query whose tables are pinned.
        """
        self.sql = sql
        if sql not in self._analysed:
            frame = self._analysed[sql] = self.query(sql)
            if self.jvm is None:
                _ = frame.schema  # here it is analysed, and the frame keeps it
        return self._analysed[sql]

    def at(self, table: str, snapshot: int | None) -> DataFrame:
        """Return a table at a snapshot.

        Args:
            table: Its quoted name.
            snapshot: The snapshot; ``None`` for the present table.
        """
        return table_at(self.spark, table, snapshot)

    def run(self, sql: str) -> None:
        """Run a statement that is not a query. Spark runs it at once; fetching its rows would take 10 ms more."""
        self.sql = sql
        if self.jvm is None:
            self.spark.sql(sql)
        else:
            self.java.run(sql)

    def write(self, sql: str) -> None:
        """Run a statement that writes, the last one of a step."""
        self.before_last()
        self.run(sql)

    def overwrite(self, table: str, rows: str, others: str = "") -> None:
        """Replace all rows of a table, by the last statement of a step.

        Args:
            table: Its quoted name.
            rows: A query for the new rows.
            others: A query for the rows that stay.
        """
        self.write(f"INSERT OVERWRITE {table}\n" + (f"{others}\nUNION ALL\n" if others else "") + rows)

    def view(self, name: str, frame: DataFrame) -> None:
        """Give a frame a quoted name until the run ends."""
        frame.createOrReplaceTempView(name)
        self._views.add(name)

    def forget_later(self, name: str) -> None:
        """Drop a temporary view that a statement creates when the run ends.

        Args:
            name: Its quoted name.
        """
        self._views.add(name)

    # ----------------------------------------------------------------------------------------- names

    def is_staged(self, table: str) -> bool:
        """Whether a table is in the run's staging catalog, which holds only what the script has registered there.

        Args:
            table: Its quoted name.
        """
        return table.startswith(f"{quote(self.staging)}.")

    def public(self, text: str) -> str:
        """Return a text from Spark with the staging catalog's name replaced by the one in the script's statements."""
        return text.replace(self.staging, STAGING_CATALOG)

    # --------------------------------------------------------------------------------------- results

    def collect_locally(
        self, frame: DataFrame, most: int = MAX_LOCAL_ROWS, size: int | None = None, aggregates: Sequence[str] = ()
    ) -> ComputedRows | None:
        """Run a query and return its rows as a local relation, with their number; ``None`` if they are too many.

        Reading a relation that the driver holds needs no job. Spark knows its exact size, so it can broadcast the
        relation, push it through aggregates, and drop branches of a query if it is empty.

        Args:
            most: The most rows. Their bytes are limited by the session's ``spark.driver.maxResultSize``.
            size: The bytes that it reads, if known, for Spark Connect. In a classic session Spark estimates them.
            aggregates: Aggregates of the rows that are also wanted.
        """
        try:
            return self._collect_locally(frame, most, size, aggregates)
        except Exception as error:
            if "spark.driver.maxResultSize" in str(error):
                return None
            raise

    def _collect_locally(
        self, frame: DataFrame, most: int, size: int | None, aggregates: Sequence[str]
    ) -> ComputedRows | None:
        if self.jvm is None:
            with nullcontext() if size is None else self.sized_for(size, fetched=True):
                table = frame.limit(most + 1).toArrow()
            local = self.spark.createDataFrame(table, schema=frame.schema)
            return (
                ComputedRows(local, table.num_rows, _aggregated(local, aggregates)) if table.num_rows <= most else None
            )
        # As bytes: text that is not valid UTF-8 would come back as other text.
        kinds = {item.name: item.dataType for item in frame.schema.fields}
        texts = {name: kind for name, kind in kinds.items() if _as_bytes(kind) != kind}
        with self.settings({"spark.sql.datetime.java8API.enabled": "true"}):  # the older classes change early dates
            observed = _cast(_observed(frame, aggregates), {name: _as_bytes(kind) for name, kind in texts.items()})
            java = observed.limit(most + 1)._jdf
            # Few rows are expected: the first search is of many partitions, not of one. Each further search is a job.
            first = str(max(_PARTITIONS_SEARCHED, 4 * self.spark.sparkContext.defaultParallelism))
            with self.sized_for(_bytes_read(java)), self.settings({"spark.sql.limit.initialNumPartitions": first}):
                rows = java.collectAsList()
            count = int(rows.size())
            if count > most:
                return None
            local = _cast(DataFrame(self.spark._jsparkSession.createDataFrame(rows, java.schema()), self.spark), texts)
            return ComputedRows(local, count, _metrics(java, aggregates) or _aggregated(local, aggregates))

    def changed_bytes(self, sql: str) -> int | None:
        """Return the bytes that a query of changes reads; ``None`` if unknown, or if it also reads whole tables."""
        known = all(delta.old_tasks + delta.new_tasks or delta.rows_read == 0 for delta in self.deltas)
        others = {read.table for read in self.reads} | self._views - self.changes.keys()
        if not known or any(name in sql for name in others):
            return None
        return sum(delta.old_bytes + delta.new_bytes for delta in self.deltas)

    def explained(self, frame: DataFrame) -> str:
        """Return the analysed, optimized and physical plan of a frame as text. It reads no table."""
        explained: Any = frame
        return str(explained._explain_string(mode="extended"))

    def settings(self, wanted: Mapping[str, str]) -> AbstractContextManager[None]:
        """Set settings of the session, and restore them at the end."""
        return temporary_settings(self.spark, wanted)

    @contextmanager
    def sized_for(self, size: int, *, fetched: bool = False) -> Iterator[None]:
        """Plan for this many bytes: use few shuffle partitions, since each costs milliseconds, but one for each core.

        For a few bytes adaptive execution is off: planning again after each stage takes longer than the stages.

        Args:
            size: Bytes.
            fetched: Whether a client of Spark Connect gets the rows. The server brings them into one partition first,
                by one more stage. A few bytes are planned for one partition, which needs none.
        """
        few = size <= _PARTITION_BYTES
        least = 1 if few and fetched else self.cores
        wanted = {_PARTITIONS: str(min(self._given_partitions, max(least, -(-size // _PARTITION_BYTES))))}
        if few:
            wanted[_ADAPTIVE] = "false"
        before, self._sized = self._sized, {**self._sized, **wanted}
        try:
            with temporary_settings(self.spark, wanted, before):
                yield
        finally:
            self._sized = before

    @cached_property
    def _given_partitions(self) -> int:
        return int(self._sized[_PARTITIONS] or str(self.spark.conf.get(_PARTITIONS)))

    @cached_property
    def _sized(self) -> Mapping[str, str | None]:
        """The present values of the settings that :meth:`sized_for` changes: asked for once, then known."""
        return present_settings(self.spark, (_PARTITIONS, _ADAPTIVE))

    @cached_property
    def cores(self) -> int:
        """The cores that Spark plans for."""
        if self.jvm is not None:
            return int(self.spark.sparkContext.defaultParallelism)
        # A Connect server does not report its cores. By default it makes a range of so many partitions.
        found = _SPLITS.search(self.explained(self.spark.range(1 << 10)))
        return int(found[1]) if found else 1

    def kept(self, frame: DataFrame, expected: int | None = None, aggregates: Sequence[str] = ()) -> ComputedRows:
        """Run a query once and return its rows, held where they fit.

        Args:
            expected: An upper bound of its rows, if known.
            aggregates: Aggregates of the rows that are also wanted.
        """
        # Maps of more than four entries change their order in the driver.
        fits = incomparable(frame.schema, ("map",)) is None
        if fits and expected is not None and expected <= MAX_LOCAL_ROWS:
            local = self.collect_locally(frame, aggregates=aggregates)
            if local is not None:
                return local
        wanted = ("count(1)", *aggregates)
        observed = frame if self.jvm is None else _observed(frame, wanted)
        held = observed.localCheckpoint(eager=True)
        metrics = None if self.jvm is None else _metrics(observed._jdf, wanted)
        count, *found = metrics or _aggregated(held, wanted)
        # Over Spark Connect rows would go to the client and back. That is worth it only without rows: Spark removes
        # joins with an empty relation.
        if fits and count <= (0 if self.jvm is None else MAX_LOCAL_ROWS):
            local = self.collect_locally(held)
            if local is not None:
                return replace(local, aggregates=found)
        return ComputedRows(self.in_few_partitions(self.held(held), count), count, found)

    def in_few_partitions(self, frame: DataFrame, rows: int) -> DataFrame:
        """Return a frame with few partitions: one for each core, or more if it has many rows. Each makes jobs slower.

        Args:
            rows: How many rows it has.
        """
        return frame.coalesce(max(self.cores, -(-rows // _ROWS_HELD)))

    def held(self, frame: DataFrame) -> DataFrame:
        """Keep a checkpointed frame until the run ends: Spark frees a checkpoint when its frame is forgotten."""
        self._held.append(frame)
        return frame

    # --------------------------------------------------------------------------------------- the end

    def found(self, error: BaseException | None) -> dict[str, Any]:
        """Return the fields of the outcome that describe the incremental steps.

        Args:
            error: The error that ended the run or made it fall back.
        """
        refused = error if isinstance(error, IncrementalRefusedError) else None
        return {
            "written_by": self.written_by,
            "fallback": refused.code if refused else None,
            "fallback_reason": self.public(str(refused)) if refused else None,
            "keys": self.keys,
            "deltas": tuple(replace(delta, table=self.public(delta.table)) for delta in self.deltas),
        }

    def close(self) -> None:
        """Drop the temporary views, and release the staged scan tasks and the held rows."""
        for forget in self._leftovers():
            with suppress(Exception):  # nothing is left of a dead session
                forget()
        self._views, self._held = set(), []

    def _leftovers(self) -> Iterator[Callable[[], Any]]:
        drop: Callable[[str], Any] = self.spark.catalog.dropTempView
        if self.jvm is not None:
            # Spark's public method analyses each view again, to find cached rows of it. Nothing here is cached.
            drop = self.spark._jsparkSession.sessionState().catalog().dropTempView
        for view in self._views:
            yield partial(drop, view[1:-1].replace("``", "`"))
        yield from self.java.releases()


def as_frame(spark: SparkSession, sql: str) -> DataFrame:
    """Return a query as a frame.

    Over Spark Connect the server gets it with the frame's first use: ``spark.sql`` would also send it now, to learn
    whether it is a statement.

    Args:
        spark: A session, classic or Connect.
        sql: A query, no other statement.
    """
    if getattr(spark, "_jvm", None) is not None:
        return spark.sql(sql)
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame  # a classic session may be without gRPC
    from pyspark.sql.connect.plan import SQL

    session: Any = spark
    return ConnectFrame(SQL(sql, [], {}, []), session)


def table_at(spark: SparkSession, table: str, snapshot: int | None) -> DataFrame:
    """Return a table at a snapshot.

    Args:
        spark: A session, classic or Connect.
        table: Its quoted name.
        snapshot: The snapshot; ``None`` for the present table.
    """
    if snapshot is None:
        return spark.table(table)
    if getattr(spark, "_jvm", None) is None:  # ``spark.sql`` would take one more round trip
        return spark.read.option("versionAsOf", str(snapshot)).table(table)
    return spark.sql(f"SELECT * FROM {table} VERSION AS OF {snapshot}")  # Spark 3.5 reads no version by the option


def _cast(frame: DataFrame, types: Mapping[str, DataType]) -> DataFrame:
    """Return a frame with some columns of another type."""
    casts = {name: F.col(quote(name)).cast(kind) for name, kind in types.items()}
    return frame.withColumns(casts) if casts else frame


def _observed(frame: DataFrame, aggregates: Sequence[str]) -> DataFrame:
    """Return a frame that observes aggregates of all its rows while it runs."""
    if not aggregates:
        return frame
    first, *others = map(F.expr, aggregates)
    return frame.observe(_METRICS, first, *others)


def _metrics(java: Any, aggregates: Sequence[str]) -> list[Any] | None:
    """Return the observed aggregates of a Java frame that has run; ``None`` if Spark's plan has lost them."""
    found = java.queryExecution().observedMetrics().get(_METRICS) if aggregates else None
    return None if found is None or found.isEmpty() else [found.get().get(number) for number in range(len(aggregates))]


def _aggregated(frame: DataFrame, aggregates: Sequence[str]) -> list[Any]:
    """Return aggregates of a frame, by a query."""
    return [*frame.selectExpr(*aggregates).collect()[0]] if aggregates else []


def _bytes_read(java: Any) -> int:
    """Return about how many bytes a Java frame reads. Spark reuses the plan that is made for it."""
    leaves = java.queryExecution().optimizedPlan().collectLeaves()
    return sum(_bytes_of(java, leaves.apply(number)) for number in range(leaves.size()))


def _bytes_of(java: Any, leaf: Any) -> int:
    """Return Spark's estimate of a leaf of a plan. Of held rows it knows only what they were read from."""
    if leaf.nodeName() == "LogicalRDD":
        number = leaf.rdd().id()
        for stored in java.sparkSession().sparkContext().getRDDStorageInfo():
            if stored.id() == number:
                return int(stored.memSize() + stored.diskSize())
    return int(str(leaf.stats().sizeInBytes()))


def _as_bytes(kind: DataType) -> DataType:
    """Return a type with every string in it replaced by binary."""
    if isinstance(kind, StructType):
        return StructType([StructField(item.name, _as_bytes(item.dataType), item.nullable) for item in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_as_bytes(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_as_bytes(kind.keyType), _as_bytes(kind.valueType), kind.valueContainsNull)
    return BinaryType() if isinstance(kind, StringType) else kind


def incomparable(kind: DataType, names: tuple[str, ...]) -> str | None:
    """Return the first type that is one of ``names``: the type itself or a nested one."""
    inner: list[DataType] = []
    if kind.typeName().startswith(names):
        return kind.simpleString()
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    return next((found for item in inner if (found := incomparable(item, names)) is not None), None)


def cause(error: Exception) -> str:
    """Return the line with the cause. For an error without a Python class it is the second line, Java's first one.

    For an error in a subquery it is one of the lines below, with the error that Java's first line wraps.
    """
    lines = str(error).strip().splitlines() or [""]
    line = next((line for line in lines if line.startswith(":")), lines[0])
    if "SQLSTATE" not in line:
        line = next((line for line in lines if line.startswith(_CAUSED_BY) and "SQLSTATE" in line), line)
    return shortened(line.removeprefix(_CAUSED_BY).lstrip(": "), 300)


def translated(error: Exception) -> Exception:
    """Return the error that ended a task, as PySpark translates that of a statement. Spark 3.5 wraps it in its own.

    Args:
        error: What a statement raised.
    """
    java = getattr(error, "java_exception", None)  # py4j's error: PySpark has not translated it
    while java is not None and (java := java.getCause()) is not None:
        from pyspark.errors.exceptions.captured import UnknownException, convert_exception

        found = convert_exception(java)
        if not isinstance(found, UnknownException):
            return found
    return error


def columns_of(names: Sequence[str]) -> str:
    """Return a list of quoted names."""
    return ", ".join(quote(name) for name in names)


def matching(frame: DataFrame, condition: str) -> DataFrame:
    """Return the rows of a base table that satisfy a condition on its columns.

    Args:
        frame: The rows.
        condition: SQL with unqualified column names; empty for none.
    """
    # Under the table's own alias, a field of a struct column of the same name would be a column of the table.
    return frame.alias(ROWS).where(condition) if condition else frame


def unlike(names: Sequence[str]) -> str:
    """Return a prefix with which none of these names begins."""
    prefix = "__"
    while any(name.lower().startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def list_of(context: JobContext, items: Iterable[Any]) -> Any:
    """Return a Java list."""
    found = context.java.find("java.util.ArrayList")()
    for item in items:
        found.add(item)
    return found


# ---------------------------------------------------------------------- what Spark's executors work


#: The longest wait for the driver's listeners, in ms: they learn of the end of a stage a moment after the job's end.
_LISTENERS_MS = 20_000


class ExecutorTime:
    """The executor run time of all stages of the jobs that were started under a tag.

    Args:
        context: Spark's Scala context, by py4j; ``None`` over Connect, where a client cannot ask for it.
    """

    def __init__(self, context: Any, tag: str) -> None:
        self._context, self._tag = context, tag
        self._stages: dict[int, int] = {}
        self._known = context is not None

    def read(self) -> None:
        """Note the stages that have ended. Called after each step, because Spark forgets old stages."""
        if not self._known:
            return
        try:
            self._context.listenerBus().waitUntilEmpty(_LISTENERS_MS)
            store = self._context.statusStore()
            for job in self._context.statusTracker().getJobIdsForTag(self._tag):
                stages = store.job(job).stageIds()
                for at in range(stages.size()):
                    stage = int(stages.apply(at))
                    self._stages[stage] = int(store.lastStageAttempt(stage).executorRunTime())
        except Exception:  # noqa: BLE001 (py4j's errors have no common base; a run never fails because of it)
            self._known = False

    def seconds(self) -> float | None:
        """Return the time up to now, in seconds; ``None`` if Spark does not report it."""
        self.read()
        return round(sum(self._stages.values()) / 1000, 3) if self._known else None


@contextmanager
def measured(spark: SparkSession) -> Iterator[ExecutorTime]:
    """Tag the jobs of this thread for a while, and yield the time that executors work for them.

    Args:
        spark: A session, classic or Connect.
    """
    tag = f"airflow-mv-{uuid.uuid4().hex}"
    context = _tagged(spark, tag)
    try:
        yield ExecutorTime(None if context is None else context._jsc.sc(), tag)
    finally:
        if context is not None:
            context.removeJobTag(tag)


def _tagged(spark: SparkSession, tag: str) -> SparkContext | None:
    """Tag this thread's jobs from now on. Return the context; ``None`` over Connect, or if a platform forbids it."""
    try:
        context = spark.sparkContext
        context.addJobTag(tag)
    except Exception:  # noqa: BLE001 (a platform has errors of its own; a run never fails because of it)
        return None
    return context
