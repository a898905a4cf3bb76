"""The cores of this machine: how many there are to use, and independent work spread over them.

Numerical libraries start one thread for each core, and these threads spin while they wait for each other. On a
machine with other work to do, small networks and small matrices then take many times as long. Here each piece of
work has one thread, and several pieces run at the same time in processes of their own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from threadpoolctl import threadpool_limits

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_LOOKS_EVERY_S = 1.0


def usable_cores() -> int:
    """Cores that this process may run on: containers and schedulers allow fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit numerical libraries that are already loaded (PyTorch, BLAS, OpenMP) to one thread."""
    with threadpool_limits(1):
        yield


def in_processes(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, workers: int | None = None
) -> list[_Result]:
    """Apply a function to each item, in processes of one thread each; results come in the items' order.

    An interruption ends all of them, and none outlives the call.

    Args:
        function: Called with each item; it is pickled and sent to the processes.
        items: What the function is called with; each should take seconds, since starting a process does.
        workers: How many processes run at once; None: one for each usable core. With 1 all runs in this process.
    """
    wanted = list(items)
    number = min(workers or usable_cores(), len(wanted))
    if number <= 1:
        with one_thread():
            return [function(item) for item in wanted]
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    try:
        # Memory is not mapped from files: what is sent stays writable, and nothing is left behind on disk.
        spread = Parallel(n_jobs=number, backend="loky", max_nbytes=None, batch_size=1)
        found: list[_Result] = spread(delayed(_with_one_thread)(function, item) for item in wanted)
        return found
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _with_one_thread(function: Callable[[_Item], _Result], item: _Item) -> _Result:
    end_with_parent(os.getppid())
    with one_thread():
        return function(item)


@cache
def end_with_parent(parent: int) -> None:
    """End this process once its parent has ended, even in the middle of work: nobody waits for the result.

    Args:
        parent: The process id of the parent.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOKS_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
