# SPDX-License-Identifier: Apache-2.0
"""The page's web application. Every route checks access with Airflow's auth manager first; none changes anything.

A plugin's application gets no authentication from Airflow. Users who may read assets may read the page. A user who is
not logged in gets 401, a user without this permission 403; this also holds for the page's files. There are only GET
routes: buttons that change something call Airflow's own REST API.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING

from airflow.api_fastapi.core_api.security import requires_access_asset
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse

from airflow_mv.errors import CatalogUnavailableError, InvalidIdentifierError, MaterializedViewError, NotFoundError

if TYPE_CHECKING:
    from airflow_mv.plugin.page import Page

#: Only our own files and addresses, no inline scripts or styles; framed by Airflow's own UI only.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_SHELL = "index.html"
_TOLD = {
    401: "You are not logged in, or no longer. Log in to Airflow and open this page again.",
    403: "You may not read assets in this Airflow, and so not this page. An administrator can grant the permission.",
}


@dataclass(frozen=True, slots=True)
class StaticFiles:
    """The page's files, in memory. Their URL contains a digest of all, so that a browser may cache them.

    Args:
        digest: Of all of them.
    """

    content: dict[str, bytes]
    digest: str

    @classmethod
    def packaged(cls) -> StaticFiles:
        """Read the files that are installed beside this module."""
        folder = files(__package__ or "airflow_mv.plugin") / "static"
        content = {file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda item: item.name)}
        return cls(content, hashlib.sha256(b"\0".join(content.values())).hexdigest()[:12])

    def answer(self, name: str, *, keep: bool) -> Response:
        """Return a file.

        Args:
            keep: Whether the browser may cache it forever.
        """
        kind = _TYPES.get(PurePath(name).suffix)
        if name not in self.content or kind is None:
            raise HTTPException(404, "no such file")
        age = "private, max-age=31536000, immutable" if keep else "private, no-cache"
        return Response(self.content[name], media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": age})

    def shell(self) -> Response:
        """Return the page without any data."""
        text = self.content[_SHELL].decode().replace("{digest}", self.digest)
        return HTMLResponse(text, headers={"Cache-Control": "private, no-cache"})


def create_app() -> FastAPI:
    """Return the application that Airflow mounts: the page's files. :func:`add_data` adds the other routes."""
    # No schema: its documentation routes would have no access check.
    app = FastAPI(
        title="Iceberg materialized views",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(requires_access_asset(method="GET"))],
    )
    static = StaticFiles.packaged()
    _add_files(app, static)
    app.middleware("http")(_with_headers)
    app.exception_handler(MaterializedViewError)(_failed)
    app.exception_handler(RequestValidationError)(_not_understood)
    app.exception_handler(HTTPException)(_refused)
    return app


def add_data(app: FastAPI, page: Page | None = None) -> FastAPI:
    """Add the routes that read catalogs and Airflow's database.

    Args:
        page: The page's content; by default of the catalogs in Airflow's configuration.
    """
    # Their import takes a second, which must not delay the page's files.
    from airflow_mv.plugin.page import Page
    from airflow_mv.plugin.routes import router
    from airflow_mv.plugin.sources import Sources

    app.state.page = page or Page(Sources.configured())
    app.include_router(router)
    return app


def _add_files(app: FastAPI, static: StaticFiles) -> None:
    @app.get("/")
    async def shell() -> Response:
        return static.shell()

    @app.get("/static/{digest}/{name}")
    async def file(digest: str, name: str) -> Response:
        return static.answer(name, keep=digest == static.digest)


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("Cache-Control", "no-store")
    return response


async def _failed(_: Request, error: Exception) -> Response:
    from airflow_mv.plugin.messages import problem  # the page's files need no connection, so they do not import hooks

    return JSONResponse(problem(error), _status(error)) if isinstance(error, MaterializedViewError) else _unknown()


def _status(error: MaterializedViewError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, InvalidIdentifierError):
        return 400
    return 503 if isinstance(error, CatalogUnavailableError) else 422


async def _not_understood(_: Request, error: Exception) -> Response:
    # FastAPI's own answer repeats the input.
    fields = ", ".join(str(item["loc"][-1]) for item in error.errors()) if hasattr(error, "errors") else ""
    answer = {"error": "WrongRequest", "message": f"not understood: {fields}", "advice": "Open the page again."}
    return JSONResponse(answer, 400)


async def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = _TOLD.get(status) or str(getattr(error, "detail", ""))
    if status in _TOLD and request.url.path.endswith("/"):
        return HTMLResponse(f"<!doctype html><title>Materialized views</title><p>{html.escape(message)}</p>", status)
    return JSONResponse({"error": str(status), "message": message, "advice": ""}, status)


def _unknown() -> Response:
    return JSONResponse({"error": "500", "message": "unexpected error; see the api-server's log", "advice": ""}, 500)
