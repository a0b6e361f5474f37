# SPDX-License-Identifier: Apache-2.0
"""Checks of the staged rows of a refresh, which must pass before the rows are published.

    from airflow_mv.checks import condition
    from airflow_mv.checks import not_null
    from airflow_mv.checks import row_count_change
    from airflow_mv.checks import unique

    checks = [not_null("day"), unique("day", "region"), condition("amount >= 0"), row_count_change(at_most_down=0.2)]

A check can also be given as a string (a condition or a query), a function, or a dictionary. A dictionary has the form
of :meth:`Check.document`, or that of the common-sql provider's ``SQLColumnCheckOperator`` and
``SQLTableCheckOperator``. This module does not need Airflow.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, Literal, get_args

from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.words import did_you_mean

#: View property: the checks of every refresh of the view, as JSON.
CHECKS_PROPERTY = "airflow-mv.checks"
MAX_CHECKS = 200

CheckKind = Literal[
    "not_null", "unique", "accepted_values", "row_count", "row_count_change", "condition", "sql", "column", "python"
]
Severity = Literal["error", "warn"]
Value = str | int | float | bool

#: What a common-sql column check computes.
COLUMN_CHECKS = frozenset({"null_check", "unique_check", "distinct_check", "min", "max"})
_COMPARISONS = frozenset({"equal_to", "greater_than", "geq_to", "less_than", "leq_to"})
_LIMITS: Mapping[str, tuple[str, str]] = {
    "row_count": ("at_least", "at_most"),
    "row_count_change": ("at_most_down", "at_most_up"),
}
_OPTIONS = ("name", "severity", "where")
_JSON = re.compile(r"\s*[\[{]")
_QUERY = re.compile(r"\s*(SELECT|WITH)\b", re.IGNORECASE)
_FUNCTION = re.compile(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*")
_MAX_NAME_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Check:
    """One check. Make it with the functions of this module.

    Args:
        kind: What is checked.
        name: The name in messages and records.
        severity: ``error``: nothing is published if the check fails. ``warn``: a failure is only reported.
        columns: The checked columns.
        text: The condition, the query, ``module:function``, or what a column check computes.
        limits: Names and values of the limits.
        values: Accepted values.
        where: A condition that selects the checked rows; empty for all rows.
    """

    kind: CheckKind
    name: str
    severity: Severity = "error"
    columns: tuple[str, ...] = ()
    text: str = ""
    limits: tuple[tuple[str, Value], ...] = ()
    values: tuple[Value, ...] = ()
    where: str = ""

    def document(self) -> dict[str, Any]:
        """Return the check as JSON, which :func:`read_checks` turns into an equal check."""
        if self.kind == "column":
            options = {"severity": self.severity, "partition_clause": self.where}
            return {self.columns[0]: {self.text: {**dict(self.limits), **{k: v for k, v in options.items() if v}}}}
        body: Any = self.text or list(self.columns)
        if self.kind == "accepted_values":
            body = {"column": self.columns[0], "values": list(self.values)}
        elif self.kind in _LIMITS:
            body = dict(self.limits)
        options = {"name": self.name, "severity": self.severity, "where": self.where}
        return {self.kind: body, **{key: value for key, value in options.items() if value}}


# ------------------------------------------------------------------------------------ constructors


def not_null(*columns: str, severity: Severity = "error", where: str = "", name: str = "") -> Check:
    """No row has a NULL in any of these columns."""
    return _check("not_null", name or _named("not_null", columns), severity, where, columns=columns)


def unique(*columns: str, severity: Severity = "error", where: str = "", name: str = "") -> Check:
    """No two rows have the same values in these columns. As in SQL, rows with a NULL in one of them are ignored."""
    return _check("unique", name or _named("unique", columns), severity, where, columns=columns)


def accepted_values(
    column: str, values: Iterable[Any], *, severity: Severity = "error", where: str = "", name: str = ""
) -> Check:
    """A column holds only these values or NULL."""
    accepted = tuple(_value(value, "accepted_values") for value in values)
    label = name or _named("accepted_values", (column,))
    return _check("accepted_values", label, severity, where, columns=(column,), values=accepted)


def row_count(
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    severity: Severity = "error",
    where: str = "",
    name: str = "",
) -> Check:
    """The number of rows is within the limits."""
    limits = _limits(at_least=at_least, at_most=at_most)
    return _check("row_count", name or "row_count", severity, where, limits=limits)


def row_count_change(
    *,
    at_most_down: float | None = None,
    at_most_up: float | None = None,
    severity: Severity = "error",
    where: str = "",
    name: str = "",
) -> Check:
    """The number of rows changed since the last refresh by no more than a share.

    The check passes if there are no earlier rows of the same definition: in the first refresh, after a change of the
    query, or if the view was empty.

    Args:
        at_most_down: The largest decrease, as a share: with 0.2 at least 80 % of the number of rows must remain.
        at_most_up: The largest increase, as a share: 1.0 allows twice as many rows.
        severity: ``error`` or ``warn``.
        where: A condition that selects the rows to count, before and after the refresh.
        name: The name in messages and records.
    """
    limits = _limits(at_most_down=at_most_down, at_most_up=at_most_up)
    return _check("row_count_change", name or "row_count_change", severity, where, limits=limits)


def condition(text: str, *, severity: Severity = "error", where: str = "", name: str = "") -> Check:
    """A Spark SQL condition holds for each row, or for all rows if it has an aggregate function (``sum(x) > 0``).

    A condition that is NULL does not hold.
    """
    return _check("condition", name or _brief(text), severity, where, text=text)


def sql(text: str, *, severity: Severity = "error", name: str = "") -> Check:
    """A query returns one value, which is true: ``SELECT count(*) = 0 FROM {rows} WHERE …``.

    It reads the staged rows as ``{rows}``. It may read the view's base tables, at the snapshots of the refresh.
    """
    return _check("sql", name or _brief(text), severity, "", text=text)


def python(
    function: str | Callable[[Any], Any], *, severity: Severity = "error", where: str = "", name: str = ""
) -> Check:
    """A function that takes the staged rows as a Spark DataFrame returns true, or a DataFrame of the offending rows.

    The function is called where the Spark job runs, and must be importable there. Over Spark Connect and in local
    sessions that is the task's own process. A driver that is submitted elsewhere imports it from ``py_files``.

    Args:
        function: ``module:function``, or the function itself, which must be defined at the top level of a module.
        severity: ``error`` or ``warn``.
        where: A condition that selects the rows that are passed to the function.
        name: The name in messages and records.

    Raises:
        ConfigurationError: The function cannot be imported by a name.
    """
    text = function if isinstance(function, str) else f"{function.__module__}:{getattr(function, '__qualname__', '')}"
    return _check("python", name or _brief(text), severity, where, text=text)


# --------------------------------------------------------------------------------------- documents


def read_checks(value: Any, *, source: str) -> tuple[Check, ...]:
    """Read checks as users write them. Duplicates are removed.

    Args:
        value: A check, its text or dictionary, a function, common-sql's dictionaries, a list of these, or the same
            as JSON.
        source: Where the checks come from, for messages.

    Raises:
        ConfigurationError: A check is not valid.
    """
    items = [value] if isinstance(value, str | Mapping | Check) or callable(value) else value
    if items is None:
        return ()
    if not isinstance(items, list | tuple):
        raise ConfigurationError(f"{source}: checks are a list, not {_shown(items)}")
    try:
        found = tuple(dict.fromkeys(check for item in items for check in _read(item)))
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None
    if len(found) > MAX_CHECKS:
        raise ConfigurationError(f"{source}: these are {len(found)} checks, at most {MAX_CHECKS} are allowed")
    return found


def as_documents(value: Any) -> Any:
    """Return checks with each :class:`Check` replaced by its document, so that templates in it are rendered.

    Args:
        value: Checks as users write them, or a value that becomes checks when it is rendered.
    """
    if isinstance(value, Check) or callable(value):  # a template engine would call a function
        return (value if isinstance(value, Check) else python(value)).document()
    return [as_documents(item) for item in value] if isinstance(value, list | tuple) else value


def property_of(checks: Iterable[Check]) -> str:
    """Write checks as the value of the view's property."""
    return json.dumps([check.document() for check in checks], ensure_ascii=False)


