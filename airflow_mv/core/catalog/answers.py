# SPDX-License-Identifier: Apache-2.0
"""Translate a catalog's errors into the errors of this package, without secrets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pydantic import ValidationError
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from requests import JSONDecodeError, RequestException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_mv.core.catalog.metastores import metastore_module
from airflow_mv.core.catalog.pyiceberg_compat import TooManyRequestsError
from airflow_mv.errors import (
    AccessDeniedError,
    CatalogUnavailableError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    UnsupportedError,
)
from airflow_mv.foundation.redaction import shortened

#: Errors of a server that is unavailable at the moment.
AWAY = (ServerError, ServiceUnavailableError, TooManyRequestsError)
#: Errors of a server that does not accept the credentials.
REFUSED_CREDENTIALS = (UnauthorizedError, OAuthError, AuthorizationExpiredError)
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
MAX_LENGTH = 300
#: The base classes of the errors of clients that may not be installed, by module.
_CLIENTS = {"botocore.exceptions": ("BotoCoreError", "ClientError"), "thrift.Thrift": ("TException",)}
#: The modules that translate them.
_TRANSLATORS = {"botocore.exceptions": "aws", "thrift.Thrift": "hive"}
#: What SQLite and PostgreSQL say of a statement that the catalog's user may not run. A standby of PostgreSQL says
#: something else, which may end with a failover.
_FORBIDDEN_BY_DATABASE = re.compile(r"(?i)readonly database|permission denied for ")
#: How stores and their libraries say that credentials have ended, are unknown, or do not suffice.
_DENIAL = re.compile(
    r"(?i)access.?denied|permission.?denied|forbidden|unauthori[sz]ed|not authori[sz]ed"
    r"|authori[sz]ation(failure|permission)|authenticationfailed|signature.?does.?not.?match"
    r"|expired.?token|token.{0,20}expired|invalid.?(token|access.?key)"
    r"|HTTP status 40[13]\b"
)


class DeniedByStoreError(PermissionError):
    """A store refuses access to a file of a table. The text names the file and the permission."""


def is_denial(error: OSError, location: str = "") -> bool:
    """Whether a store has refused the credentials, or the access that they give.

    Args:
        location: The file. Its name in the error's text proves nothing.
    """
    if isinstance(error, PermissionError):
        return True
    if isinstance(error, FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError):
        return False
    name = urlsplit(location).path.strip("/")
    return _DENIAL.search(str(error).replace(name, "") if name else str(error)) is not None


def _denied_by_store(catalog: str, what: str, error: Exception) -> AccessDeniedError | None:
    """Translate a store's refusal of a file that pyiceberg opens; ``None`` for other errors."""
    if isinstance(error, DeniedByStoreError):
        return AccessDeniedError(f"catalog {catalog!r}, {what}: {error}")
    if not isinstance(error, OSError) or isinstance(error, RequestException) or not is_denial(error):
        return None
    return AccessDeniedError(
        f"catalog {catalog!r}, {what}: no permission for a file of the table: {one_line(str(error))}. This account "
        "must be able to read and write files there"
    )


