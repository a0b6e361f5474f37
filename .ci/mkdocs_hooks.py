# SPDX-License-Identifier: Apache-2.0
"""Make one site of Markdown that is written for the repository.

Links between pages stay links between pages. Links to other files of the repository (tests, examples, sources) become
links to the repository, whose address is ``Repository`` of ``[project.urls]`` in ``pyproject.toml``. The command line's
reference is generated from the command line.
"""

from __future__ import annotations

import html
import inspect
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from airflow_mv.cli import main
from airflow_mv.version import __version__

ROOT = Path(__file__).parents[1]
#: Pages of the repository that are not in docs/, and what they are called on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "docker/README.md": "docker.md",
    "benchmarks/README.md": "benchmarks.md",
}
_SOURCES = {site: source for source, site in OUTSIDE.items()}
_COMMANDS = "reference/command-line.md"
#: Code, where nothing is a link; else a link or an image, with its target and anchor.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```|`+[^`\n]+`+)|(?P<head>!?\[[^\]]*\]\()(?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)",
    re.DOTALL | re.MULTILINE,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the repository's address from ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.extra["repository"] = project["urls"]["Repository"]
    icon = {"icon": "fontawesome/brands/git-alt", "link": project["urls"]["Repository"], "name": "Repository"}
    config.extra["social"] = [icon]
    config.site_name = f"{project['name']} {__version__}"
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and a last section with pages that the navigation does not name."""
    for source, site in OUTSIDE.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, _COMMANDS, content=command_line(main)))
    files.append(File.generated(config, "assets/site.css", abs_src_path=str(Path(__file__).with_name("site.css"))))
    if config.nav is not None:
        placed = set(_leaves(config.nav))
        others = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri not in placed)
        config.nav += [{"More": others}] if others else []
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page from what they mean in the repository to what they mean on the site."""
    source = _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def rewritten(target: str) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        site = OUTSIDE.get(path, path.removeprefix("docs/"))
        if (path in OUTSIDE or path.startswith("docs/")) and site in files.src_uris:
            return posixpath.relpath(site, posixpath.dirname(page.file.src_uri) or ".")
        if not (ROOT / path).exists():
            return target  # the strict build reports it
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.extra['repository']}/{kind}/main/{path}"

    return with_links(markdown, rewritten)


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:  # noqa: ARG001 (MkDocs' names)
    """Call the first page by what it is: its own title is the project's name."""
    for page in nav.pages:
        if page.file.src_uri == "index.md":
            page.title = "Overview"
    return nav


def with_links(markdown: str, rewritten: Callable[[str], str]) -> str:
    """Rewrite the targets of a text's relative links; code stays as it is."""

    def one(found: re.Match[str]) -> str:
        if found["code"] or re.match(r"[a-z]+:", found["target"]):
            return found[0]
        return f"{found['head']}{rewritten(found['target'])}{found['anchor'] or ''})"

    return _CODE_OR_LINK.sub(one, markdown)


def command_line(group: click.Group) -> str:
    """Write the reference of a command line: usage, help and options of each command."""
    lines = ["# Command line", "", "Generated from `airflow-mv COMMAND --help`.", ""]
    for name, command in _commands(group, ""):
        context = click.Context(command, info_name=f"airflow-mv {name}")
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        lines += [f"## {name}", "", f"```\n{usage}\n```", "", _help(command.help), ""]
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        records = [record for option in options if (record := option.get_help_record(context))]
        rows = [f"| <code>{_cell(names)}</code> | {_cell(text)} |" for names, text in records]
        lines += ["| option | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def _commands(group: click.Group, above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group and of its groups, each with its full name."""
    for name, command in sorted(group.commands.items()):
        yield above + name, command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{above}{name} ")


def _leaves(nav: Any) -> Iterator[str]:
    """Yield the pages that a navigation names."""
    for item in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from _leaves(item)
    if isinstance(nav, str):
        yield nav


def _help(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b\n", "")


def _cell(text: str) -> str:
    escaped = html.escape(text, quote=False)
    return re.sub(r"[|*_`\[\]]", lambda found: f"&#{ord(found[0])};", escaped)
