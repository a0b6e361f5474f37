# SPDX-License-Identifier: Apache-2.0
"""What a catalog answers when it does not do what was asked, in our own errors and without its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import (
    BadRequestError,
    CommitStateUnknownException,
    ForbiddenError,
    OAuthError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, UnsupportedError
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
    except (NotImplementedError, BadRequestError) as error:
        raise UnsupportedError(f"catalog {catalog!r} cannot do {what}: {brief(error)}") from None


def brief(error: BaseException) -> str:
    """Name an error. A driver's or a socket's own message may hold an address with its password."""
    if isinstance(error, RequestException | SQLAlchemyError | OSError):
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        # Notes are our own: which limit was reached.
        notes = [note for item in (error, error.__cause__) for note in getattr(item, "__notes__", ())]
        return ": ".join((f"{type(error).__name__}{cause}", *notes))
    return f"{type(error).__name__}: {shortened(' '.join(str(error).split()), _LONGEST)}"