def client_errors() -> tuple[type[Exception], ...]:
    """Return the errors of AWS' and of Hive's client, if they are loaded."""
    # Only a loaded module can raise an error, and importing AWS' client takes long.
    found = [(sys.modules[module], names) for module, names in _CLIENTS.items() if module in sys.modules]
    return tuple(getattr(module, name) for module, names in found for name in names)


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors of a commit that are answers, or were raised before anything was sent."""
    return (NoSuchTableError, NotImplementedError, RESTError, *client_errors())


@contextmanager
def answered(catalog: str, what: str) -> Iterator[None]:
    """Translate a catalog's errors. "Does not exist" errors are left to the caller.

    Raises:
        CatalogUnavailableError: The catalog did not respond.
        ConfigurationError: The catalog refused the credentials or the permission.
        AccessDeniedError: The store of a table's file did.
        UnsupportedError: The catalog does not support the request.
        InvalidMetadataError: The answer cannot be read.
    """
    try:
        yield
    except NO_ANSWER as error:
        refusal = forbidden_by_database(catalog, what, error) or _denied_by_store(catalog, what, error)
        raise refusal or no_answer(catalog, what, error) from None
    except REFUSED_CREDENTIALS as error:
        raise ConfigurationError(
            f"catalog {catalog!r} refused the credentials ({type(error).__name__}) for {what}; check its properties"
        ) from None
    except ForbiddenError as error:
        raise ConfigurationError(f"catalog {catalog!r} forbids {what}: {brief(error)}") from None
    except (NotImplementedError, RESTError) as error:
        if _status(error) in UNPROVEN:
            raise no_answer(catalog, what, error) from None
        raise UnsupportedError(f"catalog {catalog!r} cannot do {what}: {brief(error)}") from None
    except (ValidationError, JSONDecodeError) as error:
        raise InvalidMetadataError(
            f"catalog {catalog!r}: its response to {what} cannot be parsed ({type(error).__name__})"
        ) from None
    except client_errors() as error:
        raise _of_client(catalog, what, error) from None


def no_answer(catalog: str, what: str, error: Exception) -> CatalogUnavailableError:
    """Return the error for a request that may have been applied, or may succeed later."""
    return CatalogUnavailableError(f"catalog {catalog!r} did not respond ({what}): {brief(error)}")


def forbidden_by_database(catalog: str, what: str, error: Exception) -> ConfigurationError | None:
    """Translate the refusal of a statement for which the catalog's user has no permission; ``None`` for other errors.

    Args:
        error: The error. Its text may contain the statement's parameters, and is not quoted.
    """
    if not isinstance(error, DBAPIError) or not _FORBIDDEN_BY_DATABASE.search(str(error.orig)):
        return None
    return ConfigurationError(
        f"catalog {catalog!r} forbids {what}: this account, or the user in its uri, may only read its database"
    )


def _of_client(catalog: str, what: str, error: Exception) -> MaterializedViewError:
    """Translate an error of AWS' or of Hive's client."""
    kind = next(name for base in type(error).__mro__ if (name := _TRANSLATORS.get(base.__module__)))
    module = metastore_module(kind)
    found: MaterializedViewError = (module.translated if module else no_answer)(catalog, what, error)
    return found


def refusal_of(catalog: str, what: str, error: Exception) -> MaterializedViewError | None:
    """Translate an error that pyiceberg raised for a commit; ``None`` if the error is temporary.

    Args:
        error: The error that pyiceberg raised.
    """
    if isinstance(error, NoSuchTableError):
        return None  # the next load shows whether the table exists
    try:
        with answered(catalog, what):
            raise error
    except CatalogUnavailableError as unanswered:
        return unanswered if isinstance(unanswered, AccessDeniedError) else None
    except MaterializedViewError as refusal:
        return refusal


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer behind a pyiceberg error."""
    response = getattr(error.__cause__, "response", None)
    return getattr(response, "status_code", None)


def brief(error: BaseException) -> str:
    """Describe an error. The message of a driver or socket may contain a URL with its password; SQLite's does not."""
    if isinstance(error, RequestException | SQLAlchemyError | OSError):
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        # Notes are added by this package: they say which limit was reached.
        notes = [note for item in (error, error.__cause__) for note in getattr(item, "__notes__", ())]
        if isinstance(error, DBAPIError) and type(error.orig).__module__ == "sqlite3":
            notes.insert(0, one_line(str(error.orig)))
        return ": ".join((f"{type(error).__name__}{cause}", *notes))
    return f"{type(error).__name__}: {one_line(str(error))}"


def one_line(text: str) -> str:
    """Return a server's message as one line, without secrets and without a stack trace of Java."""
    return shortened(" ".join(text.partition("\n\tat ")[0].split()), MAX_LENGTH)
