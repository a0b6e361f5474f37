# SPDX-License-Identifier: Apache-2.0
"""Processes that refresh one view concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any


@contextmanager
def contenders(
    processes: ForkServerContext, count: int, contend: Callable[..., None], arguments: Callable[[int], tuple[Any, ...]]
) -> Iterator[list[Connection]]:
    """Start refreshing processes, with one connection each for orders and reports.

    Args:
        processes: Starts the processes.
        count: The number of processes.
        contend: Runs in each process. Its last argument is the other end of its connection; ``None`` ends it.
        arguments: The other arguments, by the process's number.
    """
    with ExitStack() as stack:
        ends = []
        for number in range(count):
            here, there = processes.Pipe()
            process = processes.Process(target=contend, args=(*arguments(number), there))
            process.start()
            stack.callback(process.join, 30)
            stack.callback(process.terminate)
            stack.callback(here.close)
            there.close()
            ends.append(here)
        yield ends
        for end in ends:
            end.send(None)
