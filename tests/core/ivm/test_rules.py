# SPDX-License-Identifier: Apache-2.0
"""Each rule by one example: a view, a change, and the generated statements.

A fixture's statements are compared with the generated ones, and executed. After a change of the
package, ``WRITE_FIXTURES=1 pytest tests/core/ivm/test_rules.py`` writes them again.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from pathlib import Path

import pytest
import sqlglot

from airflow_mv.core.ivm import Appended, IncrementalQuery, Merged, Replaced
from airflow_mv.core.spec.reasons import Reason
from tests.core.ivm.lab import STRATEGIES, Change, Lab, Row, query_at
from tests.core.ivm.queries import TABLES

FOLDER = Path(__file__).parent / "fixtures"
FIXTURES = sorted(FOLDER.glob("*.sql"))
GIVEN = ("view", "before", "after")


def read(path: Path) -> dict[str, str]:
    """Return the sections of a fixture; the first is its title."""
    sections: dict[str, str] = {}
    for part in path.read_text().split("\n-- "):
        name, _, text = part.partition("\n")
        sections["title" if not sections else name] = text.strip() if sections else part.removeprefix("-- ").strip()
    return sections


def rows(text: str) -> dict[str, list[Row]]:
    """Read lines such as ``r: (1, 2, NULL), (3, 4, 5)``; other tables are empty."""
    found: dict[str, list[Row]] = {table.name: [] for table in TABLES}
    for line in text.splitlines():
        name, _, values = line.partition(":")
        found[name] = list(ast.literal_eval(f"[{values.replace('NULL', 'None')}]"))
    return found


def statements(query: IncrementalQuery | Reason) -> dict[str, str]:
    """Return the statements of each strategy for a query, or the reason against the strategy."""
    if isinstance(query, Reason):
        return {"refused": f"{query.code}: {query.message}"}
    plans = (query.append(), query.merge(), query.merge_rows(), query.replace_keys())
    return {name: _written(plan) for name, plan in zip(STRATEGIES, plans, strict=True)}


def _written(plan: Appended | Merged | Replaced | Reason) -> str:
    if isinstance(plan, Reason):
        return f"{plan.code}: {plan.message}"
    if isinstance(plan, Merged):
        return f"keys: {', '.join(plan.keys)}\n{_pretty(plan.signed)};\n{_pretty(plan.combine('stored', 'delta'))}"
    if not isinstance(plan, Replaced):
        return ";\n".join(map(_pretty, plan.terms)) or "nothing"
    text = f"keys: {', '.join(plan.keys)}\n{_pretty(plan.affected)}"
    for constant in plan.constants:
        text += f";\nconstant:\n{_pretty(constant)}"
    return text


def _pretty(sql: str) -> str:
    return sqlglot.transpile(sql, read="spark", write="spark", pretty=True)[0]


def _write(path: Path, sections: dict[str, str], found: dict[str, str]) -> None:
    text = f"-- {sections['title']}\n"
    for name, value in [*((name, sections[name]) for name in GIVEN), *found.items()]:
        text += f"-- {name}\n{value}\n"
    path.write_text(text)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_rule_generates_the_statements_of_its_fixture(path: Path) -> None:
    """The fixtures show each rule to a reader, and show each change of a rule."""
    sections = read(path)
    lab = Lab(TABLES)
    query = lab.analysed(sections["view"], Change(rows(sections["before"]), rows(sections["after"])))
    found = statements(query)
    if os.environ.get("WRITE_FIXTURES"):
        _write(path, sections, found)
    expected = {name: value for name, value in read(path).items() if name not in ("title", *GIVEN)}
    assert found == expected


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_generated_statements_equal_the_recompute(path: Path) -> None:
    """This holds for each strategy that is not refused."""
    sections = read(path)
    lab = Lab(TABLES)
    query = lab.analysed(sections["view"], Change(rows(sections["before"]), rows(sections["after"])))
    if isinstance(query, Reason):
        return
    stored = Counter(lab.run(query_at(query, "old")))
    expected, results = lab.refresh(query, dict.fromkeys(STRATEGIES, stored))
    for name, result in results.items():
        assert isinstance(result, Reason) or result == expected, (name, result)


def test_every_rule_has_a_fixture() -> None:
    """Each rule has a fixture but R13 (QUALIFY), which Spark does not have."""
    shown = {path.stem.split("-")[0] for path in FIXTURES}
    assert {f"r{number:02}" for number in range(18) if number != 13} <= shown
