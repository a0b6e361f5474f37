# SPDX-License-Identifier: Apache-2.0
"""Rewrite a query so that more of its refreshes are incremental. Pure.

A rewritten query is given only if two things are shown: it has the old columns in the old rows, which follows from the
normal forms of the two queries, and its refreshes are cheaper, which the prospects of both show.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import Token, TokenType, exp

from airflow_mv.core.ivm import IncrementalQuery, ir
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.sql.query import ParsedQuery, TextSpan, parse_query, splice
from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.explain.prospects import Forecast, QueryInputs, output_types, prospects

#: The type that replaces a floating-point argument of a sum; the sum is DECIMAL(37, 8).
_EXACT = "DECIMAL(27, 8)"
#: Reasons against a cheaper mode that more columns may remove.
_CURABLE = frozenset({Code.NO_VISIBLE_COUNT, Code.NO_KEYS})
_WORD = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class Advice:
    """A query that could replace the view's.

    Args:
        sql: The rewritten query.
        differs: How its result differs from the old one: more columns, a type, more rows.
        prospects: What a refresh of it would do, as for the old query.
    """

    sql: str
    differs: tuple[str, ...]
    prospects: tuple[Forecast, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "sql": self.sql,
            "differs": list(self.differs),
            "prospects": [item.to_dict() for item in self.prospects],
        }


@dataclass(frozen=True, slots=True)
class _Draft:
    """A changed query: edits of the text, and what they change in the result."""

    added: tuple[tuple[str, str], ...] = ()
    decimals: tuple[int, ...] = ()
    without_tail: bool = False


def advise(setting: QueryInputs, query: ParsedQuery, present: Sequence[Forecast]) -> Advice | None:
    """Return the least changed query with the cheapest refreshes; ``None`` if no rewriting helps.

    Args:
        setting: What is known about the base tables.
        present: What a refresh of it would do.
    """
    shape = _Shape.of(query, setting)
    if shape is None or not shape.may_help(present):
        return None
    search = _Search(setting, shape)
    best, found = None, tuple(present)
    for draft in shape.drafts():
        better = search.prospects(draft)
        if better is not None and _is_better(better, found):
            best, found = draft, better
            if all(_MODES.index(item.possible) <= _MODES.index(Mode.MERGE) for item in found):
                break
    if best is None:
        return None
    return search.advice(search.pruned(best, found))


_MODES = list(Mode)


def _is_better(found: Sequence[Forecast], than: Sequence[Forecast]) -> bool:
    pairs = [(_MODES.index(one.possible), _MODES.index(other.possible)) for one, other in zip(found, than, strict=True)]
    return all(one <= other for one, other in pairs) and any(one < other for one, other in pairs)


class _Search:
    """The drafts of one query that were examined, each with its prospects."""

    def __init__(self, setting: QueryInputs, shape: _Shape) -> None:
        self._setting, self._shape = setting, shape
        self._known: dict[_Draft, tuple[Forecast, ...] | None] = {}

    def prospects(self, draft: _Draft) -> tuple[Forecast, ...] | None:
        """Return what a refresh would do; ``None`` if the draft is not proven to have the old columns."""
        if draft not in self._known:
            self._known[draft] = self._examined(draft)
        return self._known[draft]

    def _examined(self, draft: _Draft) -> tuple[Forecast, ...] | None:
        try:
            rewritten = self._shape.written(draft)
        except InvalidQueryError:
            return None
        output = output_types(self._setting, rewritten)
        if isinstance(output, Reason) or not self._shape.is_proven(rewritten, output, draft):
            return None
        return prospects(self._setting, rewritten, output)

    def pruned(self, draft: _Draft, found: Sequence[Forecast]) -> _Draft:
        """Leave out each added column and each cast without which the modes stay."""
        wanted = [item.possible for item in found]
        for item in draft.added:
            fewer = replace(draft, added=tuple(other for other in draft.added if other != item))
            draft = fewer if self._modes(fewer) == wanted else draft
        for position in draft.decimals:
            fewer = replace(draft, decimals=tuple(other for other in draft.decimals if other != position))
            draft = fewer if self._modes(fewer) == wanted else draft
        return draft

    def _modes(self, draft: _Draft) -> list[Mode]:
        return [item.possible for item in self.prospects(draft) or ()]

    def advice(self, draft: _Draft) -> Advice | None:
        """Return a draft as advice."""
        rewritten, found = self._shape.written(draft), self.prospects(draft)
        output = output_types(self._setting, rewritten)
        if isinstance(output, Reason) or found is None:
            return None
        return Advice(rewritten.text, self._shape.differs(draft, output), found)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The outermost SELECT of a query, and the places in the text that can be edited.

    Args:
        setting: What is known about its base tables.
        output: Its columns, without the final ORDER BY and LIMIT.
        items: The span of each column in the SELECT list.
        list_end: Where the SELECT list ends.
        tail: Where a final ORDER BY with LIMIT begins; ``None`` if there is none that can be split off.
    """

    query: ParsedQuery
    setting: QueryInputs
    output: tuple[tuple[str, str | None], ...]
    items: tuple[TextSpan, ...]
    list_end: int
    tail: int | None
    old: IncrementalQuery = field(repr=False)

    @classmethod
    def of(cls, query: ParsedQuery, setting: QueryInputs) -> _Shape | None:
        """Find the places; ``None`` if the query is not one SELECT at its top."""
        select = query.tree
        if not isinstance(select, exp.Select) or select.args.get("from_") is None or select.args.get("distinct"):
            return None
        places = _places(query, len(select.expressions))
        if places is None:
            return None
        items, list_end, tail = places
        if tail is not None and not _orders_by_output(select):
            return None
        bare = query if tail is None else _reparsed(query, query.text[:tail].rstrip())
        output = output_types(setting, bare)
        if isinstance(output, Reason) or len(output) != len(items):
            return None
        assumed = tuple((name, kind or "string") for name, kind in output)
        old = IncrementalQuery.analyse(bare, setting.relations, output=assumed, views=setting.views)
        return None if isinstance(old, Reason) else cls(query, setting, output, items, list_end, tail, old)

    @property
    def select(self) -> exp.Select:
        """The outermost SELECT."""
        assert isinstance(self.query.tree, exp.Select)  # noqa: S101 (checked by ``of``)
        return self.query.tree

    def may_help(self, present: Sequence[Forecast]) -> bool:
        """Whether a refresh is expensive for a reason that a change of the query may remove."""
        codes = {reason.code for item in present for reason in item.reasons}
        return self.tail is not None or bool(codes & _CURABLE) or bool(self._float_sums())

    def drafts(self) -> Iterator[_Draft]:
        """Yield the changes that may help, the least ones first."""
        keys = self._hidden_keys()
        for decimals in dict.fromkeys([(), self._float_sums()]):
            counts = self._counts(decimals)
            for more in dict.fromkeys([(), counts[:1], counts, keys, (*keys, *counts)]):
                draft = _Draft(self._named(more), decimals, self.tail is not None)
                if draft != _Draft():
                    yield draft

    def _values(self) -> list[exp.Expr]:
        return [item.unalias() for item in self.select.expressions]

    def _hidden_keys(self) -> tuple[str, ...]:
        """Return the grouping keys that are not columns of the view."""
        group = self.select.args.get("group")
        keys = [] if group is None else group.expressions
        aliases = {item.alias.lower() for item in self.select.expressions if item.alias}
        shown = self._values()
        return tuple(
            key.sql(dialect="spark")
            for key in keys
            if key not in shown and not isinstance(key, exp.Literal) and key.name.lower() not in aliases
        )

    def _counts(self, decimals: Sequence[int]) -> tuple[str, ...]:
        """Return the counts and sums from which sums and averages follow."""
        values = self._values()
        found = ["count(*)"] if self.old.is_grouped else []
        for position, value in enumerate(values):
            if isinstance(value, exp.Sum | exp.Avg) and not isinstance(value.this, exp.Distinct):
                argument = value.this.sql(dialect="spark")
                argument = f"CAST({argument} AS {_EXACT})" if position in decimals else argument
                found += [f"sum({argument})"] if isinstance(value, exp.Avg) else []
                found.append(f"count({argument})")
        present = {value.sql(dialect="spark").lower() for value in values}
        return tuple(item for item in dict.fromkeys(found) if item.lower() not in present)

    def _float_sums(self) -> tuple[int, ...]:
        """Return the positions of sums of floating-point values."""
        return tuple(
            position
            for position, value in enumerate(self._values())
            if isinstance(value, exp.Sum)
            and not isinstance(value.this, exp.Distinct)
            and self.output[position][1] in ("float", "double")
        )

    def _named(self, added: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Return added columns with new names."""
        taken = {name.lower() for name, _ in self.output}
        named = []
        for text in added:
            stem = "row_count" if text == "count(*)" else _WORD.sub("_", text).strip("_").lower()[:40]
            name, number = stem, 2
            while name in taken:
                name, number = f"{stem}_{number}", number + 1
            taken.add(name)
            named.append((text, name))
        return tuple(named)

    def written(self, draft: _Draft) -> ParsedQuery:
        """Return the changed query.

        Raises:
            InvalidQueryError: It is not a query.
        """
        text = self.query.text
        edits: dict[TextSpan, str] = {}
        for position in draft.decimals:
            edits |= self._cast(position)
        if draft.added:
            comma = ",\n  " if "\n" in text[self.items[0][0] : self.list_end] else ", "
            listed = "".join(f"{comma}{value} AS {_name(name)}" for value, name in draft.added)
            edits[self.list_end, self.list_end] = listed
        if draft.without_tail and self.tail is not None:
            edits[self.tail, len(text)] = ""
        return _reparsed(self.query, splice(text, edits).rstrip())

    def _cast(self, position: int) -> Mapping[TextSpan, str]:
        """Return the edit that sums a column exactly."""
        start, end = self.items[position]
        inside = [token for token in self.query.tokens if start <= token.start < end]
        opening = next((at for at, token in enumerate(inside) if token.token_type == TokenType.L_PAREN), None)
        if opening is None:
            return {}
        closing = _closing(inside, opening)
        span = (inside[opening].end + 1, inside[closing].start)
        return {span: f"CAST({self.query.text[slice(*span)].strip()} AS {_EXACT})"}

    def is_proven(self, rewritten: ParsedQuery, output: Sequence[tuple[str, str | None]], draft: _Draft) -> bool:
        """Whether the changed query has the old columns, from the normal forms of both."""
        assumed, setting = [(name, kind or "string") for name, kind in output], self.setting
        new = IncrementalQuery.analyse(rewritten, setting.relations, output=assumed, views=setting.views)
        return isinstance(new, IncrementalQuery) and _gives_columns_of(new.tree, self.old.tree, draft.decimals)

    def differs(self, draft: _Draft, output: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
        """Return how the result of the changed query differs."""
        found = [f"one more column: {name}, {text}" for text, name in draft.added]
        for position in draft.decimals:
            name, kind = output[position]
            found.append(f"column {name} is {kind}, not {self.output[position][1]}: each value is rounded to 8 decimal "
                         "places, and the sum is exact")  # fmt: skip
        if draft.without_tail and self.tail is not None:
            found.append(
                f"the view has all rows: read it with SELECT * FROM {self.setting.view} {self.query.text[self.tail :]}"
            )
        return tuple(found)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else quote(name)


def _reparsed(query: ParsedQuery, text: str) -> ParsedQuery:
    return parse_query(
        text, view=query.view, default_catalog=query.default_catalog, default_namespace=query.default_namespace
    )


def _orders_by_output(select: exp.Select) -> bool:
    """Whether a reader of the view can order by the same columns."""
    names = {item.alias_or_name.lower() for item in select.expressions}
    order = select.args.get("order")
    values = [item.this for item in order.expressions] if order is not None else []
    return all(isinstance(value, exp.Column) and not value.table and value.name.lower() in names for value in values)


def _places(query: ParsedQuery, columns: int) -> tuple[tuple[TextSpan, ...], int, int | None] | None:
    """Return the spans of the columns of the outermost SELECT, their end, and its final ORDER BY with LIMIT."""
    top = list(_outermost(query.tokens))
    start = next((at for at in reversed(range(len(top))) if top[at].token_type == TokenType.SELECT), None)
    if start is None:
        return None
    rest = top[start + 1 :]
    end = next((token for token in rest if token.token_type == TokenType.FROM), None)
    if end is None:
        return None
    commas = [token for token in rest if token.token_type == TokenType.COMMA and token.start < end.start]
    starts = [top[start].end + 1, *(token.end + 1 for token in commas)]
    last = max(token.end + 1 for token in query.tokens if token.end < end.start)
    items = tuple(zip(starts, [*(token.start for token in commas), last], strict=True))
    limits = [token for token in rest if token.token_type == TokenType.LIMIT]
    orders = [token.start for token in rest if token.token_type == TokenType.ORDER_BY]
    tail = min(orders, default=limits[0].start) if limits else None
    return (items, last, tail) if len(items) == columns else None


def _outermost(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens outside of all parentheses."""
    depth = 0
    for token in tokens:
        depth -= token.token_type == TokenType.R_PAREN
        if depth == 0:
            yield token
        depth += token.token_type == TokenType.L_PAREN


def _closing(tokens: Sequence[Token], opening: int) -> int:
    depth = 0
    for at in range(opening, len(tokens)):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[at].token_type, 0)
        if depth == 0:
            return at
    return len(tokens) - 1


def _gives_columns_of(mine: ir.Tree, its: ir.Tree, cast: Collection[int]) -> bool:
    """Whether the first columns of a query in normal form are all columns of another one, in the same rows.

    The answer follows from the normal forms: they differ in further columns only. ``False`` if they differ in
    anything else.

    Args:
        mine: A query of the same base tables as the other one.
        its: The other one.
        cast: Positions of columns that are one call, whose argument the first query casts.
    """
    if not isinstance(mine, ir.Block) or not isinstance(its, ir.Block) or mine.distinct:
        return mine == its
    kept = mine.outputs[: len(its.outputs)]
    outputs = tuple(_without_cast(item) if at in cast else item for at, item in enumerate(kept))
    return replace(mine, outputs=outputs) == its


def _without_cast(output: ir.Output) -> ir.Output:
    value = output.value.copy()
    if isinstance(value.this, exp.Cast):
        value.set("this", value.this.this)
    return replace(output, value=value)