def _read(item: Any) -> Iterable[Check]:
    if isinstance(item, Check):
        return (item,)
    if callable(item):
        return (python(item),)
    if isinstance(item, str):
        return _read_text(item)
    if not isinstance(item, Mapping) or not item or not all(isinstance(key, str) for key in item):
        raise ConfigurationError(f"{_shown(item)} is not a check")
    if all(isinstance(body, Mapping) and ("check_statement" in body or _is_columns(body)) for body in item.values()):
        return [check for key, body in item.items() for check in _common_sql(key, body)]
    return (_own(item),)


def _read_text(text: str) -> tuple[Check, ...]:
    if not _JSON.match(text):
        return (sql(text) if _QUERY.match(text) else condition(text),)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{_shown(text)} is not JSON") from None
    return read_checks(document, source="JSON")


def _is_columns(body: Mapping[str, Any]) -> bool:
    return bool(body) and all(key in COLUMN_CHECKS and isinstance(of, Mapping) for key, of in body.items())


def _common_sql(key: str, body: Mapping[str, Any]) -> Iterable[Check]:
    """Read the dictionaries of SQLTableCheckOperator and SQLColumnCheckOperator."""
    if "check_statement" in body:
        _refuse_unknown(body, ("check_statement", "partition_clause", "severity"), key)
        options = {"severity": body.get("severity", "error"), "where": body.get("partition_clause") or ""}
        yield condition(body["check_statement"], name=key, **options)
        return
    for what, of in body.items():
        name = f"{key}.{what}"
        _refuse_unknown(of, (*_COMPARISONS, "tolerance", "partition_clause", "severity"), name)
        limits = {word: of[word] for word in (*sorted(_COMPARISONS), "tolerance") if word in of}
        _check_comparison(limits, name)
        where = of.get("partition_clause") or ""
        yield _check(
            "column", name, of.get("severity", "error"), where, columns=(key,), text=what, limits=_limits(**limits)
        )


