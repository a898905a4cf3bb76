"""Live runs by the provider that their settings name."""

from __future__ import annotations

from ebbtide.execution.live.controller import Looked
from ebbtide.execution.live.local import end_local, run_local
from ebbtide.execution.live.settings import RunFolder
from ebbtide.execution.outcome import Outcome
from ebbtide.policies.protocol import Policy


def run_live(folder: RunFolder, policy: Policy, looked: Looked | None = None) -> Outcome:
    """Run it, or go on with it, to its end.

    Raises:
        InputError: Another controller has it, or what it needs is not there.
    """
    if folder.settings.provider == "ec2":
        from ebbtide.execution.live.ec2 import run_ec2

        return run_ec2(folder, policy, looked)
    return run_local(folder, policy, looked).outcome


def end_machines(folder: RunFolder) -> int:
    """End every machine of a run now; returns how many ran."""
    if folder.settings.provider == "ec2":
        from ebbtide.execution.live.ec2 import end_ec2

        return end_ec2(folder)
    return end_local(folder)
