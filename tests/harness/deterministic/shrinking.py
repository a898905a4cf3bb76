"""Shrink a failing run to the few faults that are enough to break it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.deterministic.faults import Fault
from tests.harness.deterministic.world import SimulatedRun, simulate

# Maximum number of runs to shrink one failing run.
_MOST_RUNS = 150


@dataclass(frozen=True)
class Shrunk:
    """A failing run, and the fewest faults found that break it in the same way.

    Attributes:
        seed: Seed of the run.
        what: Name of the broken invariant.
        why: Details, in a sentence.
        of_faults: Number of faults of the original run.
        trace: The remaining faults, in order, one per line.
    """

    seed: int
    what: str
    why: str
    of_faults: int
    trace: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.what}: {self.why}", *(f"  {line}" for line in self.trace)]
        return "\n".join([*lines, f"  ({len(self.trace)} of {self.of_faults} faults are enough)"])


def shrunk(run: SimulatedRun, place: Path) -> Shrunk:
    """Leave out faults, at first half of them at a time and then fewer, while the run still breaks as before.

    Args:
        run: A run that broke an invariant.
        place: Folder for the files of runs.
    """
    what, left, best = run.violations[0].what, [fault.place for fault in run.faults], run
    tries, size = 0, max(len(left) // 2, 1)
    while left and tries < _MOST_RUNS:
        is_smaller = False
        start = 0
        while start < len(left) and tries < _MOST_RUNS:
            fewer = left[:start] + left[start + size :]
            tries += 1
            found = simulate(run.seed, place, fewer)
            if found.violations and found.violations[0].what == what:
                # Faults that no longer happen are not needed either.
                happened = {fault.place for fault in found.faults}
                left, best, is_smaller = [each for each in fewer if each in happened], found, True
            else:
                start += size
        if size == 1 and not is_smaller:
            break
        size = max(size // 2, 1)
    violation = best.violations[0]
    return Shrunk(run.seed, violation.what, violation.why, len(run.faults), _trace(best.faults))


def _trace(faults: Sequence[Fault]) -> tuple[str, ...]:
    return tuple(str(fault) for fault in faults)
