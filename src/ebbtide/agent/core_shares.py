"""The parts of a machine that trainings side by side get: cores, and accelerators where there are several."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Variables that limit the threads of numerical libraries; without them, each library starts one for every core.
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
DEVICES = "CUDA_VISIBLE_DEVICES"

_ROUNDING = 1e-9


@dataclass(frozen=True)
class CoreShare:
    """Threads, cores and accelerators that one training has of a machine.

    Attributes:
        threads: Number of threads that its libraries start; 0: no limit, since it has all cores.
        cores: Numbers of the cores that it is pinned to; empty: it may use any.
        devices: Names of its accelerators; None: it sees all.
    """

    threads: int = 0
    cores: tuple[int, ...] = ()
    devices: tuple[str, ...] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell its program of its share; the user's own take precedence."""
        told = {name: str(self.threads) for name in THREADS} if self.threads else {}
        return told if self.devices is None else {**told, DEVICES: ",".join(self.devices)}


@dataclass
class MachineParts:
    """Cores and accelerators of a machine, and the trainings that use them.

    Attributes:
        cores: Numbers of all cores.
        devices: Names of all accelerators.
        pins: Whether trainings are pinned to cores of their own.
    """

    cores: Sequence[int]
    devices: Sequence[str] = ()
    pins: bool = False
    _taken: dict[str, CoreShare] = field(default_factory=dict)

    @classmethod
    def of_this_machine(cls, *, pins: bool) -> MachineParts:
        """Cores and accelerators of the machine that this process runs on.

        Args:
            pins: Whether trainings are pinned to cores of their own, where the operating system can do that.
        """
        if hasattr(os, "sched_getaffinity"):
            return cls(sorted(os.sched_getaffinity(0)), _devices(), pins)
        return cls(range(os.cpu_count() or 1), _devices())

    def take(self, name: str, share: float) -> CoreShare:
        """The part of a training: at least one core, and accelerators if its share is a whole number of them.

        Args:
            name: Id of its trial.
            share: The share of the machine that it fills; 1: it has all of it.
        """
        if share >= 1.0 - _ROUNDING:
            return CoreShare()
        threads = max(math.floor(share * len(self.cores) + _ROUNDING), 1)
        used = Counter(core for part in self._taken.values() for core in part.cores)
        # Prefer the least used cores: there may be more trainings than cores.
        cores = sorted(sorted(self.cores, key=lambda core: used[core])[:threads]) if self.pins else []
        part = CoreShare(threads, tuple(cores), self._free_devices(share))
        self._taken[name] = part
        return part

    def give_back(self, name: str) -> None:
        """Release the part of a training that is over."""
        self._taken.pop(name, None)

    def _free_devices(self, share: float) -> tuple[str, ...] | None:
        wanted = share * len(self.devices)
        count = round(wanted)
        if len(self.devices) < 2 or count < 1 or abs(wanted - count) > _ROUNDING:
            return None
        taken = {device for part in self._taken.values() for device in part.devices or ()}
        free = tuple(device for device in self.devices if device not in taken)
        # If too few are free, the training sees all, like one whose share is not a whole number of them.
        return free[:count] if len(free) >= count else None


def _devices() -> list[str]:
    """Names of the machine's accelerators, as CUDA numbers them; a user may have limited them."""
    named = os.environ.get(DEVICES)
    if named is not None:
        return [name for name in named.split(",") if name]
    found = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((name for name in found if name.isdecimal()), key=int)
