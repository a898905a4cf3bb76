"""Several processes that train as one, on one machine or many: they save, and leave, at the same step.

A signal reaches one process at a time, and by then another may be a step ahead. So each step every process tells
the others what it was asked for, and all do the most that any of them was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

# What a process may be asked for; a higher number includes the lower ones.
NOTHING, SAVE, LEAVE = 0, 1, 2

# Number of all processes, number of this machine's, and which of those this is: by torchrun and by Open MPI.
_WORLDS = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
_PART = "process-"


class Agreement(Protocol):
    """Agreement between the processes of one training. Each calls the same methods in the same order."""

    def highest(self, wish: int) -> int:
        """Tell the others a number, and return the highest that any of them told at this call or at the last."""
        ...

    def highest_now(self, number: int) -> int:
        """The highest number that the processes call this with; waits until every process has."""
        ...

    def end(self) -> None:
        """Wait for what is under way; nothing is called after it."""
        ...


@runtime_checkable
class Agrees(Protocol):
    """Further method of a keeper, for several processes to train as one; `TorchState` has it."""

    def agreement(self) -> Agreement | None:
        """Return the agreement between the processes; None: this process trains alone."""
        ...


class CalledAgreement:
    """An agreement by a function of the program's, such as `lambda wish: comm.allreduce(wish, op=MPI.MAX)`.

    Args:
        highest_of: Returns the highest of the numbers that the processes call it with; it waits for all of them.
    """

    def __init__(self, highest_of: Callable[[int], int]) -> None:
        self._highest_of = highest_of

    def highest(self, wish: int) -> int:
        return int(self._highest_of(wish))

    def highest_now(self, number: int) -> int:
        return int(self._highest_of(number))

    def end(self) -> None:
        """Nothing is under way: each call waits."""


@dataclass(frozen=True)
class ProcessPlace:
    """Place of this process among the processes of its training.

    Attributes:
        count: Number of processes that train as one, on all machines.
        local_count: Number of those on this machine.
        local_rank: Rank among those, from 0; the first one speaks for the others.
    """

    count: int = 1
    local_count: int = 1
    local_rank: int = 0

    @classmethod
    def current(cls, environment: Mapping[str, str] = os.environ) -> ProcessPlace:
        """This process, as torchrun or mpirun started it; alone, if neither did."""
        for names in _WORLDS:
            given = [environment.get(name, "") for name in names]
            if all(text.isdecimal() for text in given):
                count, local_count, local_rank = map(int, given)
                return cls(count, local_count, local_rank)
        return cls()

    @property
    def part(self) -> str:
        """Name of the folder in a checkpoint that has this process's state; empty: it is the whole."""
        return f"{_PART}{self.local_rank}" if self.local_count > 1 else ""


def first_part(names: list[str]) -> str:
    """Of the names in a checkpoint, that of the first process's state; empty: one process made it."""
    return next((name for name in names if name == f"{_PART}0"), "")
