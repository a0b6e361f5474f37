# SPDX-License-Identifier: Apache-2.0
"""The demo's output: lines, and below them a bar that shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

console = Console(highlight=False, soft_wrap=True)


class Bar:
    """The bar. Where the output is no terminal there are only the lines."""

    def __init__(self) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("[dim]{task.description}"))
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._bar = self._progress.add_task("", total=100)
        self._done = self._percent = 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def step(self, title: str, percent: float) -> Iterator[None]:
        """Show a step and how long it took.

        Args:
            title: What it does.
            percent: Its usual part of the time.
        """
        console.print(f"[cyan]▸[/cyan] {title}")
        self._percent = percent
        self._progress.update(self._bar, description=title)
        started = time.monotonic()
        yield
        self._done += percent
        self._progress.update(self._bar, completed=self._done)
        console.print(f"    [green]done[/green] [dim]in {time.monotonic() - started:.1f} s[/dim]")

    def advance(self, share: float) -> None:
        """Show which share of the present step is done."""
        self._progress.update(self._bar, completed=self._done + share * self._percent)
