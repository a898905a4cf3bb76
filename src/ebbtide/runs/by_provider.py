"""Live runs by the provider that their settings name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ebbtide.clouds.settings import RENTED, RunFolder
from ebbtide.controller.controller import OnProgress
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.leadership import OthersRunError, newest_claim
from ebbtide.controller.machine_list import machine_id
from ebbtide.controller.snapshots import first_machine_of
from ebbtide.engine.outcome import Outcome
from ebbtide.engine.snapshot import lease_of
from ebbtide.errors import CloudError, EbbtideError, InputError
from ebbtide.policies.api.protocol import Policy
from ebbtide.runs.start_local import end_local, run_local
from ebbtide.storage.objects import object_store

_AGAIN_S = 1.0
# Clouds list a machine some seconds after it was requested. For so long one is waited for that the journal has, if
# the controller was alive so recently, seconds.
_LISTED_S, _RECENTLY_S = 30.0, 60.0
_STORAGE_S = 8.0


@dataclass(frozen=True)
class MachinesEnded:
    """The result of ending all machines of a run.

    Attributes:
        ended: Number of machines that were ended.
        refused: Why a machine that still runs could not be ended, by machine id.
        problem: Why it is not known whether machines still run; empty: it is known.
    """

    ended: int
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_done(self) -> bool:
        """True if it is certain that no machine is left."""
        return not self.refused and not self.problem


def run_live(folder: RunFolder, policy: Policy, on_progress: OnProgress | None = None) -> Outcome:
    """Run a new run, or resume one, until it ends.

    Args:
        folder: Folder of the run.
        policy: The policy that decides.
        on_progress: Called with engine and provider whenever something has happened, and at each poll.

    Raises:
        InputError: Another controller has the run, or something that the run needs is missing.
    """
    if folder.settings.provider in RENTED:
        from ebbtide.runs.start_rented import run_rented

        return run_rented(folder, policy, on_progress)
    return run_local(folder, policy, on_progress).outcome


def end_machines(
    folder: RunFolder, within_s: float = 60.0, report: Callable[[str], None] = lambda _line: None
) -> MachinesEnded:
    """End every machine of a run now, and repeat that until the cloud lists none.

    Args:
        folder: Folder of the run.
        within_s: Real seconds after which to give up.
        report: Called with a line of text whenever the reason why machines are left has changed.
    """
    settings = folder.settings
    if settings.provider not in RENTED:
        return MachinesEnded(end_local(folder))
    from ebbtide.runs.start_rented import cloud_of

    if not settings.fingerprint:
        # An older Ebbtide began the run, so machines of another run with its id have the same names.
        try:
            with suppress(OSError):
                newest_claim(object_store(settings.store, within_s=_STORAGE_S), settings.run, folder.key)
        except OthersRunError as error:
            return MachinesEnded(0, {}, f"{error.problem}; no machine was ended")
    ended: set[str] = set()
    coming = _just_requested(folder)
    until_s, before = time.monotonic() + within_s, ""
    listed_by_s = time.monotonic() + min(_LISTED_S, within_s)
    while True:
        try:
            left = cloud_of(folder).end_all()
        except CloudError as error:
            found = MachinesEnded(len(ended), {}, str(error))
        except InputError as error:
            if not before:
                raise
            # Of several clouds one lacks credentials, and the others, asked before, list no machine any more.
            return MachinesEnded(len(ended), {}, str(error))
        else:
            ended |= {name for name, why in left.items() if not why}
            found = MachinesEnded(len(ended), {name: why for name, why in left.items() if why})
            coming -= left.keys()
            if not left and (not coming or time.monotonic() >= listed_by_s):
                return found
        words = "; ".join([*found.refused.values(), found.problem])
        if words.strip("; ") and words != before:
            report(words.strip("; "))
            before = words
        if time.monotonic() >= until_s:
            return found
        time.sleep(_AGAIN_S)


def _just_requested(folder: RunFolder) -> set[str]:
    """Ids of machines that the journal has, if its controller was just killed: the cloud may not list them yet."""
    with suppress(OSError, EbbtideError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        journal = journal_of(folder, read_only=True)
        with journal.connected():
            kept, figures = journal.run(decisions=False, metrics=False), journal.figures()
        if kept is not None and figures is not None and time.time() - figures["at_epoch_s"] < _RECENTLY_S:
            first, leases = first_machine_of(kept), map(lease_of, kept["engine"]["leases"])
            return {machine_id(folder.settings.run, first + each.lease_id) for each in leases if each.is_open}
    return set()
