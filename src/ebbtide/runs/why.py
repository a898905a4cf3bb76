"""Explanations of a live run: the decisions in its journal, each with its cost and result so far."""

from __future__ import annotations

import math
import re

from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.snapshots import first_machine_of
from ebbtide.engine.decisions import decision_of
from ebbtide.engine.explanation import Told
from ebbtide.engine.snapshot import lease_of
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import runnable

# A machine as people name it: `3`, `m0003` or `RUN-m0003`.
_LEASE = re.compile(r"(?:(?P<run>.+)-)?(?P<machine>m?)(?P<number>\d{1,9})")


def told_of(folder: RunFolder) -> Told:
    """Read the decisions, leases and costs that explain a live run from its journal.

    Raises:
        InputError: Nothing has been decided yet, or the journal cannot be read.
    """
    journal = journal_of(folder, read_only=True)
    with journal.connected():
        kept, figures = journal.run(), journal.figures()
    if kept is None:
        raise InputError(f"run {folder.path.name} has decided nothing yet")
    engine = kept["engine"]
    paid = {
        lease_id: math.fsum(charge["usd"] for charge in bill["charges"]) - float(bill["refund_usd"])
        for lease_id, bill in engine["bills"]
    }
    steps_on: dict[int, float] = {}
    for job in engine["jobs"]:
        for lease_id, steps in job["steps_on"]:
            steps_on[lease_id] = steps_on.get(lease_id, 0.0) + steps
    open_usd = dict(figures["open_usd"]) if figures is not None else {}
    return Told(
        [decision_of(values) for values in engine["decisions_made"]],
        [lease_of(values) for values in engine["leases"]],
        runnable(folder.settings.sweep).setting_names,
        {**open_usd, **paid},
        {lease_id: float(bill["refund_usd"]) for lease_id, bill in engine["bills"]},
        steps_on,
        figures["time_s"] if figures is not None else math.nan,
    )


def lease_named(folder: RunFolder, name: str) -> int:
    """The number of a lease by the name that people give it or its machine: `3`, `m0003` or `RUN-m0003`.

    Raises:
        InputError: The name has none of these forms, or is of another run, or of a journal that was lost.
    """
    found = _LEASE.fullmatch(name)
    if found is None or found["run"] not in (None, folder.path.name):
        raise InputError(f"{name!r} is no machine of run {folder.path.name}; one is named 3, or m0003")
    kept = journal_of(folder, read_only=True).run(decisions=False, metrics=False) if found["machine"] else None
    first = 0 if kept is None else first_machine_of(kept)
    if int(found["number"]) < first:
        raise InputError(f"machine {name} of run {folder.path.name} is of a journal that was lost")
    return int(found["number"]) - first
