# SPDX-License-Identifier: Apache-2.0
"""Split a GROUP BY clause into keys and grouping sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product

from sqlglot import exp

from airflow_mv.ivm.ir import Grouping
from airflow_mv.ivm.model import RefusedError
from airflow_mv.spec.reasons import Code

MAX_SETS = 64

_Sets = list[tuple[exp.Expr, ...]]


def grouping(group: exp.Group, key: Callable[[exp.Expr], exp.Expr]) -> Grouping:
    """Read a GROUP BY clause other than ``GROUP BY ALL``.

    Args:
        group: The clause.
        key: Resolves one written key.

    Raises:
        RefusedError: It has more than :data:`MAX_SETS` grouping sets, or an unknown form.
    """
    written = list(group.expressions)
    if group.args.get("totals") or group.args.get("all"):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "this form of GROUP BY is not supported")
    legacy = [*(group.args.get("rollup") or ()), *(group.args.get("cube") or ())]
    explicit = group.args.get("grouping_sets") or ()
    if legacy and not legacy[0].expressions:
        factors = [_rolled(legacy[0], [(item,) for item in written])]
    elif explicit and written:
        factors = [_sets(item) for item in explicit]
    else:
        factors = [_sets(item) for item in [*written, *legacy, *explicit]]
    plain = not legacy and not explicit and not any(isinstance(item, _COMPOSED) for item in written)
    return _numbered(factors, key, plain=plain)


_COMPOSED = (exp.GroupingSets, exp.Rollup, exp.Cube)


def _sets(item: exp.Expr) -> _Sets:
    if isinstance(item, exp.GroupingSets):
        return [chosen for inner in item.expressions for chosen in _sets(inner)]
    if isinstance(item, exp.Rollup | exp.Cube):
        return _rolled(item, [_tuple(inner) for inner in item.expressions])
    return [_tuple(item)]


def _rolled(item: exp.Expr, parts: Sequence[tuple[exp.Expr, ...]]) -> _Sets:
    lengths = range(len(parts), -1, -1)
    if isinstance(item, exp.Rollup):
        return [sum(parts[:length], ()) for length in lengths]
    if 2 ** len(parts) > MAX_SETS:
        raise _too_many()
    return [sum(chosen, ()) for length in lengths for chosen in combinations(parts, length)]


def _tuple(item: exp.Expr) -> tuple[exp.Expr, ...]:
    if isinstance(item, exp.Tuple):
        return tuple(item.expressions)
    return (item.unnest(),) if isinstance(item, exp.Paren) else (item,)


def _numbered(factors: Sequence[_Sets], key: Callable[[exp.Expr], exp.Expr], *, plain: bool) -> Grouping:
    keys: list[exp.Expr] = []
    numbered: list[list[tuple[int, ...]]] = []
    for factor in factors:
        numbered.append([tuple(_position(keys, key(item)) for item in chosen) for chosen in factor])
    count = 1
    for factor_sets in numbered:
        count *= len(factor_sets)
    if count > MAX_SETS:
        raise _too_many()
    sets = tuple(tuple(dict.fromkeys(sum(combined, ()))) for combined in product(*numbered))
    return Grouping(tuple(keys), None if plain else sets)


def _position(keys: list[exp.Expr], key: exp.Expr) -> int:
    if key not in keys:
        keys.append(key)
    return keys.index(key)


def _too_many() -> RefusedError:
    return RefusedError(Code.TOO_LARGE, f"GROUP BY has more than {MAX_SETS} grouping sets")
