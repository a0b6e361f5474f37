# SPDX-License-Identifier: Apache-2.0
"""Private names of Airflow that this package uses, in one place."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk._shared.secrets_masker import redact


def redacted(text: str) -> str:
    """Return a text in which all secrets that Airflow knows of are masked."""
    return str(redact(text))


def timetable_field(timetable: Any, name: str) -> Any:
    """Return a field of a timetable: public in those of the task SDK, private in those of ``airflow.timetables``."""
    return getattr(timetable, name, None) or getattr(timetable, f"_{name}", None)


class MaskingOperator(BaseOperator):
    """An operator that masks secrets of its templated fields before Airflow stores these."""

    @abstractmethod
    def mask_fields(self) -> None:
        """Mask them. Called before and after the fields are rendered."""

    def _do_render_template_fields(self, *args: Any, **kwargs: Any) -> None:
        """Render, also for a mapped task, whose fields no other method of an operator sees."""
        self.mask_fields()  # as in the DAG file: an error of rendering quotes it
        super()._do_render_template_fields(*args, **kwargs)
        self.mask_fields()
