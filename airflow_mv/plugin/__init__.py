# SPDX-License-Identifier: Apache-2.0
"""The page of all materialized views in Airflow's UI, as a plugin that Airflow loads through its entry point.

Schedulers, workers and triggerers also load plugins, and they need no web framework: the page's application is
imported by the first request for it. Its files do not wait for the import of what reads catalogs, which takes a second:
the first request for data imports that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow_mv.tasks.links import PAGE_PATH, PAGE_ROUTE
from airflow_mv.tasks.older_airflow import AirflowPlugin

_Message = MutableMapping[str, Any]


class PageApp:
    """An ASGI application that imports itself when it is first called."""

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        # Not in the event loop, in which Airflow's own requests would wait for the import.
        app = await asyncio.to_thread(_loaded_app, with_data="/api/" in scope.get("path", ""))
        await app(scope, receive, send)


def _loaded_app(*, with_data: bool) -> Any:
    with _importing:
        app = _page_app()
    if with_data:
        with _importing_data:
            _add_data(app)
    return app


@cache
def _page_app() -> Any:
    from airflow_mv.plugin.app import create_app

    return create_app()


@cache
def _add_data(app: Any) -> None:
    from airflow_mv.plugin.app import add_data

    add_data(app)


#: Requests that come during an import wait for it; requests for files do not wait for that of the data.
_importing, _importing_data = threading.Lock(), threading.Lock()


class _Icon(str):
    """An address that contains an icon, which Airflow shows to every user on every page.

    ``airflow plugins`` prints its ``repr``.
    """

    __slots__ = ()

    @classmethod
    def of(cls, name: str) -> _Icon:
        """Return the address of a file."""
        return cls(f"data:image/svg+xml,{quote((Path(__file__).parent / 'static' / name).read_text())}")

    def __repr__(self) -> str:
        return "<SVG icon>"


_ICONS = {"icon": _Icon.of("light.svg"), "icon_dark_mode": _Icon.of("dark.svg")}


class AirflowMvPlugin(AirflowPlugin):
    """A page in the navigation, and the same page as a tab of each DAG, limited to the views that it refreshes.

    The addresses are relative: Airflow's UI resolves them below the path that it is served under.
    """

    name = "airflow_mv"
    fastapi_apps = [  # noqa: RUF012 (so Airflow's own class declares it)
        {"app": PageApp(), "url_prefix": f"/{PAGE_PATH}", "name": "Materialized views"}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Mat. views",  # the navigation truncates longer names
            "href": f"{PAGE_PATH}/",
            "destination": "nav",
            "url_route": PAGE_ROUTE,
            "nav_top_level": True,
            **_ICONS,
        },
        {
            "name": "Materialized views",
            "href": f"{PAGE_PATH}/?dag_id={{DAG_ID}}",
            "destination": "dag",
            "url_route": f"dag-{PAGE_ROUTE}",
            **_ICONS,
        },
    ]
