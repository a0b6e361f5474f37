# SPDX-License-Identifier: Apache-2.0
"""The most expensive modes that a view's refreshes may need, as a definition requires them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_mv.core.spec.reasons import Mode
from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.words import did_you_mean

#: The modes that can be required, and the order in which one is at least as cheap as another.
REQUIRABLE = (Mode.APPEND, Mode.MERGE, Mode.REPLACE_KEYS)
_MODES = list(Mode)


class Change(StrEnum):
    """A kind of change of a base table."""

    APPEND = "append"
    DELETE = "delete"
    UPDATE = "update"
    OVERWRITE = "overwrite"
    """Whole partitions are replaced."""
    COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A mode that a view's refreshes must not be more expensive than.

    Args:
        change: After which kind of change of a base table; ``None``: after any.
    """

    mode: Mode
    change: Change | None = None

    @classmethod
    def read(cls, text: str) -> Requirement:
        """Read ``merge``, or ``append=merge`` for one kind of change.

        Raises:
            ConfigurationError: It is neither.
        """
        change, equals, mode = text.rpartition("=")
        modes, changes = [str(item) for item in REQUIRABLE], [str(item) for item in Change]
        if mode not in modes or (equals and change not in changes):
            raise ConfigurationError(
                f"the requirement {text!r} is not MODE or CHANGE=MODE, where MODE is one of {', '.join(modes)} and "
                f"CHANGE one of {', '.join(changes)}{did_you_mean(mode, modes)}"
            )
        return cls(Mode(mode), Change(change) if equals else None)

    def __str__(self) -> str:
        return f"{self.change}={self.mode}" if self.change else str(self.mode)

    def allows(self, change: Change, possible: Mode) -> bool:
        """Whether a refresh by the cheapest possible mode meets the requirement."""
        return self.change not in (None, change) or _MODES.index(possible) <= _MODES.index(self.mode)
