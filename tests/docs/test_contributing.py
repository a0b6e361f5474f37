# SPDX-License-Identifier: Apache-2.0
"""The guide for contributors is correct: the walks through the code, the layers, the codes."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_mv import errors
from airflow_mv.core.spec.reasons import Code

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_file_that_it_names_exists() -> None:
    named = re.findall(r"`((?:airflow_mv|tests|docs|examples)/[\w/.]*\w)`", CONTRIBUTING)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_documented_layers_are_the_enforced_layers_and_few() -> None:
    layers = re.findall(
        r'(?m)^    "(.*)",$',
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("]")[0],
    )
    enforced = [re.findall(r"\w+", layer) for layer in layers]
    assert len(enforced) <= 9
    (shown,) = re.findall(r"```\n(cli.*?)```", CONTRIBUTING, re.DOTALL)
    assert [re.findall(r"\w+", line) for line in shown.splitlines()] == [
        [name for name in layer if name != "provider_info"] for layer in enforced
    ]


def explained(heading: str) -> dict[str, str]:
    """Return what to do by code, class or message, as docs/messages.md says it below a heading."""
    text = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    rows = re.findall(r"(?m)^\| (`.*?`) \|.*\| ([^|]*) \|$", text.partition("\n## ")[0])
    return {name: what_to_do for names, what_to_do in rows for name in re.findall(r"`([^`]+)`", names)}


def test_every_reason_and_every_error_is_explained_with_what_to_do() -> None:
    reasons, classes = explained("Reasons"), explained("Errors")
    assert set(reasons) == {str(code) for code in Code}
    own = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert set(classes) == own
    assert [name for name, what_to_do in {**reasons, **classes}.items() if not what_to_do] == []


def test_the_frequent_messages_are_in_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "airflow_mv").rglob("*.py"))
    assert [message for message in explained("Frequent messages") if message not in source] == []


def test_the_glossary_is_in_alphabetical_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [line.split("|")[1].strip().lower() for line in text.splitlines() if line.startswith("| ")][1:]
    keys = [re.sub(r"[^a-z]", " ", term) for term in terms]
    assert keys == sorted(keys)
