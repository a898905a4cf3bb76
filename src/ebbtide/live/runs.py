"""Live runs by the provider that their settings name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebbtide.engine.outcome import Outcome
from ebbtide.errors import CloudError
from ebbtide.live.controller import OnProgress
from ebbtide.live.local_run import end_local, run_local
from ebbtide.live.settings import RunFolder
from ebbtide.policies.api.protocol import Policy

_AGAIN_S = 1.0


@dataclass(frozen=True)
class MachinesEnded:
    """What came of ending all machines of a run.

    Attributes:
        ended: How many were ended.
        refused: Those that still run, by name, and why they could not be ended.
        problem: Why it is not known whether any still runs; empty: it is.
    """

    ended: int
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_done(self) -> bool:
        """Whether none is left, for certain."""
        return not self.refused and not self.problem


def run_live(folder: RunFolder, policy: Policy, on_progress: OnProgress | None = None) -> Outcome:
    """Run it, or go on with it, to its end.

    Raises:
        InputError: Another controller has it, or what it needs is not there.
    """
    if folder.settings.provider == "ec2":
        from ebbtide.live.ec2_run import run_ec2

        return run_ec2(folder, policy, on_progress)
    return run_local(folder, policy, on_progress).outcome


def end_machines(
    folder: RunFolder, within_s: float = 60.0, report: Callable[[str], None] = lambda _line: None
) -> MachinesEnded:
    """End every machine of a run now, and look again until the cloud lists none.

    Args:
        folder: The run's.
        within_s: Real seconds after which what is left is reported.
        report: Called with a line whenever something has changed.
    """
    if folder.settings.provider != "ec2":
        return MachinesEnded(end_local(folder))
    from ebbtide.live.ec2_run import cloud_ec2

    ended: set[str] = set()
    until_s, before = time.monotonic() + within_s, ""
    while True:
        try:
            left = cloud_ec2(folder).end_all()
        except CloudError as error:
            found = MachinesEnded(len(ended), {}, str(error))
        else:
            ended |= {name for name, why in left.items() if not why}
            found = MachinesEnded(len(ended), {name: why for name, why in left.items() if why})
            if not left:
                return found
        words = "; ".join([*found.refused.values(), found.problem])
        if words.strip("; ") and words != before:
            report(words.strip("; "))
            before = words
        if time.monotonic() >= until_s:
            return found
        time.sleep(_AGAIN_S)
