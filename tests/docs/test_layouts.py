# SPDX-License-Identifier: Apache-2.0
"""Which layout a view has is known to the implementations of layouts, and asked by nobody else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_mv
from airflow_mv.catalog import STORED_LAYOUTS
from airflow_mv.publish.layouts import LAYOUTS

SOURCE = Path(airflow_mv.__file__).parent
#: Implementations of the layouts; what only shows a name; and what is still to be given to the layouts.
ALLOWED = {
    *(f"{package}/{name}.py" for package in ("catalog", "publish") for name in STORED_LAYOUTS),
    # Creation, maintenance and pins still tell the layouts apart themselves: each entry is one to remove.
    *("maintenance/repair.py", "maintenance/undo.py"),
    *("publish/storage_change.py", "publish/view_change.py", "maintenance/clock.py"),
    *("refresh/create.py", "refresh/pins.py", "lineage/facts.py"),
}


def compared_with_none(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            right = node.comparators[0]
            if isinstance(right, ast.Constant) and right.value is None:
                yield ast.unparse(node.left)


def tells_layouts(expression: str) -> bool:
    last = expression.rpartition(".")[2]
    return last in ("storage_table", "storage_table_name") or expression.endswith(("storage.name", "table.name"))


@pytest.mark.parametrize(
    ("text", "found"),
    [("a.storage.name is None", True), ("x if plan.storage_table is not None else y", True), ("state is None", False)],
)
def test_the_search_finds_what_it_is_for(text: str, found: bool) -> None:
    assert any(map(tells_layouts, compared_with_none(ast.parse(text)))) == found


def test_no_module_asks_which_layout_a_view_has() -> None:
    asking = {
        str(path.relative_to(SOURCE)): sorted(filter(tells_layouts, compared_with_none(ast.parse(path.read_text()))))
        for path in SOURCE.rglob("*.py")
    }
    assert {name: found for name, found in asking.items() if found and name not in ALLOWED} == {}


def test_each_layout_is_registered_for_what_is_stored_and_for_what_is_published() -> None:
    assert STORED_LAYOUTS.keys() == LAYOUTS.keys()
    assert all(name == layout.name for layouts in (STORED_LAYOUTS, LAYOUTS) for name, layout in layouts.items())
