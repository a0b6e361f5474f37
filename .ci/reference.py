# SPDX-License-Identifier: Apache-2.0
"""Write the reference pages of docs/reference from signatures and docstrings: `make docs-reference`.

A page keeps its own words. What is between ``<!-- reference: NAME -->`` and ``<!-- end -->`` is written anew. After the
name may come members that are described too: ``<!-- reference: airflow_mv.errors * -->`` stands for all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
_PART = re.compile(r"(<!-- reference: (\S+)((?: \S+)*) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data):`~?([^`]+)`")
_KEYWORDS = "airflow_mv.tasks.keywords"
_OF_AIRFLOW = ("TaskKeywords", "SensorKeywords", "DagKeywords", "GroupKeywords")


def pages() -> dict[Path, str]:
    """Return each page that has generated parts, as it should be."""
    package = griffe.load("airflow_mv", search_paths=[str(ROOT)], docstring_parser="google")
    found = {path: path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))}
    return {
        path: _PART.sub(lambda part: f"{part[1]}\n{_written(package, part[2], part[3].split())}\n{part[4]}", text)
        for path, text in found.items()
        if _PART.search(text)
    }


def _written(package: Any, name: str, members: list[str]) -> str:
    item = _target(package, name)
    if item.is_module:
        names = [key for key in item.members if _is_own(item, key)] if members == ["*"] else members
        return "\n".join(line for key in names for line in _described(package, item[key], f"{name}.{key}", 3))
    lines = [*_described(package, item, name, 3)]
    for member in [key for key in item.members if not key.startswith("_")] if members == ["*"] else members:
        lines += _described(package, item[member], f"{name}.{member}", 4)
    return "\n".join(lines)


def _target(package: Any, name: str) -> Any:
    item = package
    for part in name.split(".")[1:]:
        item = item[part]
        item = item.final_target if item.is_alias else item
    return item


def _is_own(module: Any, key: str) -> bool:
    member = module.members[key]
    return not key.startswith("_") and not member.is_alias and (member.is_class or member.is_function)


def _described(package: Any, item: Any, name: str, level: int) -> Iterator[str]:
    """Yield the lines of one class, function or value."""
    yield from (f'<a id="{name}"></a>', "", f"{'#' * level} {name.rpartition('.')[2]}", "")
    call = item.members.get("__init__") if item.is_class else item
    if call is not None and getattr(call, "is_function", False) and "property" not in item.labels:
        yield from ("```python", *_signature(item, call), "```", "")
    elif item.is_class and item.bases:
        yield from (f"Base: {', '.join(f'`{base}`' for base in item.bases)}", "")
    if item.docstring is not None:
        for section in item.docstring.parse("google", warn_unknown_params=False, warn_missing_types=False):
            yield from _section(section)
    if call is not None and getattr(call, "is_function", False):
        yield from _passed_on(package, call)


def _signature(item: Any, call: Any) -> list[str]:
    """Return the call, with one argument a line if it is long."""
    arguments, keyword_only = [], False
    for given in call.parameters:
        if given.name in ("self", "cls"):
            continue
        if given.kind is griffe.ParameterKind.keyword_only and not keyword_only:
            keyword_only = True
            if not any(text.startswith("*") for text in arguments):
                arguments.append("*")
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(given.kind, "")
        keyword_only = keyword_only or stars == "*"
        typed = f"{stars}{given.name}: {given.annotation}" if given.annotation is not None else f"{stars}{given.name}"
        has_default = given.default is not None and not stars
        arguments.append(f"{typed} = {_default(call, given.default)}" if has_default else typed)
    returned = f" -> {call.returns}" if call.returns is not None and not item.is_class else ""
    short = f"{item.name}({', '.join(arguments)}){returned}"
    return [short] if len(short) <= 100 else [f"{item.name}(", *(f"    {text}," for text in arguments), f"){returned}"]


def _section(section: Any) -> Iterator[str]:
    if section.kind is griffe.DocstringSectionKind.text:
        yield from (_text(section.value), "")
    elif section.kind is griffe.DocstringSectionKind.parameters:
        yield from ("| argument | meaning |", "|---|---|")
        yield from (f"| `{given.name}` | {_cell(given.description)} |" for given in section.value)
        yield ""
    elif section.kind is griffe.DocstringSectionKind.raises:
        yield from ("| error | when |", "|---|---|")
        yield from (f"| `{given.annotation}` | {_cell(given.description)} |" for given in section.value)
        yield ""
    elif section.kind is griffe.DocstringSectionKind.returns:
        yield from (f"Returns: {_cell(' '.join(given.description for given in section.value))}", "")


def _passed_on(package: Any, call: Any) -> Iterator[str]:
    """Yield the arguments that ``**kwargs`` stands for, without those that are Airflow's own."""
    for given in call.parameters:
        if given.kind is not griffe.ParameterKind.var_keyword:
            continue
        kind = re.fullmatch(r"Unpack\[(\w+)\]", str(given.annotation))
        own = _keys(package, kind[1]) - _keys(package, *_OF_AIRFLOW) if kind else set()
        if own:
            yield from (f"`**kwargs`, beside Airflow's: {', '.join(f'`{name}`' for name in sorted(own))}.", "")


def _keys(package: Any, *names: str) -> set[str]:
    """Return the arguments of classes of :mod:`airflow_mv.tasks.keywords`."""
    found: set[str] = set()
    for name in names:
        kind = _target(package, f"{_KEYWORDS}.{name}")
        found |= {key for key, member in kind.members.items() if member.is_attribute}
        found |= _keys(package, *(str(base) for base in kind.bases if str(base) != "TypedDict"))
    return found


def _default(call: Any, default: Any) -> str:
    """Return a default value; that of a constant instead of its name, and an ellipsis for what has no public name."""
    text = str(default)
    if re.fullmatch(r"[A-Z_]+", text) is None:
        return text
    target = call.module.members.get(text)
    target = target.final_target if target is not None and target.is_alias else target
    value = "..." if target is None or target.value is None else str(target.value)
    return value if re.fullmatch(r"[\w.\"' ]+", value) else "..." if text.startswith("_") else text


def _text(text: str) -> str:
    """Return Markdown of a docstring: Sphinx's roles, literals, and blocks of code after ``::``."""
    text = _ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", text).replace("``", "`")
    lines, table = [], False
    for line in re.sub(r"::\n\n((?:    .*\n?|\n)+)", _block, text + "\n").rstrip().split("\n"):
        if re.fullmatch(r"=+(?: +=+)+", line):
            lines += ["| | |", "|---|---|"] if not table else []
            table = True
        elif table and (found := re.fullmatch(r"(\S.*?)  +(\S.*)", line)):
            lines.append(f"| {found[1]} | {found[2]} |")
        else:
            lines.append(line)
    return "\n".join(lines)


def _block(found: re.Match[str]) -> str:
    return ":\n\n```python\n" + re.sub(r"^    ", "", found[1], flags=re.MULTILINE).strip("\n") + "\n```\n\n"


def _cell(text: str) -> str:
    return " ".join(_text(text).split()).replace("|", "\\|")


def main() -> int:
    """Write the pages, or with ``--check`` name those that are stale."""
    stale = {path: text for path, text in pages().items() if path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
