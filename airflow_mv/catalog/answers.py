# SPDX-License-Identifier: Apache-2.0
"""Translate a catalog's errors into the errors of this package, without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests import JSONDecodeError, RequestException
from sqlalchemy.exc import SQLAlchemyError

from airflow_mv.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    UnsupportedError,
)
from airflow_mv.redaction import shortened

#: Errors of a server that is unavailable at the moment.
AWAY = (ServerError, ServiceUnavailableError, TooManyRequestsError)
#: Temporary errors: the same call may succeed later, or may have succeeded.
NO_ANSWER = (
    CommitStateUnknownException,
    *AWAY,
    RequestException,
    SQLAlchemyError,
    OSError,
)
#: Statuses below 500 that leave the outcome of the request unknown: not found (by a proxy), request timeout, too
#: early, too many requests, client closed the connection.
UNPROVEN = frozenset({404, 408, 425, 429, 499})
_LONGEST = 300


@contextmanager
def answered(catalog: str, what: str) -> Iterator[None]:
    """Translate a catalog's errors. "Does not exist" errors are left to the caller.

    Args:
        catalog: The catalog's name.
        what: The request, for the message.

    Raises:
        CatalogUnavailableError: The catalog did not answer.
        ConfigurationError: The catalog refused the credentials or the permission.
        UnsupportedError: The catalog does not support the request.
        InvalidMetadataError: The answer cannot be read.
    """
    try:
        yield
    except NO_ANSWER as error:
        raise CatalogUnavailableError(f"catalog {catalog!r} did not answer to {what}: {brief(error)}") from None
    except (UnauthorizedError, OAuthError) as error:
        raise ConfigurationError(
            f"catalog {catalog!r} refused the credentials ({type(error).__name__}) for {what}; check its properties"
        ) from None
    except ForbiddenError as error:
        raise ConfigurationError(f"catalog {catalog!r} forbids {what}: {brief(error)}") from None
    except (NotImplementedError, RESTError) as error:
        if _status(error) in UNPROVEN:
            raise CatalogUnavailableError(f"catalog {catalog!r} did not answer to {what}: {brief(error)}") from None
        raise UnsupportedError(f"catalog {catalog!r} cannot do {what}: {brief(error)}") from None
    except (ValidationError, JSONDecodeError) as error:
        raise InvalidMetadataError(
            f"catalog {catalog!r}: its answer to {what} cannot be read ({type(error).__name__})"
        ) from None


def refusal_of(catalog: str, what: str, error: Exception) -> MaterializedViewError | None:
    """Translate an error that pyiceberg raised for a commit; ``None`` if the error is temporary.

    Args:
        catalog: The catalog's name.
        what: The request, for the message.
        error: The error that pyiceberg raised.
    """
    if isinstance(error, NoSuchTableError):
        return None  # the next load shows whether the table exists
    try:
        with answered(catalog, what):
            raise error
    except CatalogUnavailableError:
        return None
    except MaterializedViewError as refusal:
        return refusal


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer behind a pyiceberg error."""
    response = getattr(error.__cause__, "response", None)
    return getattr(response, "status_code", None)


def brief(error: BaseException) -> str:
    """Describe an error. The message of a driver or socket may contain a URL with its password."""
    if isinstance(error, RequestException | SQLAlchemyError | OSError):
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        # Notes are added by this package: they say which limit was reached.
        notes = [note for item in (error, error.__cause__) for note in getattr(item, "__notes__", ())]
        return ": ".join((f"{type(error).__name__}{cause}", *notes))
    return f"{type(error).__name__}: {shortened(' '.join(str(error).split()), _LONGEST)}"
