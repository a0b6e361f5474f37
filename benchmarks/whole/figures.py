# SPDX-License-Identifier: Apache-2.0
"""What is measured, how it should be, and what the alternative takes: each figure with its target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import report
from benchmarks.cells import BOUND

Document = Mapping[str, Any]
Documents = Mapping[str, Document]

MET, MISSED, UNKNOWN, SHOWN = "met", "**missed**", "not measured", ""
_MOR, _LINEAGE = "v2-mor", "v3-mor"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as it is shown.

    Args:
        group: What it is about.
        what: What was measured.
        measured: The number with its unit.
        target: How it should be; a dash where there is no target.
        verdict: Whether it is so.
        beside: What the alternative takes.
    """

    group: str
    what: str
    measured: str
    target: str
    verdict: str
    beside: str


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its target.

    Args:
        group: What it is about.
        what: What is measured.
        part: The part of the run that measures it.
        value: Finds the number; an error means that it was not measured.
        unit: Of the number.
        most: The number should not be above this.
        least: The number should not be below this.
        beside: What the alternative takes.
        digits: Behind the point.
    """

    group: str
    what: str
    part: str
    value: Callable[[Document], float]
    unit: str = ""
    most: float | None = None
    least: float | None = None
    beside: Callable[[Document], str] = lambda _: ""
    digits: int = 2

    def figure(self, documents: Documents) -> Figure:
        """Return the figure of a run."""
        try:
            found = documents[self.part]
            value, beside = self.value(found), self.beside(found)
        except (LookupError, ValueError, TypeError, ZeroDivisionError):
            return Figure(self.group, self.what, "-", self._target(), UNKNOWN, "")
        return Figure(self.group, self.what, self._number(value), self._target(), self._verdict(value), beside)

    def _verdict(self, value: float) -> str:
        if self.most is None and self.least is None:
            return SHOWN
        within = (self.most is None or value <= self.most) and (self.least is None or value >= self.least)
        return MET if within else MISSED

    def _target(self) -> str:
        limits = [("≤", self.most), ("≥", self.least)]
        return ", ".join(f"{sign} {limit:,g}{self.unit}" for sign, limit in limits if limit is not None) or "-"

    def _number(self, value: float) -> str:
        return f"{value:z,.{self.digits}f}{self.unit}"


def figures(documents: Documents) -> list[Figure]:
    """Return all figures of a run, also those that were not measured."""
    return [goal.figure(documents) for goals in _GOALS for goal in goals()]


# ------------------------------------------------------------------------------- refreshes


def _full() -> Iterator[Goal]:
    group = "A full refresh, SF 1: overhead over the bare statement"
    for view in ("v1", "v2", "v3"):
        yield Goal(
            group,
            view,
            "full-refresh",
            lambda found, view=view: (
                100 * report.median(found["views"][view]["overheads"]) / report.median(found["views"][view]["bare"])
            ),
            " %",
            most=5,
            beside=lambda found, view=view: f"bare: {report.median(found['views'][view]['bare']):.2f} s",
        )


def cell(found: Document, **wanted: Any) -> Document:
    """Return the only cell of incremental refreshes with these values.

    Raises:
        LookupError: There is none.
    """
    for item in found["cells"]:
        if all(item[key] == value for key, value in wanted.items()):
            return dict(item)
    raise LookupError(str(wanted))


def seconds_of(found: Document, way: str) -> float:
    """Return the median seconds of a cell, ``incremental`` or ``full``."""
    return report.median(run[way]["seconds"] for run in found["runs"] if run[way])


def _ratio(found: Document) -> float:
    if found["ratio"] is None:
        raise LookupError("no incremental mode")
    return float(found["ratio"])


def _beside_full(**wanted: Any) -> Callable[[Document], str]:
    return lambda found: f"full: {seconds_of(cell(found, **wanted), 'full'):.2f} s"


def _appended() -> Iterator[Goal]:
    for view, most in (("v1", 0.6), ("v2", 0.6), ("v3", 1.0)):
        wanted = {"variant": _MOR, "change": "append", "percent": 0.1, "view": view}
        yield Goal(
            "0.1 % appended, SF 1, warm session",
            view,
            "incremental",
            lambda found, wanted=wanted: seconds_of(cell(found, **wanted), "incremental"),
            " s",
            most=most,
            beside=_beside_full(**wanted),
        )
    for view in ("v1", "v2", "v3"):
        wanted = {"variant": _MOR, "change": "append", "percent": 0.1, "view": view}
        yield Goal(
            "0.1 % appended, SF 10: speed-up over a full refresh",
            view,
            "incremental-10",
            lambda found, wanted=wanted: 1 / _ratio(cell(found, **wanted)),
            " times",
            least=20,
            beside=_beside_full(**wanted),
            digits=1,
        )


def _scattered() -> Iterator[Goal]:
    for variant in (_MOR, _LINEAGE, "v3-cow"):
        group = f"0.1 % scattered, SF 10, {variant}: fraction of a full refresh"
        for view, most in (("v1", 0.5), ("v2", 0.5), ("v3", 0.4)):
            wanted = {"variant": variant, "change": "mixed", "percent": 0.1, "view": view}
            yield Goal(
                group,
                view,
                "incremental-10",
                lambda found, wanted=wanted: _ratio(cell(found, **wanted)),
                most=most,
                beside=_beside_full(**wanted),
            )
        wanted = {"variant": variant, "change": "mixed", "percent": 0.1, "view": "v0"}
        yield Goal(
            group,
            "v0 (chosen mode)",
            "incremental-10",
            lambda found, wanted=wanted: float(cell(found, **wanted)["chosen_ratio"]),
            most=BOUND,
            beside=_beside_full(**wanted),
        )


def _cells() -> Iterator[Goal]:
    for part, scale in (("incremental", 1), ("incremental-10", 10)):
        yield Goal(
            "The chosen mode, as a fraction of a full refresh: the worst of all measured cells",
            f"SF {scale}",
            part,
            lambda found: max(float(item["chosen_ratio"]) for item in found["cells"]),
            most=BOUND,
            beside=lambda found: f"{len(found['cells'])} cells",
        )


def _clustered() -> Iterator[Goal]:
    for view in ("v1", "v2", "v3"):
        yield Goal(
            "One day of data changed, SF 10: fraction of a full refresh",
            view,
            "incremental-10",
            lambda found, view=view: _ratio(cell(found, variant=_LINEAGE, change="clustered", view=view)),
            most=0.1,
        )


def _shared() -> Iterator[Goal]:
    group = "Twenty small views in one Spark application"
    yield Goal(
        group,
        "speed-up",
        "shared-application",
        lambda found: float(found["times_faster"]),
        " times",
        least=8,
        beside=lambda found: f"20 applications: {20 * report.median(found['alone']):.0f} s",
        digits=1,
    )
    yield Goal(
        group,
        "the second view",
        "shared-application",
        lambda found: float(found["second"]),
        " s",
        most=3,
        beside=lambda found: f"an application of its own: {report.median(found['alone']):.1f} s",
    )


def _connect_ratio(found: Document) -> float:
    runs = found["runs"]
    return max(
        report.median(runs["connect"][case]["seconds"]) / report.median(classic["seconds"])
        for case, classic in runs["classic"].items()
    )


def _connect() -> Iterator[Goal]:
    yield Goal(
        "Spark Connect: an incremental refresh, relative to the classic session",
        "the worst of the measured changes",
        "connect",
        _connect_ratio,
        most=1.3,
    )


# ------------------------------------------------------------------------------- looks


def _run_of(found: Document, title: str, value: str) -> float:
    """Return the median of a value of the runs with this title."""
    return report.median(item[value] for item in found["runs"][title] if value in item)


def _looks() -> Iterator[Goal]:
    databases = (("many-views", "SQLite"), ("many-views-postgresql", "PostgreSQL"))
    title = "`status --all`, nothing has moved"
    for part, database in databases:
        yield Goal(
            "`airflow-mv status --all`, 10,000 views, nothing moved",
            database,
            part,
            lambda found: _run_of(found, title, "seconds"),
            " s",
            most=1.5,
            beside=lambda found: f"without a cache: {_run_of(found, '`status --all`, empty cache', 'seconds'):.0f} s",
        )
    for part, database in databases:
        group = f"Looks at 10,000 views, {database}, nothing moved"
        for what, value, most in (("catalog queries", "queries", 10), ("metadata files read", "files", 0)):
            yield Goal(group, what, part, lambda found, value=value: _run_of(found, title, value), digits=0, most=most)
        for look in ("alerts", "sensors, first period", "page, first look"):
            run = f"{look}, nothing has moved"
            yield Goal(
                group,
                f"{look}: whole process",
                part,
                lambda found, run=run: _run_of(found, run, "seconds"),
                " s",
                most=1.5,
                beside=lambda found, run=run: f"CPU without Airflow's import: {_run_of(found, run, 'own'):.2f} s",
            )
    yield Goal(
        "10,000 views, SQLite, 1 % of the tables moved",
        "metadata files that `status --all` reads",
        "many-views",
        lambda found: _run_of(found, "`status --all`, 20 tables have moved", "files"),
        digits=0,
        beside=lambda found: f"without a cache: {_run_of(found, '`status --all`, empty cache', 'files'):,.0f}",
    )


_THEIRS = "pyiceberg's load_table"


def _longest(found: Document, at: int) -> float:
    ours, theirs = found["longest"]["ours"], found["longest"][_THEIRS]
    return report.median(slow[at] / fast[at] for fast, slow in zip(ours, theirs, strict=True))


def _snapshots() -> Iterator[Goal]:
    group = "A base table with 100,000 snapshots, in a new process"
    for what, at, unit, least in (
        ("times less CPU than `load_table`", 0, " s", 20),
        ("times less memory", 1, " MiB", None),
    ):
        yield Goal(
            group,
            what,
            "snapshots",
            lambda found, at=at: _longest(found, at),
            " times",
            least=least,
            beside=lambda found, at=at, unit=unit: (
                f"`load_table`: {report.median(run[at] for run in found['longest'][_THEIRS]):.1f}{unit}"
            ),
            digits=1,
        )


def _sensors() -> Iterator[Goal]:
    group = "5,000 waiting sensors in one triggerer, a quiet period"
    quiet = "a period in which nothing moves"
    rows: Sequence[tuple[str, str, str, float | None]] = (
        ("queries to the catalog (2,000 base tables)", "queries", "", 2000),
        ("delay of the event loop, p99", "delay_ms", " ms", None),
        ("CPU", "seconds", " s", None),
        ("memory", "memory_mib", " MiB", None),
    )
    for what, value, unit, most in rows:
        yield Goal(
            group,
            what,
            "waiting-sensors",
            lambda found, value=value: float(found["runs"][quiet][value]),
            unit,
            most=most,
            digits=1 if value == "seconds" else 0,
        )


# ------------------------------------------------------------------------------- what users wait for


def _starts() -> Iterator[Goal]:
    for what, key, most in (("`status VIEW`", "status", 0.7), ("`--help`", "help", 0.3)):
        yield Goal("Commands", what, "starts", lambda found, key=key: report.median(found[key]), " s", most=most)
    group = "Imports"
    yield Goal(group, "of `status --all`", "starts", lambda found: report.median(found["imports"]), " s", most=0.4)
    yield Goal(
        group,
        "a DAG file, over Airflow's own",
        "starts",
        lambda found: report.median(found["parse_ms"]),
        " ms",
        most=50,
        beside=lambda found: f"one with the Spark provider's operator: {report.median(found['plain_ms']):.0f} ms",
        digits=0,
    )


def _demo() -> Iterator[Goal]:
    for what, key, most in (
        ("`make demo` in a fresh clone", "first", 150),
        ("the demo itself", "demo", 45),
        ("a second `make demo`", "second", 10),
    ):
        yield Goal("The demo", what, "demo", lambda found, key=key: float(found[key]), " s", most=most, digits=0)


def _memory() -> Iterator[Goal]:
    group = "Peak memory, a table that is larger than the driver's heap, two workers"
    yield Goal(
        group,
        "the driver's JVM",
        "memory",
        lambda found: max(float(row[4]) for row in found["cluster"]),
        " MiB",
        beside=lambda found: f"the table: {found['mebibytes']:,.0f} MiB",
        digits=0,
    )
    yield Goal(
        group,
        "a command without Spark",
        "memory",
        lambda found: max(float(row[3]) for row in found["commands"] if row[2] == "-"),
        " MiB",
        digits=0,
    )


_GOALS = (
    *(_full, _appended, _scattered, _clustered, _cells, _shared, _connect),
    *(_looks, _snapshots, _sensors, _starts, _demo, _memory),
)
