"""What a file of work is, a job or a sweep, and either from both: every command reads its file through this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from ebbtide.errors import InputError
from ebbtide.jobs.job import TRAINING_FIELDS, Coupling, Job
from ebbtide.jobs.parsing import read_mapping, validated
from ebbtide.jobs.single import SingleTraining
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.prices import PriceHistory


class Kind(StrEnum):
    """What a file describes."""

    JOB = "job"  # work to be replayed or planned: steps and a speed, no program
    TRAINING = "training"  # a job with a program
    SWEEP = "sweep"  # a program, and settings to choose among
    WORKFLOW = "workflow"  # jobs in order
    PROGRAM = "program"  # of tiled matrices


# The first of these that a file has tells what it is.
_SIGNS = (
    ("grid", Kind.SWEEP),
    ("list", Kind.SWEEP),
    ("random", Kind.SWEEP),
    ("max_trial_steps", Kind.SWEEP),
    ("jobs", Kind.WORKFLOW),
    ("program", Kind.PROGRAM),
    ("command", Kind.TRAINING),
    ("entry_point", Kind.SWEEP),
)

# What a training file has, and what replays of a job look at as well.
_OF_BOTH = frozenset({"name", "steps", "steps_per_hour", "other_steps_per_hour_per_vcpu", "checkpoint"})
_WHAT = "job or sweep: a mapping with command, or with steps and steps_per_hour, is needed"


def kind_of(content: Mapping[str, Any]) -> Kind:
    """What a file describes, by the fields that it has."""
    found = next((kind for field, kind in _SIGNS if field in content), Kind.JOB)
    if found is Kind.JOB and get_close_matches("command", map(str, content), n=1, cutoff=0.8):
        return Kind.TRAINING  # misspelt, and told so
    return found


@dataclass(frozen=True)
class Work:
    """What commands replay.

    Attributes:
        jobs: One, or one for each trial of a sweep.
        sweep: What they come from; None: a job that any machine may do.
    """

    jobs: tuple[Job, ...]
    sweep: Sweep | None = None

    def allowed(self, prices: PriceHistory, catalogue: Catalogue) -> PriceHistory:
        """The part of a history in which its machines may be rented.

        Raises:
            InputError: There is none.
        """
        return prices if self.sweep is None else self.sweep.allowed(prices, catalogue)


def read_jobs(path: str | Path, catalogue: Catalogue | None = None) -> tuple[Job, ...]:
    """The jobs alone of `read_work`."""
    return read_work(path, catalogue).jobs


def read_work(path: str | Path, catalogue: Catalogue | None = None) -> Work:
    """What a file describes, for commands that replay it.

    Raises:
        InputError: The file is missing or no job or sweep; a field is wrong; how fast it is, or how many steps it
            has, is not said.
    """
    known = catalogue or default_catalogue()
    content = read_mapping(path, _WHAT)
    kind = kind_of(content)
    if kind is Kind.JOB:
        return Work((Job.parse(content, path, known),))
    replayed = set(Job.model_fields) - {*TRAINING_FIELDS, "command"}
    if kind is Kind.TRAINING and set(content) - set(SingleTraining.model_fields) <= replayed:
        # Fields that only replays know, such as the number of machines, are checked by the job.
        of_job = {key: value for key, value in content.items() if key in replayed}
        own = {key: value for key, value in content.items() if key not in replayed or key in _OF_BOTH}
        sweep = SingleTraining.parse(own, path).sweep(path)
        sweep.check_types(known, path)
        _check_known(sweep, path)
        return Work((Job.parse({"name": sweep.name, **of_job}, path, known),), sweep)
    sweep = _sweep_of(content, kind, path, known)
    _check_known(sweep, path)
    return Work(sweep.jobs(), sweep)


def read_sweep(path: str | Path, catalogue: Catalogue | None = None, *, to_run: bool = False) -> Sweep:
    """The sweep of a file, for commands that plan or run it; a job is a sweep of one trial.

    Args:
        path: The file.
        catalogue: Instance types.
        to_run: It needs a program.

    Raises:
        InputError: The file is missing or no job or sweep; a field is wrong; a program is needed and missing.
    """
    known = catalogue or default_catalogue()
    content = read_mapping(path, _WHAT)
    kind = kind_of(content)
    # Before its other fields: of what has a program the speed need not be known.
    sweep = None if to_run and kind is Kind.JOB else _sweep_of(content, kind, path, known)
    if sweep is None or (to_run and sweep.command is None and sweep.entry_point is None):
        raise InputError(
            "missing; there is nothing to run: write `command: python train.py`", file=path, field="command"
        )
    return sweep


def _sweep_of(content: dict[str, Any], kind: Kind, path: str | Path, catalogue: Catalogue) -> Sweep:
    if kind is Kind.WORKFLOW:
        raise InputError("is a workflow (it has jobs); `ebbtide cookbook solve` plans it", file=path)
    if kind is Kind.PROGRAM:
        raise InputError("is a program of tiled matrices; `ebbtide cookbook` plans and runs it", file=path)
    if kind is Kind.JOB and ("steps" in content or "steps_per_hour" in content):
        job = Job.parse(content, path, catalogue)
        if job.machines > 1 or job.coupling is not Coupling.GANG or job.share < 1:
            raise InputError("wants more or less than one machine; `ebbtide backtest` replays that", file=path)
        if job.speedup is not None or job.dataset is not None:
            raise InputError("speedup and dataset are for `ebbtide backtest`, which replays this job", file=path)
        fields = job.model_dump(mode="json", include=set(_OF_BOTH - {"steps"}))
        return validated(Sweep, fields | {"max_trial_steps": job.steps}, path)
    if kind is Kind.SWEEP and "steps" in content and "max_trial_steps" not in content:
        # One field, two names: whoever has written a job knows it by the other.
        content = {**content, "max_trial_steps": content["steps"]}
        del content["steps"]
    if kind is Kind.SWEEP:
        return Sweep.parse(content, path, catalogue)
    sweep = SingleTraining.parse(content, path).sweep(path)
    sweep.check_types(catalogue, path)
    return sweep


def _check_known(sweep: Sweep, path: str | Path) -> None:
    """Raise `InputError` where replays need what only a run can tell, naming the file."""
    try:
        sweep.jobs()
    except InputError as error:
        raise InputError(error.problem, file=path, problems=error.problems) from None
