# SPDX-License-Identifier: Apache-2.0
"""Layouts and kinds of catalogs are asked by few methods, and hardly ever by a flag.

A method counts if a layout answers it: a class that the modules of layouts derive from declares it, and it is abstract
there or one of them overrides it. A protocol counts if classes of layouts have all its members. A use of a flag counts
outside of the modules of layouts and catalogs: a Boolean attribute of a catalog, a constant of a layout, the class of
either, or whether a view has what only one layout has. Names do not matter: they are found by how they are declared.
``tests/docs/test_layouts.py`` refuses comparisons of layouts' names.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import airflow_mv.core.publish
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.catalog.layouts import LoadedStorage
from airflow_mv.core.publish.protocol import Change
from airflow_mv.core.publish.publications import LAYOUTS

SOURCE = Path(airflow_mv.__file__).parent
MAX_LAYOUT_METHODS = 24
MAX_FLAG_USES = 10
#: How a layout or a kind of catalog is implemented.
IMPLEMENTATIONS = {
    *(f"core/catalog/{name}.py" for name in ("layouts", "loaded", "catalog", "tables", "limits", "metastores")),
    *(f"extras/metastores/{name}.py" for name in ("entries", "glue", "hive")),
    *(f"core/publish/{name}.py" for name in STORED_LAYOUTS),
    "extras/maintenance/removal.py",
}
#: The attributes of a loaded view that it has in one layout only.
OF_ONE_LAYOUT = {"holder"}


def classes() -> list[type]:
    """Return the classes of the modules in which layouts may be implemented."""
    names = ["airflow_mv.core.catalog.layouts", "airflow_mv.core.catalog.loaded", "airflow_mv.extras.convert"]
    names += [f"airflow_mv.core.publish.{item.name}" for item in pkgutil.iter_modules(airflow_mv.core.publish.__path__)]
    found = (item for name in names for item in vars(importlib.import_module(name)).values() if inspect.isclass(item))
    return [item for item in dict.fromkeys(found) if item.__module__ in names]


def answered_by_layouts() -> dict[str, set[str]]:
    """Return the methods that layouts answer, by interface."""
    own = [item for item in classes() if not issubclass(item, Change)]
    found: dict[str, set[str]] = defaultdict(set)
    for item in own:
        base = next(one for one in reversed(item.__mro__) if one in own)
        if base is not item:
            found[base.__name__] |= vars(base).keys() & vars(item).keys()
            found[base.__name__] |= getattr(base, "__abstractmethods__", frozenset())
    for protocol in (item for item in own if getattr(item, "_is_protocol", False)):
        members = {name for name in (*vars(protocol), *inspect.get_annotations(protocol)) if not name.startswith("_")}
        if sum(all(hasattr(item, name) for name in members) for item in own if item is not protocol) > 1:
            found[protocol.__name__] |= members
    # A table is the same for all layouts; what ``abc`` and ``dataclasses`` add to each class is no answer.
    ignored = {*inspect.get_annotations(LoadedStorage), "_abc_impl"}
    own_names = {
        name: {item for item in methods - ignored if not item.startswith("__")} for name, methods in found.items()
    }
    return {name: methods for name, methods in own_names.items() if methods}


def flags() -> set[str]:
    """Return the names of Boolean attributes of a catalog, and of the constants of layouts."""
    tree = ast.parse((SOURCE / "core/catalog/catalog.py").read_text(encoding="utf-8"))
    catalog = next(item for item in ast.walk(tree) if getattr(item, "name", "") == "MaterializedViewCatalog")
    found = {
        item.target.attr if isinstance(item.target, ast.Attribute) else ast.unparse(item.target)
        for item in ast.walk(catalog)
        if isinstance(item, ast.AnnAssign) and ast.unparse(item.annotation) == "bool"
    }
    found |= {
        item.name
        for item in ast.walk(catalog)
        if isinstance(item, ast.FunctionDef) and item.returns is not None and ast.unparse(item.returns) == "bool"
        if "property" in map(ast.unparse, item.decorator_list)
    }
    layouts = (*STORED_LAYOUTS.values(), *map(type, LAYOUTS.values()))
    constants = {name for item in layouts for name, value in vars(item).items() if isinstance(value, bool | int)}
    return found | {name for name in constants if not name.startswith("__")}


def uses_of_flags(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield the expressions that ask for a layout or a kind of catalog."""
    kinds = {item.__name__ for item in classes() if issubclass(item, LoadedStorage)}
    kinds |= {f"{name}Catalog" for name in ("Sql", "Rest", "Hive", "Glue", "DynamoDb", "InMemory", "BigQueryMetastore")}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) if name in names:
                yield ast.unparse(node)
            case ast.Call(func=ast.Name("isinstance"), args=[asked, kind]):
                words = {item.id for item in ast.walk(kind) if isinstance(item, ast.Name)}
                if words & kinds or ast.unparse(asked).startswith("storage_place("):
                    yield ast.unparse(node)
            case ast.Compare(left=ast.Attribute(attr=name), comparators=[ast.Constant(value=None)]):
                yield from [ast.unparse(node)] if name in OF_ONE_LAYOUT else []


def test_layouts_answer_few_methods() -> None:
    found = answered_by_layouts()
    for name, methods in found.items():
        print(f"{name}: {len(methods)} methods, {', '.join(sorted(methods))}")
    assert {"LoadedStorage", "StorageLayout"} <= found.keys()
    assert sum(map(len, found.values())) <= MAX_LAYOUT_METHODS


def test_hardly_any_module_asks_for_a_layout_or_a_kind_of_catalog() -> None:
    names = flags()
    assert {"is_sql", "is_rest"} <= names
    found = {
        str(path.relative_to(SOURCE)): uses
        for path in sorted(SOURCE.rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in IMPLEMENTATIONS
        if (uses := [*uses_of_flags(ast.parse(path.read_text(encoding="utf-8")), names)])
    }
    for name, uses in found.items():
        print(f"{name}: {'; '.join(uses)}")
    assert sum(map(len, found.values())) <= MAX_FLAG_USES


def test_the_search_finds_uses_of_flags() -> None:
    asked = "if c.is_sql: pass\nisinstance(c, SqlCatalog)\nx = v.holder is None\nisinstance(s, (str, PointedStorage))"
    assert len([*uses_of_flags(ast.parse(asked), {"is_sql"})]) == 4
    assert [*uses_of_flags(ast.parse("c.sql\nisinstance(c, str)\nx is None\nc.is_sql = True"), {"is_sql"})] == []
