# SPDX-License-Identifier: Apache-2.0
"""Every error the package raises, classed by what the caller should do.

One root, :class:`MaterializedViewError`. Two facts hang on the class: ``retryable`` (may the same
call succeed later?) and ``exit_code`` (what the command line ends with).
"""

from __future__ import annotations

from typing import ClassVar


class MaterializedViewError(Exception):
    """Root of all errors. The message names the view, the file or the field, and what to do."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigurationError(MaterializedViewError):
    """A setting, connection or installation is missing or wrong. Mend it; a retry cannot help."""


class CatalogUnavailableError(MaterializedViewError):
    """The catalog's database did not answer. Nothing is known to be wrong; try again."""

    retryable = True


class InvalidIdentifierError(MaterializedViewError):
    """A name that cannot be an identifier."""

    exit_code = 2


class InvalidQueryError(MaterializedViewError):
    """The view's SQL does not parse, is no single query, or names something that is not there."""


class InvalidMetadataError(MaterializedViewError):
    """Stored bytes that are not what the format says. Names the view, the file and the field."""


class FutureTimeError(InvalidMetadataError):
    """Stored metadata holds times in the future: no host with a right clock can change the table. Repair the view."""


class ClockError(MaterializedViewError):
    """The clock of a host differs too much from the store's. Nothing was published; set the clock right."""

    retryable = True


class UnsupportedError(MaterializedViewError):
    """A thing that this catalog, session or format version cannot do."""


class NotFoundError(MaterializedViewError):
    """Something named does not exist."""


class CatalogNotFoundError(NotFoundError):
    """No catalog is configured under this name."""


class ViewNotFoundError(NotFoundError):
    """The catalog has no view of this name."""


class BaseTableNotFoundError(NotFoundError):
    """A table the query reads does not exist (any more)."""


class MetadataFileNotFoundError(NotFoundError):
    """A metadata file that a pointer names does not exist."""


class SnapshotNotFoundError(NotFoundError):
    """No such snapshot, ref or point in time is retained."""


class PinError(NotFoundError):
    """What a run has pinned is gone, or is not what the view reads. The run has to pin again."""


class RefreshNotFoundError(NotFoundError):
    """The view's history holds no refresh of this id."""


class AlreadyExistsError(MaterializedViewError):
    """The name is taken, by a view or by a table."""


class NotMaterializedError(MaterializedViewError):
    """A plain view where a materialized one is needed."""


class StaleViewError(MaterializedViewError):
    """The stored rows are stale and the view does not allow stale reads. Refresh first."""


class RefreshRefusedError(MaterializedViewError):
    """The fallback policy forbids the refresh that would be needed."""


class IncrementalRefusedError(MaterializedViewError):
    """Incremental work turned out to be impossible or too dear while the job ran: a full refresh is not.

    Args:
        code: Why, in a word that programs read.
        message: The same for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobError(MaterializedViewError):
    """The Spark job failed: nothing was published. Carries Spark's reason, not its stack."""

    retryable = True


class CheckFailedError(MaterializedViewError):
    """A check did not hold: of a refresh's rows before they are published, or of stored rows against others.

    Args:
        message: For people.
        results: What came of the checks that failed, each an ``airflow_mv.script.CheckResult``.
    """

    exit_code = 4

    def __init__(self, message: str, results: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.results = results


class UnexpectedError(MaterializedViewError):
    """An error that this package does not know: a bug, of this package or of a library. The log has its trace."""


class AlertError(MaterializedViewError):
    """An alert could not be delivered, or that could not be noted. It is tried again."""

    retryable = True


class CommitError(MaterializedViewError):
    """Publishing did not succeed."""

    retryable = True
    exit_code = 5


class CommitConflictError(CommitError):
    """Other commits kept winning: nothing of ours was published. Safe to retry."""


class CommitStateUnknownError(CommitError):
    """The answer to the swap was lost: it may have been published. Delete nothing; a retry settles it.

    Args:
        message: For people.
        refusal: What the answer says where there was one, but none that proves anything: a proxy may refuse a commit
            that has landed. It counts once a look has shown that the commit did not land.
    """

    def __init__(self, message: str, refusal: MaterializedViewError | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal
