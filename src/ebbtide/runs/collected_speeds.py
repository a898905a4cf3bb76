"""Measured speeds of past runs, by job, in the fields that job files have for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.base.cores import usable_cores
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.measured_speed import Seen, SpeedRecords
from ebbtide.errors import EbbtideError
from ebbtide.jobs.job_list import runnable


@dataclass(frozen=True)
class CollectedSpeeds:
    """Measured speeds of a job.

    Attributes:
        steps_per_hour: Steps an hour by instance type, on rented machines.
        other_steps_per_hour_per_vcpu: Steps an hour and core of this machine, an estimate for any other; None: the
            job has not run here.
    """

    steps_per_hour: dict[str, float] = field(default_factory=dict)
    other_steps_per_hour_per_vcpu: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields of a job file; a speed that was not measured is left out."""
        return {name: value for name, value in vars(self).items() if value}


def rates_of(runs: Iterable[RunFolder], name: str) -> CollectedSpeeds:
    """The speeds that runs of one job measured, together; runs without whole trials have none.

    Locally, machines of all types are this one, and time is the market's; elsewhere they are what they are called.

    Args:
        runs: Runs of the job, alone or in a list.
        name: Name of the job.
    """
    types: dict[str, Seen] = {}
    here = Seen()
    for folder in runs:
        records = _measured(folder)
        is_local = folder.settings.provider == "local"
        speed = float(folder.settings.options["speed"]) if is_local else 1.0
        work = runnable(folder.settings.sweep)
        own = [of for job_id, of in records.items() if work.part_of(int(job_id))[0].name == name]
        for of in own:
            for kind, values in of.items():
                seen, total = Seen(**values), here if is_local else types.setdefault(kind, Seen())
                if seen.steps_per_s is not None:
                    total.steps += seen.steps
                    total.duration_s += seen.duration_s / speed
    found = {kind: _per_hour(seen) for kind, seen in sorted(types.items()) if seen.duration_s > 0}
    return CollectedSpeeds(found, _per_hour(here) / usable_cores() if here.duration_s > 0 else None)


def speeds_of_runs(runs: Path) -> dict[str, CollectedSpeeds]:
    """The speeds of every job that has run, by the job's name; that of a job in a list is `LIST/JOB`.

    Args:
        runs: Folder in which runs are kept; it need not be there. What is no readable run is left out.
    """
    of_job: dict[str, list[RunFolder]] = {}
    for path in sorted(runs.glob("*/run.json")):
        folder = RunFolder(path.parent)
        try:
            work = runnable(folder.settings.sweep)
            for part in work.parts:
                name = f"{work.name}/{part.name}" if work.is_list else part.name
                of_job.setdefault(name, []).append(folder)
        except (EbbtideError, KeyError, TypeError):
            continue
    rates = {name: rates_of(found, name.rpartition("/")[2]) for name, found in sorted(of_job.items())}
    return {name: found for name, found in rates.items() if found != CollectedSpeeds()}


def _measured(folder: RunFolder) -> SpeedRecords:
    kept = journal_of(folder, read_only=True).run(decisions=False, metrics=False)
    if kept is None or any(trial["problem"] for trial in kept["provider"]["trials"]):
        return {}
    return kept["provider"]["speeds"]


def _per_hour(seen: Seen) -> float:
    return float(f"{seen.steps / seen.duration_s * HOUR_S:.4g}")
