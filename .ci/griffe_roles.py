# SPDX-License-Identifier: Apache-2.0
"""Docstrings name classes and functions by Sphinx's roles: show them as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Turn ``:class:`airflow_mv.core.spec.Name``` into ``Name`` as code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", obj.docstring.value)