def _check_comparison(limits: Mapping[str, Any], name: str) -> None:
    words = [word for word in limits if word != "tolerance"]
    both = {"greater_than", "geq_to"} <= set(words) or {"less_than", "leq_to"} <= set(words)
    if not words or both or ("equal_to" in words and len(words) > 1):
        raise ConfigurationError(
            f"{name}: compare with equal_to, or with one of greater_than and geq_to, one of less_than and leq_to"
        )
    if "tolerance" in limits and any(isinstance(of, bool) or not isinstance(of, int | float) for of in limits.values()):
        raise ConfigurationError(f"{name}: a tolerance needs numbers only: {_shown(dict(limits))}")


def _own(item: Mapping[str, Any]) -> Check:
    kinds = [key for key in item if key not in _OPTIONS]
    if len(kinds) != 1 or kinds[0] not in _MAKERS:
        meant = did_you_mean(kinds[0], _MAKERS) if kinds else ""
        raise ConfigurationError(
            f"{_shown(dict(item))} is not a check: it must have one of {', '.join(_MAKERS)}, and may have "
            f"{', '.join(_OPTIONS)}; or be a dictionary of the common-sql provider's check operators{meant}"
        )
    options = {key: item[key] for key in _OPTIONS if key in item}
    kind, body = kinds[0], item[kinds[0]]
    try:
        made: Check = _MAKERS[kind](body, options)
    except (AttributeError, TypeError, KeyError, ValueError):
        raise ConfigurationError(f"check {kind}: {_shown(body)} with {_shown(options)} is not valid") from None
    return made


def _columns_of(body: Any) -> list[str]:
    return [body] if isinstance(body, str) else [*body]


_MAKERS: Mapping[str, Callable[[Any, dict[str, Any]], Check]] = {
    "not_null": lambda body, options: not_null(*_columns_of(body), **options),
    "unique": lambda body, options: unique(*_columns_of(body), **options),
    "accepted_values": lambda body, options: accepted_values(**body, **options),
    "row_count": lambda body, options: row_count(**body, **options),
    "row_count_change": lambda body, options: row_count_change(**body, **options),
    "condition": lambda body, options: condition(body, **options),
    "sql": lambda body, options: sql(body, **options),
    "python": lambda body, options: python(body, **options),
}


# ------------------------------------------------------------------------------------------- parts


def _check(kind: CheckKind, name: str, severity: Any, where: Any, **parts: Any) -> Check:
    made = Check(kind, name, severity, where=where, **parts)
    if not all(isinstance(text, str) for text in (name, where, made.text, *made.columns)) or not name.strip():
        raise ConfigurationError(f"check {kind}: names and SQL must be text: {_shown(made)}")
    if severity not in ("error", "warn"):
        meant = did_you_mean(severity, get_args(Severity))
        raise ConfigurationError(f"check {name!r}: severity is {severity!r}; it must be error or warn{meant}")
    if kind in ("not_null", "unique") and not made.columns:
        raise ConfigurationError(f"check {kind}: name a column")
    if kind in ("condition", "sql") and not made.text.strip():
        raise ConfigurationError(f"check {kind}: write its SQL")
    if kind in _LIMITS:
        _check_limits(made)
    if kind == "python" and not _FUNCTION.fullmatch(made.text):
        raise ConfigurationError(
            f"check {made.text!r}: a function is named module:function; one that is written within another, or a "
            "lambda, has no such name"
        )
    return replace(made, name=_brief(name))


def _check_limits(check: Check) -> None:
    limits = dict(check.limits)
    whole = (int,) if check.kind == "row_count" else (int, float)
    fine = all(type(value) in whole and value >= 0 for value in limits.values())  # type: ignore[operator]
    if not limits or not fine or limits.get("at_most_down", 0) > 1:  # type: ignore[operator]
        raise ConfigurationError(
            f"check {check.name!r}: {_shown(limits)}: give {' or '.join(_LIMITS[check.kind])}, "
            + ("a number of rows" if check.kind == "row_count" else "a share such as 0.2 (at_most_down up to 1)")
        )


def _refuse_unknown(body: Mapping[str, Any], known: Iterable[str], name: str) -> None:
    if unknown := sorted(set(body) - set(known)):
        raise ConfigurationError(f"{name}: this check has no {', '.join(unknown)}")


def _limits(**given: Any) -> tuple[tuple[str, Value], ...]:
    return tuple((key, _value(value, key)) for key, value in given.items() if value is not None)


def _value(value: Any, where: str) -> Value:
    """Return a value as JSON. Spark casts the text of a date or decimal to the type of the compared column."""
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ConfigurationError(f"{where}: {_shown(value)} is not a text, number, date or boolean")


def _named(kind: str, columns: tuple[str, ...]) -> str:
    return f"{kind}({', '.join(map(str, columns))})"


def _brief(text: str) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _MAX_NAME_LENGTH else f"{line[: _MAX_NAME_LENGTH - 1]}…"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
