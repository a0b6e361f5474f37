# SPDX-License-Identifier: Apache-2.0
"""What a job is asked about the rows that it has staged, and what it found. Standard library only: ships to the driver.

The checks as users write them are in ``checks.py``; ``plan/checks.py`` compiles them to these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_mv.documents import json_objects, read

#: What the statements of a check call the staged rows.
ROWS = "`__rows`"
#: Offending rows that are kept of a failed check.
MOST_ROWS = 20
#: Characters that are kept of a value in such a row.
LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class StagedCheck:
    """One check, in Spark SQL over :data:`ROWS`, or a function.

    Args:
        name: What people call it.
        severity: ``error``: nothing is published where it fails. ``warn``: it is only told.
        expected: What must hold, for people.
        observed: An aggregate expression for what is there instead; its text is shown.
        passes: An aggregate expression for the verdict. NULL is no.
        offending: A query for the rows that break it; empty where no single row does.
        function: ``module:function`` instead of SQL; it gets the staged rows as a DataFrame.
    """

    name: str
    severity: str
    expected: str
    observed: str = ""
    passes: str = ""
    offending: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class StagedChecks:
    """All checks of a refresh.

    Args:
        rows: A query for the staged rows.
        checks: The checks.
        digest: Stands for what is checked: an outcome counts under the very checks that it was judged by.
    """

    rows: str
    checks: tuple[StagedCheck, ...]
    digest: str

    def statement(self, checks: tuple[StagedCheck, ...]) -> str:
        """Return one aggregation that computes some of the checks: for each what is there, and the verdict."""
        columns = ",\n  ".join(f"CAST({check.observed} AS STRING), {check.passes}" for check in checks)
        # Without an aggregate of its own, as queries in queries have none, a SELECT gives a row for each row.
        return self.over(f"SELECT {columns},\n  count(*)\nFROM {ROWS}")

    def over(self, query: str) -> str:
        """Return a query over :data:`ROWS` as Spark can run it."""
        return f"WITH {ROWS} AS (\n{self.rows}\n)\n{query}"

    def describe(self) -> str:
        """Return what is asked of Spark."""
        told = [f"-- {check.name}: {check.expected}".replace("\n", " ") for check in self.checks]
        asked = tuple(check for check in self.checks if check.passes)
        told += [self.statement(asked)] if asked else []
        told += [f"{check.function}(<DataFrame of {self.rows}>)" for check in self.checks if check.function]
        return "\n".join(told)

    @classmethod
    def read(cls, value: Any) -> StagedChecks | None:
        """Read what ``dataclasses.asdict`` made of such an object, or of ``None``.

        Raises:
            InvalidMetadataError: It is something else.
        """
        if value is None:
            return None
        (document,) = json_objects([value], "script", "checks")
        checks = [read(StagedCheck, raw, "check") for raw in json_objects(document.get("checks"), "script", "checks")]
        return read(cls, {**document, "checks": checks}, "script")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check.

    Args:
        name: The check.
        severity: As in :class:`StagedCheck`.
        passed: The verdict.
        expected: What must hold, for people.
        observed: What was there.
        problem: Why it could not be computed, where it could not.
        columns: Columns of ``rows``.
        rows: Some of the rows that broke it, each value as text.
    """

    name: str
    severity: str
    passed: bool
    expected: str
    observed: str | None = None
    problem: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()

    @property
    def stops(self) -> bool:
        """Whether nothing may be published because of it."""
        return not self.passed and self.severity != "warn"

    def summary(self) -> dict[str, str]:
        """Return the short form for documents and records: no rows, which are data of the view."""
        return {
            "name": self.name,
            "result": "passed" if self.passed else "warned" if self.severity == "warn" else "failed",
            "expected": self.expected,
            "observed": self.observed or self.problem or "",
        }

    def record(self) -> dict[str, str]:
        """Return what the refresh's record keeps; there may be many checks, and many records."""
        told = self.summary()
        return {key: told[key] for key in ("name", "result", *(() if self.passed else ("observed",)))}

    def lines(self, most_rows: int = MOST_ROWS) -> list[str]:
        """Return what people read: a sentence, and a line for each of some rows.

        Args:
            most_rows: Rows at most.
        """
        found = f"it could not be computed: {self.problem}" if self.problem else f"found {self.observed}"
        named = [zip(self.columns, row, strict=False) for row in self.rows[:most_rows]]
        shown = [", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row) for row in named]
        return [f"check {self.name!r}: wanted {self.expected}; {found}", *(f"  row {line}" for line in shown)]
