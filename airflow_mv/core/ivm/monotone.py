# SPDX-License-Identifier: Apache-2.0
"""Map bounds of a column through an expression, and conditions on the expression back to the column.

An expression of functions that never decrease has its bounds at the bounds of its column: ``to_date(at)``,
``date_trunc('month', at)``, and each in the other. from_utc_timestamp() decreases where clocks are set back, and
to_utc_timestamp() where they are put forward. So each function is known by two functions that never decrease: one of
values at or below its own, and one of values at or above.

Values are integers: days since the epoch for dates, µs since the epoch for timestamps. A session's time zone is UTC, so
that a timestamp with a zone and one without have the same number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from typing import Literal
from zoneinfo import ZoneInfo

from sqlglot import exp

from airflow_mv.core.spec.times import parse_timestamp

Kind = Literal["date", "timestamp", "number", "text"]
#: Returns the Spark type of a column; ``None`` if unknown.
TypeOf = Callable[[exp.Column], str | None]
Map = Callable[[int], int]

_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
_HOUR, _DAY = 3600 * _SECOND, 86_400 * _SECOND
#: The days that are computed with: the years 1 to 9999 without the days at their ends, which a zone may shift away.
_DAYS = (date(1, 1, 3).toordinal() - _EPOCH_DAY, date(9999, 12, 29).toordinal() - _EPOCH_DAY)
#: Lowest and highest value of each kind. Values outside of it are treated as the nearest one within.
_DOMAINS: Mapping[Kind, tuple[int, int]] = {
    "date": _DAYS,
    "timestamp": (_DAYS[0] * _DAY, _DAYS[1] * _DAY),
    "number": (-(2**63), 2**63 - 1),
}
_KINDS: Mapping[str, Kind] = {
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "int": "number",
    "bigint": "number",
}
#: No zone is further from UTC.
_FURTHEST = 18 * _HOUR
_REGION, _OFFSET = re.compile(r"[A-Za-z_]+(/[A-Za-z0-9_+-]+)+"), re.compile(r"([+-])(\d\d):([0-5]\d)")
_LENGTH = re.compile(r"(?:interval )?(\d{1,9}) (week|day|hour|minute|second|millisecond|microsecond)s?")
_LENGTHS = {
    "week": 7 * _DAY, "day": _DAY, "hour": _HOUR, "minute": 60 * _SECOND, "second": _SECOND, "millisecond": 1000,
    "microsecond": 1,
}  # fmt: skip
#: Letters of a format whose text sorts as the times do, in order.
_LETTERS = ("yyyy", "MM", "dd", "HH", "mm", "ss")
#: The ends of their values in ``2024-06-01 05:00:00``.
_ENDS = (4, 7, 10, 13, 16, 19)
_TOKEN = re.compile(r"yyyy|MM|dd|HH|mm|ss|[0-9]+|[-/:._ ]|'[^']*'")
_ISO_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?")


@dataclass(frozen=True, slots=True)
class Step:
    """A function of one value: of the kind of its result, between two functions that never decrease."""

    kind: Kind
    low: Map
    high: Map
    #: Writes a value, for the kind ``text``.
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Monotone:
    """An expression as a function of its only column.

    Args:
        steps: The functions, the innermost first.
    """

    column: exp.Column
    source: Kind
    steps: tuple[Step, ...] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the expression's value."""
        return self.steps[-1].kind if self.steps else self.source

    def then(self, step: Step) -> Monotone:
        """Return the function with one more step."""
        return Monotone(self.column, self.source, (*self.steps, step))

    def image(self, low: int, high: int) -> tuple[int, int]:
        """Return bounds of the expression for the rows whose column is within bounds."""
        return self._low(low), self._high(high)

    def preimage(self, operator: str, value: int | str) -> tuple[int | None, int | None]:
        """Return bounds of the column in all rows for which a comparison of the expression is true.

        Args:
            operator: ``=``, ``<``, ``<=``, ``>`` or ``>=``.
            value: The other side, of the expression's kind.

        Returns:
            The lowest value, and the one after the highest. ``None``: there is no such bound.
        """
        first = after = None
        if operator in ("=", ">", ">="):
            first = self._first(lambda at: _passes(self._written(self._high(at)), value, above=operator == ">"))
        if operator in ("=", "<", "<="):
            after = self._first(lambda at: _passes(self._written(self._low(at)), value, above=operator != "<"))
        lowest, highest = _DOMAINS[self.source]
        if operator in ("=", ">", ">=") and first is None:
            first = highest  # further values are beyond all that is computed with
        return None if first == lowest else first, after

    def _first(self, passes: Callable[[int], bool]) -> int | None:
        """Return the first value of the column from which on a test passes; ``None`` if it passes for none."""
        low, high = _DOMAINS[self.source]
        if not passes(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if passes(middle) else (middle + 1, high)
        return low

    def _low(self, value: int) -> int:
        kind = self.source
        for step in self.steps:
            kind, value = step.kind, step.low(_clamped(value, kind))
        return value

    def _high(self, value: int) -> int:
        kind = self.source
        for step in self.steps:
            kind, value = step.kind, step.high(_clamped(value, kind))
        return value

    def _written(self, value: int) -> int | str:
        return _formatted(value, self.steps[-1].pattern) if self.kind == "text" else value


def _passes(found: int | str, value: int | str, *, above: bool) -> bool:
    if isinstance(found, str) or isinstance(value, str):
        return str(found) > str(value) if above else str(found) >= str(value)
    return found > value if above else found >= value


def _clamped(value: int, kind: Kind) -> int:
    low, high = _DOMAINS["timestamp" if kind == "text" else kind]
    return min(max(value, low), high)


def monotone(value: exp.Expr, type_of: TypeOf) -> Monotone | None:
    """Return an expression as a function of its only column; ``None`` if it is not known to be monotone.

    Args:
        value: The expression.
        type_of: Returns the type of its column.
    """
    value = value.unnest()
    if isinstance(value, exp.Column):
        kind = _KINDS.get(type_of(value) or "")
        return None if kind is None else Monotone(value, kind)
    call = _call(value)
    if call is None:
        return None
    inner = monotone(call.argument, type_of)
    return None if inner is None else _applied(inner, call.name, call.options)


def constant(kind: Kind, text: str, literal: str) -> int | str | None:
    """Return a literal as a value that an expression of a kind is compared with; ``None`` if Spark casts otherwise.

    Args:
        kind: The expression's kind.
        text: The literal's text.
        literal: The literal's kind: ``number``, ``text``, ``date`` or ``timestamp``.
    """
    if kind == "text":
        return text if literal == "text" else None
    if kind == "number":
        return int(text) if literal == "number" and re.fullmatch(r"-?\d{1,18}", text) else None
    if literal == "number" or not (_ISO_TIME.fullmatch(text) or re.fullmatch(r"\d{4}-\d\d-\d\d", text)):
        return None
    if kind == "date" and (literal == "timestamp" or len(text) > len("2024-06-01")):
        return None
    found = _parsed(text)
    lowest, highest = _DAYS
    inside = found is not None and (lowest + 2) * _DAY < found < (highest - 2) * _DAY
    return None if found is None or not inside else found // _DAY if kind == "date" else found


def as_timestamp(found: Monotone) -> Monotone:
    """Return a date as Spark casts it to a timestamp, as it does to compare it with one."""
    return found.then(_same("timestamp", lambda at: at * _DAY))


def text_of(value: int, kind: Kind) -> str:
    """Return a value of a column as the text of a literal."""
    if kind == "number":
        return str(value)
    if kind == "date":
        return date.fromordinal(value + _EPOCH_DAY).isoformat()
    return _moment(value).replace(tzinfo=None).isoformat(" ")


def moment_of(value: int, kind: Kind) -> datetime:
    """Return a date or a timestamp as an aware time in UTC: for a date, the start of its day."""
    return _moment(_clamped(value, kind) * (_DAY if kind == "date" else 1))


def value_of(found: object) -> int | None:
    """Return a date or an aware or naive timestamp (of UTC) as a number; ``None`` if it is neither."""
    if isinstance(found, datetime):
        return (found.replace(tzinfo=found.tzinfo or UTC) - _EPOCH) // _MICROSECOND
    return found.toordinal() - _EPOCH_DAY if isinstance(found, date) else None


# ---------------------------------------------------------------------------------- what is called
@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    argument: exp.Expr
    options: tuple[str, ...] = ()


def _call(node: exp.Expr) -> _Call | None:
    """Return a function with one argument that is no literal, as Spark names it."""
    if isinstance(node, exp.Cast):
        to = node.to.this
        name = "to_date" if to == exp.DType.DATE else "to_timestamp" if to in _TIMESTAMPS else None
        return _Call(name, node.this) if name else None
    if isinstance(node, exp.Anonymous):
        return _anonymous(node.name.lower(), node.expressions)
    if isinstance(node, exp.Dot) and isinstance(node.this, exp.Anonymous):
        found = _call(node.this) if node.this.name.lower() == "window" else None
        return found and _Call(found.name, found.argument, (node.expression.name.lower(), *found.options))
    if isinstance(node, exp.Add | exp.Sub):
        return _shift(node)
    return _named(node)


_TIMESTAMPS = frozenset({exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ})
#: Functions with a class of their own in sqlglot, and the arguments that follow the first one.
_CLASSES: Mapping[type[exp.Expr], tuple[str, tuple[str, ...]]] = {
    exp.AtTimeZone: ("from_utc_timestamp", ("zone",)),
    exp.FromTimeZone: ("to_utc_timestamp", ("zone",)),
    exp.TsOrDsAdd: ("date_add", ("expression",)),
    exp.LastDay: ("last_day", ()),
    exp.TsOrDsToDate: ("to_date", ()),
    exp.DateFromUnixDate: ("date_from_unix_date", ()),
    exp.UnixSeconds: ("unix_seconds", ()),
    exp.UnixMillis: ("unix_millis", ()),
    exp.UnixMicros: ("unix_micros", ()),
}


def _named(node: exp.Expr) -> _Call | None:
    if isinstance(node, exp.ConvertTimezone):
        source, target = node.args.get("source_tz"), _literal(node.args["target_tz"])
        zones = ("UTC" if source is None else _literal(source), target)
        return _Call("convert_timezone", node.args["timestamp"], _all(zones)) if None not in zones else None
    if isinstance(node, exp.Year):
        return _Call("year", node.this)
    name, keys = _CLASSES.get(type(node), ("", ()))
    other = set(node.args) - {"this", "unit", "safe", *keys}
    unit = node.args.get("unit")
    if not name or any(node.args[key] for key in other) or (unit is not None and unit.name.upper() != "DAY"):
        return None
    options = tuple(_literal(node.args[key]) for key in keys)
    return None if None in options else _Call(name, node.this, _all(options))


def _anonymous(name: str, arguments: Sequence[exp.Expr]) -> _Call | None:
    at = 1 if name == "date_trunc" else 0
    if len(arguments) <= at:
        return None
    options = tuple(_literal(item) for place, item in enumerate(arguments) if place != at)
    return None if None in options else _Call(name, arguments[at], _all(options))


def _shift(node: exp.Add | exp.Sub) -> _Call | None:
    left, right = node.this, node.expression
    if isinstance(node, exp.Add) and isinstance(left, exp.Interval):
        left, right = right, left
    if not isinstance(right, exp.Interval) or right.this is None or right.args.get("unit") is None:
        return None
    number, unit = _literal(right.this), right.args["unit"].name.lower().rstrip("s")
    if number is None or not re.fullmatch(r"-?\d{1,9}", number) or unit not in _LENGTHS:
        return None
    sign = 1 if isinstance(node, exp.Add) else -1
    return _Call("shift", left, (str(sign * int(number)), unit))


def _literal(node: exp.Expr) -> str | None:
    node = node.unnest()
    if isinstance(node, exp.Neg):
        inner = _literal(node.this)
        return None if inner is None else f"-{inner}"
    return str(node.this) if isinstance(node, exp.Literal) else None


def _all(options: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(item for item in options if item is not None)


# ------------------------------------------------------------------------------------- the functions
def _applied(inner: Monotone, name: str, options: tuple[str, ...]) -> Monotone | None:
    """Return a function of an expression, whose argument Spark casts first."""
    wanted = _ARGUMENTS.get(name)
    if name == "shift" and inner.kind == "date" and options[1] == "day":
        return inner.then(_days(int(options[0])))
    if name in ("to_date", "to_timestamp"):
        return _cast(inner, "date" if name == "to_date" else "timestamp", options)
    if wanted is None or (wanted == "number") != (inner.kind == "number"):
        return None
    cast = inner if inner.kind == wanted else _cast(inner, wanted, ())
    try:
        return None if cast is None else cast.then(_FUNCTIONS[name](*options))
    except (TypeError, ValueError, LookupError, OSError):
        return None  # a number of arguments, a unit, a zone or a length that is not known


def _cast(inner: Monotone, to: Kind, options: tuple[str, ...]) -> Monotone | None:
    if inner.kind == "text":
        back = _read_back(inner.steps[-1].pattern, to, options)
        return None if back is None else inner.then(back)
    if options or inner.kind == "number":
        return None
    if inner.kind == to:
        return inner
    return inner.then(_same("date", lambda at: at // _DAY)) if to == "date" else as_timestamp(inner)


def _same(kind: Kind, function: Map, pattern: str = "") -> Step:
    return Step(kind, function, function, pattern)


def _days(number: int) -> Step:
    return _same("date", lambda at: at + number)


def _added(number: str, unit: str) -> Step:
    length = int(number) * _LENGTHS[unit]
    return _same("timestamp", lambda at: at + length)


_LARGE_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mm", "mon"), "month"),
    "week": "week",
}


def _start_of(day: int, unit: str) -> int:
    """Return the first day of the year, quarter, month or week of a day."""
    if unit == "week":
        return day - (day + 3) % 7  # the first day was a Thursday
    found = date.fromordinal(day + _EPOCH_DAY)
    month = {"year": 1, "quarter": (found.month - 1) // 3 * 3 + 1}.get(unit, found.month)
    return date(found.year, month, 1).toordinal() - _EPOCH_DAY


def _trunc(unit: str) -> Step:
    return _same("date", partial(_start_of, unit=_LARGE_UNITS[unit.lower()]))


def _date_trunc(unit: str) -> Step:
    name = unit.lower()
    if name in _LARGE_UNITS:
        return _same("timestamp", lambda at: _start_of(at // _DAY, _LARGE_UNITS[name]) * _DAY)
    length = _LENGTHS["day" if name == "dd" else name]
    return _same("timestamp", lambda at: at - at % length)


def _last_day() -> Step:
    def last(day: int) -> int:
        first = date.fromordinal(_start_of(day, "month") + _EPOCH_DAY)
        following = date(first.year + first.month // 12, first.month % 12 + 1, 1)
        return following.toordinal() - 1 - _EPOCH_DAY

    return _same("date", lambda day: last(min(day, _DAYS[1] - 31)))


def _window(part: str, length: str, slide: str = "", offset: str = "0 seconds") -> Step:
    """Return the start or the end of the windows of a time: if they overlap, of the first and of the last of them."""
    size, step, begin = _length(length), _length(slide or length), _length(offset) if offset else 0
    if part not in ("start", "end") or not 0 < step <= size:
        raise ValueError(part)
    end = size if part == "end" else 0

    def last(at: int) -> int:
        return at - (at - begin) % step + end

    return Step("timestamp", lambda at: last(at - size) + step, last)


def _length(text: str) -> int:
    match = _LENGTH.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _LENGTHS[match[2]]


# ------------------------------------------------------------------------------------- time zones
def _zone(text: str) -> tzinfo:
    """Return a time zone that Spark surely reads in the same way."""
    if text in ("UTC", "GMT", "Z"):
        return UTC
    if match := _OFFSET.fullmatch(text):
        length = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(length if match[1] == "+" else -length)
    if _REGION.fullmatch(text) is None:
        raise ValueError(text)
    return ZoneInfo(text)


def _zoned(zone: str, *, local: bool) -> Step:
    """Return a change of the clock: from UTC to that of a zone, or back if ``local``."""
    place = _zone(zone)

    def own(at: int) -> int:
        return at + _offset(place, at, local=local)

    def low(at: int) -> int:
        if at < 0:  # sources of rules differ before 1970
            return at - _FURTHEST
        return min([own(at), *(own(change) for change in _near(place, at, local=local) if change > at)])

    def high(at: int) -> int:
        found = [own(change - 1) for change in _near(place, at, local=local) if change <= at]
        return max(own(at), *found, min(at, 0) + _FURTHEST)

    return Step("timestamp", low, high)


def _converted(source: str, target: str) -> Step:
    first, second = _zoned(source, local=True), _zoned(target, local=False)
    return Step("timestamp", lambda at: second.low(first.low(at)), lambda at: second.high(first.high(at)))


def _offset(zone: tzinfo, at: int, *, local: bool) -> int:
    """Return by how many µs a clock changes. The first of two times counts where clocks are set back, as in Java."""
    moment = _moment(_clamped(at, "timestamp"))
    own = moment.replace(tzinfo=zone) if local else moment.astimezone(zone)
    offset = (own.utcoffset() or timedelta()) // _MICROSECOND
    return -offset if local else offset


def _near(zone: tzinfo, at: int, *, local: bool) -> list[int]:
    """Return when the offset changes, from two days before a time to two days after it."""
    day = at // _DAY
    return [change for number in range(day - 2, day + 3) for change in _changes(zone, number, local)]


@lru_cache(maxsize=20_000)
def _changes(zone: tzinfo, day: int, local: bool) -> tuple[int, ...]:  # noqa: FBT001 (a key of the cache)
    """Return when the offset changes within a day."""
    found = []
    offset = partial(_offset, zone, local=local)
    if offset(day * _DAY - 1) == offset((day + 1) * _DAY - 1):
        return ()
    for start in range(day * _DAY, (day + 1) * _DAY, _HOUR):
        low, high = start - 1, start + _HOUR - 1
        if offset(low) != offset(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if offset(middle) != offset(low) else (middle, high)
            found.append(high)
    return tuple(found)


def _moment(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)


# ----------------------------------------------------------------------------------------- texts
def _date_format(pattern: str) -> Step:
    tokens = _TOKEN.findall(pattern)
    letters = tuple(token for token in tokens if token in _LETTERS)
    if "".join(tokens) != pattern or not letters or letters != _LETTERS[: len(letters)]:
        raise ValueError(pattern)
    return _same("text", lambda at: at, pattern)


def _formatted(at: int, pattern: str) -> str:
    moment = _moment(_clamped(at, "timestamp"))
    values = (moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second)
    known = {letters: f"{value:0{len(letters)}}" for letters, value in zip(_LETTERS, values, strict=True)}
    return "".join(known.get(token, token.strip("'")) for token in _TOKEN.findall(pattern))


def _read_back(pattern: str, to: Kind, options: tuple[str, ...]) -> Step | None:
    """Return the cast of a formatted time to a date or a timestamp.

    Args:
        pattern: The format of the text.
        to: ``date`` or ``timestamp``.
        options: The format by which it is read, if one is given.

    Returns:
        ``None`` if it is read by another format, or has none of ISO 8601.
    """
    tokens = _TOKEN.findall(pattern)
    if options == (pattern,) and not any(token.isdigit() for token in tokens):
        pattern = "yyyy-MM-dd HH:mm:ss"[: _ENDS[sum(token in _LETTERS for token in tokens) - 1]]
        pattern += "-01-01 00:00:00"[len(pattern) - 4 :]
    elif options:
        return None
    sample = _formatted(0, pattern)
    is_time = to == "timestamp" or options
    if not (_ISO_DATE.fullmatch(sample) or (is_time and _ISO_TIME.fullmatch(sample))) or _parsed(sample) is None:
        return None

    def back(at: int) -> int:
        found = _parsed(_formatted(at, pattern)) or 0
        return found // _DAY if to == "date" else found

    return _same(to, back)


def _parsed(text: str) -> int | None:
    """Return a date or time in ISO 8601, in µs; ``None`` if there is no such day or time."""
    try:
        return value_of(parse_timestamp(text + {4: "-01-01", 7: "-01"}.get(len(text), "")))
    except ValueError:
        return None


_FUNCTIONS: Mapping[str, Callable[..., Step]] = {
    "trunc": _trunc,
    "date_trunc": _date_trunc,
    "last_day": _last_day,
    "date_add": lambda number: _days(int(number)),
    "date_sub": lambda number: _days(-int(number)),
    "shift": _added,
    "window": _window,
    "from_utc_timestamp": partial(_zoned, local=False),
    "to_utc_timestamp": partial(_zoned, local=True),
    "convert_timezone": _converted,
    "date_format": _date_format,
    "year": lambda: _same("number", lambda day: date.fromordinal(day + _EPOCH_DAY).year),
    "unix_date": lambda: _same("number", lambda day: day),
    "unix_seconds": lambda: _same("number", lambda at: at // _SECOND),
    "unix_millis": lambda: _same("number", lambda at: at // 1000),
    "unix_micros": lambda: _same("number", lambda at: at),
    "timestamp_seconds": lambda: _same("timestamp", lambda number: number * _SECOND),
    "timestamp_millis": lambda: _same("timestamp", lambda number: number * 1000),
    "timestamp_micros": lambda: _same("timestamp", lambda number: number),
    "date_from_unix_date": lambda: _same("date", lambda number: number),
}
_OF_DATES = ("trunc", "last_day", "date_add", "date_sub", "year", "unix_date")
_OF_NUMBERS = ("timestamp_seconds", "timestamp_millis", "timestamp_micros", "date_from_unix_date")
#: The kind of each function's argument. Spark casts a date to a timestamp, or a timestamp to a date.
_ARGUMENTS: Mapping[str, Kind] = {
    **dict.fromkeys(_FUNCTIONS, "timestamp"),
    **dict.fromkeys(_OF_DATES, "date"),
    **dict.fromkeys(_OF_NUMBERS, "number"),
}
