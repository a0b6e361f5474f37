# SPDX-License-Identifier: Apache-2.0
"""All errors that the package raises, grouped by what the caller should do.

All derive from :class:`MaterializedViewError`. Each class defines ``retryable`` (whether the same call may succeed
later) and ``exit_code`` (the exit code of the command line).
"""

from __future__ import annotations

from typing import ClassVar


class MaterializedViewError(Exception):
    """Base class of all errors. The message names the view, the file or the field, and what to do."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigurationError(MaterializedViewError):
    """A setting, connection or installation is missing or wrong. Fix it; a retry cannot help."""


class NoCredentialsError(ConfigurationError):
    """No credentials are known for a location of a REST catalog whose server vends credentials."""


class CatalogUnavailableError(MaterializedViewError):
    """The catalog's database did not respond. Nothing is known to be wrong; try again."""

    retryable = True


class StoreUnavailableError(CatalogUnavailableError):
    """A file's store did not respond, or this host cannot reach it. The catalog and its other stores may respond."""

    def __init__(self, message: str, location: str = "") -> None:
        super().__init__(message)
        self.location = location


class AccessDeniedError(StoreUnavailableError):
    """A file's store refuses this account. Grant the permission that the message names; a retry cannot help."""

    retryable = False


class InvalidIdentifierError(MaterializedViewError):
    """A name that cannot be an identifier."""

    exit_code = 2


class InvalidQueryError(MaterializedViewError):
    """The view's SQL does not parse, is not a single query, or names something that does not exist."""


class InvalidMetadataError(MaterializedViewError):
    """Stored data does not follow its format. The message names the view, the file and the field."""


class RefusedLocationError(InvalidMetadataError):
    """A location is in no folder that the catalog's configuration allows. What is there may be intact."""


class FutureTimeError(InvalidMetadataError):
    """Stored metadata holds times in the future: no host with a right clock can change the table. Repair the view."""


class ClockError(MaterializedViewError):
    """The clock of a host differs too much from the store's. Nothing was published; set the clock right."""

    retryable = True


class UnsupportedError(MaterializedViewError):
    """This catalog, session or format version does not support the operation."""


class NewerFormatError(UnsupportedError):
    """Stored metadata is complete, but a newer program wrote it. Nothing is damaged: upgrade airflow-mv."""


class NotFoundError(MaterializedViewError):
    """Something named does not exist."""


class CatalogNotFoundError(NotFoundError):
    """No catalog is configured under this name."""


class ViewNotFoundError(NotFoundError):
    """The catalog has no view of this name."""


class BaseTableNotFoundError(NotFoundError):
    """A base table of the view does not exist, or no longer exists."""


class MetadataFileNotFoundError(NotFoundError):
    """A metadata file that a pointer names does not exist."""


class SnapshotNotFoundError(NotFoundError):
    """The table does not retain the requested snapshot, branch, tag or point in time."""


class PinError(NotFoundError):
    """Pinned snapshots are missing, or are not those of the view's base tables. The run has to pin again."""


class RefreshNotFoundError(NotFoundError):
    """The view's history has no refresh with this id."""


class VersionNotFoundError(NotFoundError):
    """The view does not retain this version of its definition."""


class AlreadyExistsError(MaterializedViewError):
    """A view or table of this name exists already."""


class NotMaterializedError(MaterializedViewError):
    """The view is a plain view, but a materialized view is required."""


class StaleViewError(MaterializedViewError):
    """The stored rows are stale and the view does not allow stale reads. Refresh first."""


class RefreshRefusedError(MaterializedViewError):
    """A policy forbids the refresh that would be needed, or the view is invalid and no refresh can change that yet."""


class IncrementalRefusedError(MaterializedViewError):
    """The job found an incremental refresh impossible or too expensive. A full refresh is possible.

    Args:
        message: The reason in a sentence.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobError(MaterializedViewError):
    """The Spark job failed, and nothing was published. The message has Spark's reason without its stack trace."""

    retryable = True


class QueryValueError(JobError):
    """A value in the base tables' rows makes an expression of the query fail. With the same rows it fails again."""

    retryable = False


class StoppedError(JobError):
    """The Spark job or the command was stopped from outside: by a user, a timeout, a signal, the end of its worker."""


class CheckFailedError(MaterializedViewError):
    """A check of the staged rows failed, and nothing was published.

    Args:
        results: The results of the failed checks, each an ``airflow_mv.core.script.CheckResult``.
    """

    exit_code = 4

    def __init__(self, message: str, results: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.results = results


class VerificationError(MaterializedViewError):
    """The stored rows differ from the view's query at the recorded snapshots, or stored files are missing or broken."""

    exit_code = 4


class UnexpectedError(MaterializedViewError):
    """An error of an unknown type: a bug in this package or in a library. The log has its traceback."""


class AlertError(MaterializedViewError):
    """An alert could not be delivered, or its delivery could not be recorded. It is sent again."""

    retryable = True


class CommitError(MaterializedViewError):
    """Publishing did not succeed."""

    retryable = True
    exit_code = 5


class CommitConflictError(CommitError):
    """Commits by other writers came first each time, and nothing was published. It is safe to retry."""


class CommitStateUnknownError(CommitError):
    """The outcome of a commit is unknown: the change may have been published. Delete nothing; a retry resolves it.

    Args:
        refusal: The error in the catalog's answer, if there was an answer. Alone it proves nothing, since a proxy may
            refuse a commit that was applied. It is valid once the catalog was read and does not show the commit.
    """

    def __init__(self, message: str, refusal: MaterializedViewError | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal
