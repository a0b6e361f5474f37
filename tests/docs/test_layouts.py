# SPDX-License-Identifier: Apache-2.0
"""Only the implementations of layouts, and listed modules, distinguish layouts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_mv
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.publish.publications import LAYOUTS

SOURCE = Path(airflow_mv.__file__).parent
#: The implementations of the layouts.
ALLOWED = {"core/catalog/layouts.py", *(f"core/publish/{name}.py" for name in STORED_LAYOUTS)}
#: Attributes that are set in one layout only.
NAMES = ("storage_table", "storage_table_name")


def decisions_in(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose truth, presence, class or equality decides a branch."""
    for node in ast.walk(tree):
        match node:
            case ast.IfExp(test=test, body=ast.Call(func=ast.Name("str"), args=[shown])) if same(test, shown):
                pass  # an optional name in a message
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield test
            case ast.comprehension(ifs=found) | ast.BoolOp(values=found):
                yield from found
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield operand
            case ast.Compare(left=left, comparators=[right, *_]):
                # A name in a catalog is of the kind table or view.
                yield from () if isinstance(left, ast.Attribute) and left.attr == "kind" else (left, right)
            case ast.Call(func=ast.Name("isinstance"), args=[_, classes]):
                yield classes


def same(one: ast.expr, other: ast.expr) -> bool:
    return ast.unparse(one) == ast.unparse(other)


def distinguishes_layouts(test: ast.expr) -> bool:
    match test:
        case ast.Constant(value=str(text)):
            return text in STORED_LAYOUTS
        case ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.List(elts=parts):
            return any(map(distinguishes_layouts, parts))
        case ast.Attribute(attr=name):
            return name in NAMES or ast.unparse(test).endswith(("storage.name", "table.name", "loaded.name"))
        case ast.Name(id=name):
            return any(name.startswith(layout.capitalize()) for layout in STORED_LAYOUTS)
    return False


def decisions_about_layouts(text: str) -> list[str]:
    return sorted(ast.unparse(test) for test in decisions_in(ast.parse(text)) if distinguishes_layouts(test))


@pytest.mark.parametrize(
    "text",
    [
        "a.storage.name is None",
        "x if plan.storage_table is not None else y",
        "x if view.storage_table else y",
        "if not storage.name: pass",
        "[x for x in y if x.view.storage_table]",
        "x.storage_table and y",
        "old.storage_table != new.storage_table",
        "layout == 'registered'",
        "catalog.layouts == ('registered',)",
        "isinstance(storage, PointedStorage)",
        "isinstance(storage, (RegisteredStorage, str))",
    ],
)
def test_the_search_finds_decisions_about_layouts(text: str) -> None:
    assert decisions_about_layouts(text)


@pytest.mark.parametrize("text", ["state is None", "str(x.storage_table) if x.storage_table else None", "a == 'b'"])
def test_the_search_ignores_other_code(text: str) -> None:
    assert not decisions_about_layouts(text)


def test_no_other_module_checks_which_layout_a_view_has() -> None:
    found = {str(path.relative_to(SOURCE)): decisions_about_layouts(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {name: asked for name, asked in found.items() if asked and name not in ALLOWED} == {}


def test_each_layout_is_registered_for_storage_and_for_publication() -> None:
    assert STORED_LAYOUTS.keys() == LAYOUTS.keys()
    assert all(name == layout.layout for name, layout in STORED_LAYOUTS.items())
    assert all(name == layout.name for name, layout in LAYOUTS.items())
