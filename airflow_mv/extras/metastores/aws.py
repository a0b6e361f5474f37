# SPDX-License-Identifier: Apache-2.0
"""Translate the errors of AWS' client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_mv.core.catalog.answers import UNPROVEN, brief, no_answer
from airflow_mv.errors import ConfigurationError, MaterializedViewError, UnsupportedError

#: AWS' codes for credentials that are wrong or expired. Its message may quote the request, with a session token.
_BAD_CREDENTIALS = re.compile(
    r"(?i)expired.?token|invalid.?client.?token|unrecognized.?client|signature|access.?key|auth"
)
_FORBIDDEN = re.compile(r"(?i)access.?denied|forbidden|unauthorized.?operation")
_BUSY = re.compile(r"(?i)throttl|too.?many|request.?limit|timeout|concurrent|not.?ready|internal|unavailable")
#: botocore's errors for a configuration without which it sends nothing.
_NO_CREDENTIALS = re.compile(r"Credential|Profile|Region|Token|SSO|InvalidConfig|ConfigParse|ConfigNotFound")
_STATUS_OF_SERVER = 500
_CREDENTIALS_ADVICE = "check the AWS credentials and region, in the catalog's properties or of this machine"


def translated(catalog: str, what: str, error: Exception) -> MaterializedViewError:
    """Translate an error of AWS' client."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return _of_aws(catalog, what, error, response)
    if _NO_CREDENTIALS.search(type(error).__name__):
        return ConfigurationError(f"catalog {catalog!r}, {what}: {brief(error)}; {_CREDENTIALS_ADVICE}")
    return no_answer(catalog, what, error)


def _of_aws(catalog: str, what: str, error: Exception, response: Mapping[str, Any]) -> MaterializedViewError:
    """Translate an error in an answer of AWS."""
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= _STATUS_OF_SERVER or status in UNPROVEN or _BUSY.search(code):
        return no_answer(catalog, what, error)
    if _FORBIDDEN.search(code):
        return ConfigurationError(f"catalog {catalog!r} forbids {what}: {brief(error)}")
    if _BAD_CREDENTIALS.search(code):
        return ConfigurationError(
            f"catalog {catalog!r} refused the credentials ({code}) for {what}; {_CREDENTIALS_ADVICE}"
        )
    return UnsupportedError(f"catalog {catalog!r} cannot do {what}: {brief(error)}")
