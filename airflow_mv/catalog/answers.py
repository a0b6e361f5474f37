# SPDX-License-Identifier: Apache-2.0
"""What a catalog answers when it does not do what was asked, in our own errors and without its secrets."""

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

#: A server that cannot answer now.
AWAY = (ServerError, ServiceUnavailableError, TooManyRequestsError)
#: Nothing is known to be wrong: the same call may succeed later, or may have succeeded.
NO_ANSWER = (
    CommitStateUnknownException,
    *AWAY,
    RequestException,
    SQLAlchemyError,
    OSError,
)
#: Statuses below 500 that say nothing of what became of the request: not found (by a proxy), request timeout, too
#: early, too many requests, client closed the connection.
UNPROVEN = frozenset({404, 408, 425, 429, 499})
_LONGEST = 300


@contextmanager
def answered(catalog: str, what: str) -> Iterator[None]:
    """Turn a catalog's errors into ours; "there is no such thing" is left to the caller.

    Args:
        catalog: The catalog's name.
        what: What was asked, for the message.

    Raises:
        CatalogUnavailableError: It did not answer.
        ConfigurationError: It knows the caller, but does not let it, or does not know the caller.
        UnsupportedError: It cannot do that.
        InvalidMetadataError: Its answer cannot be read.
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
    """Return what an error of pyiceberg's says of a commit; ``None`` where it says nothing that would last.

    Args:
        catalog: The catalog's name.
        what: What was asked, for the message.
        error: What pyiceberg raised.
    """
    if isinstance(error, NoSuchTableError):
        return None  # the next look tells whether the table is there
    try:
        with answered(catalog, what):
            raise error
    except CatalogUnavailableError:
        return None
    except MaterializedViewError as told:
        return told


def _status(error: BaseException) -> int | None:
    """Return the status of the answer that pyiceberg has made an error of."""
    response = getattr(error.__cause__, "response", None)
    return getattr(response, "status_code", None)


def brief(error: BaseException) -> str:
    """Name an error. A driver's or a socket's own message may hold an address with its password."""
    if isinstance(error, RequestException | SQLAlchemyError | OSError):
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        # Notes are our own: which limit was reached.
        notes = [note for item in (error, error.__cause__) for note in getattr(item, "__notes__", ())]
        return ": ".join((f"{type(error).__name__}{cause}", *notes))
    return f"{type(error).__name__}: {shortened(' '.join(str(error).split()), _LONGEST)}"
