# SPDX-License-Identifier: Apache-2.0
"""Processes that refresh one view at once."""

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
    """Start refreshing processes; what they are told and what they answer goes over a connection each.

    Args:
        processes: Starts them.
        count: How many.
        contend: What each does. Its last argument is the other end of its connection; ``None`` ends it.
        arguments: The arguments before that one, by the process's number.
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
