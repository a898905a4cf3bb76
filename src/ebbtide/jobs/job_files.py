"""Reading of job and sweep files: every command finds out here which of them a file is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from ebbtide.errors import InputError
from ebbtide.jobs.array import Array
from ebbtide.jobs.cluster import DaskProgram, SparkApplication
from ebbtide.jobs.job import TRAINING_FIELDS, Coupling, Job
from ebbtide.jobs.job_list import SHARED_FIELDS, JobList, OneJob, Runnable, in_list
from ebbtide.jobs.matrix_program import MatrixProgram
from ebbtide.jobs.one_training import SingleTraining
from ebbtide.jobs.parsing import read_mapping, validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.prices import PriceHistory


class FileKind(StrEnum):
    """The kinds of files."""

    JOB = "job"  # work to be replayed or planned: steps and a speed, no program
    TRAINING = "training"  # a job with a program
    SWEEP = "sweep"  # a program and settings to choose among
    SPARK = "spark"  # a Spark application
    DASK = "dask"  # a program that uses Dask
    ARRAY = "array"  # a program, and tasks that it is called for
    WORKFLOW = "workflow"  # jobs in order, as a cookbook plans them: hours of work and speedups
    LIST = "list"  # several jobs of any kind, side by side or in order
    PROGRAM = "program"  # a matrix program


# The first of these fields that a file has decides its kind.
_MARKS = (
    ("jobs", FileKind.LIST),
    ("tasks", FileKind.ARRAY),
    ("spark", FileKind.SPARK),
    ("dask", FileKind.DASK),
    ("grid", FileKind.SWEEP),
    ("list", FileKind.SWEEP),
    ("random", FileKind.SWEEP),
    ("max_trial_steps", FileKind.SWEEP),
    ("program", FileKind.PROGRAM),
    ("command", FileKind.TRAINING),
    ("entry_point", FileKind.SWEEP),
)

# Kinds that run as they are written, and how users write the others.
_RUN_AS_WRITTEN: dict[FileKind, type[Sweep | Array]] = {FileKind.SWEEP: Sweep, FileKind.ARRAY: Array}
_WRITTEN: dict[FileKind, type[SingleTraining | SparkApplication | DaskProgram | MatrixProgram]] = {
    FileKind.TRAINING: SingleTraining,
    FileKind.SPARK: SparkApplication,
    FileKind.DASK: DaskProgram,
    FileKind.PROGRAM: MatrixProgram,
}

# What a file may hold of its kind, for those whose fields are checked here, and what the kind is called.
_FIELDS: dict[FileKind, type[BaseModel]] = {**_WRITTEN, **_RUN_AS_WRITTEN, FileKind.LIST: JobList}
_CALLED = {
    FileKind.LIST: "a list of jobs",
    FileKind.ARRAY: "an array",
    FileKind.SPARK: "a Spark application",
    FileKind.DASK: "a program that uses Dask",
    FileKind.SWEEP: "a sweep",
    FileKind.PROGRAM: "a matrix program",
    FileKind.TRAINING: "a training",
}

# Fields of a training that replays of a job use too.
_OF_BOTH = frozenset(
    {
        "name",
        "steps",
        "steps_per_hour",
        "other_steps_per_hour_per_vcpu",
        "checkpoint",
        "machines",
        "share",
        "speedup",
        "bucket",
    }
)
_WHAT = "job or sweep: a mapping with command, or with steps and steps_per_hour, is needed"


def kind_of(content: Mapping[str, Any]) -> FileKind:
    """The kind of a file, by the fields that it has."""
    found = next((kind for field, kind in _MARKS if field in content), FileKind.JOB)
    if found is FileKind.LIST and any("work_h" in job for job in _mappings(content["jobs"])):
        return FileKind.WORKFLOW
    if found is FileKind.JOB and get_close_matches("command", map(str, content), n=1, cutoff=0.8):
        return FileKind.TRAINING  # a misspelt `command`, reported as such
    return found


def _check_one_kind(content: Mapping[str, Any], kind: FileKind, path: str | Path) -> None:
    """Raise `InputError` for a file that has the mark of a kind and a field that marks another."""
    if kind not in _FIELDS:
        return
    own = {name for name, of_kind in _MARKS if of_kind is kind} | set(_FIELDS[kind].model_fields)
    mark = next((name for name, of_kind in _MARKS if of_kind is kind and name in content), None)
    other = next(((name, of_kind) for name, of_kind in _MARKS if name in content and name not in own), None)
    if mark is not None and other is not None:
        name, of_kind = other
        raise InputError(
            f"the file is read as {_CALLED[kind]} because of `{mark}`; `{name}` is for {_CALLED[of_kind]}: "
            "leave one of them out",
            file=path,
            field=name,
        )


def _mappings(jobs: Any) -> list[Mapping[str, Any]]:
    return [job for job in jobs if isinstance(job, Mapping)] if isinstance(jobs, list) else []


@dataclass(frozen=True)
class ReplayedWork:
    """Work to be replayed.

    Attributes:
        jobs: The job, or one job for each trial of a sweep, or of each job of a list.
        sweep: The sweep or list that the jobs come from; None for a job without requirements on machines.
    """

    jobs: tuple[Job, ...]
    sweep: Runnable | None = None

    def allowed(self, prices: PriceHistory, catalogue: Catalogue) -> PriceHistory:
        """The markets of a history in which its machines may be rented.

        Raises:
            InputError: There is no such market.
        """
        return prices if self.sweep is None else self.sweep.allowed(prices, catalogue)


# Measured speeds by name of the job: the fields of a job file that have them (`ModelBundle.speeds`).
Speeds = Mapping[str, Mapping[str, Any]]

JobOrSweep = TypeVar("JobOrSweep", Job, OneJob)


def with_speeds(content: Mapping[str, Any], speeds: Speeds) -> dict[str, Any]:
    """The fields of a job with the speeds that were measured for its name; what its user has written stays.

    Args:
        content: Fields of a job or a sweep.
        speeds: Measured speeds by name of the job.
    """
    known, declared = speeds.get(str(content.get("name"))), content.get("steps_per_hour") or {}
    if known is None or not isinstance(declared, Mapping):
        return dict(content)
    rates = {**known.get("steps_per_hour", {}), **declared}
    own = {name: value for name, value in content.items() if value is not None}
    return {**content, **known, **own, **({"steps_per_hour": rates} if rates else {})}


def measured(work: JobOrSweep, speeds: Speeds) -> JobOrSweep:
    """A job or sweep with the speeds that were measured for its name; see `with_speeds`."""
    if work.name not in speeds:
        return work
    known = {name: getattr(work, name) for name in ("name", "steps_per_hour", "other_steps_per_hour_per_vcpu")}
    return work.model_copy(update=with_speeds(known, speeds))


def read_jobs(path: str | Path, catalogue: Catalogue | None = None) -> tuple[Job, ...]:
    """The jobs alone of `read_work`."""
    return read_work(path, catalogue).jobs


def read_work(path: str | Path, catalogue: Catalogue | None = None, speeds: Speeds | None = None) -> ReplayedWork:
    """The work in a file, for commands that replay it.

    Args:
        path: Path of the YAML file.
        catalogue: Known instance types; the embedded catalogue by default.
        speeds: Measured speeds, for what the file does not say.

    Raises:
        InputError: The file is missing or is not a job or sweep; a field is wrong; its speed or its number of
            steps is not given.
    """
    known = catalogue or default_catalogue()
    content = with_speeds(read_mapping(path, _WHAT), speeds or {})
    kind = kind_of(content)
    if kind is FileKind.JOB:
        return ReplayedWork((Job.parse(content, path, known),))
    if kind is FileKind.LIST:
        listed = _list_of(content, path, known, speeds=speeds or {})
        _check_known(listed, path)
        return ReplayedWork(listed.jobs(known), listed)
    replayed = set(Job.model_fields) - {*TRAINING_FIELDS, "command"}
    if kind is FileKind.TRAINING and set(content) - set(SingleTraining.model_fields) <= replayed:
        # Fields for replays alone, such as the number of machines, are checked by the job.
        of_job = {key: value for key, value in content.items() if key in replayed}
        own = {key: value for key, value in content.items() if key not in replayed or key in _OF_BOTH}
        training = SingleTraining.parse(own, path).work(path)
        training.check_types(known, path)
        _check_known(training, path)
        return ReplayedWork((Job.parse({"name": training.name, **of_job}, path, known),), training)
    sweep = _sweep_of(content, kind, path, known)
    _check_known(sweep, path)
    return ReplayedWork(sweep.jobs(), sweep)


def read_runnable(
    path: str | Path,
    catalogue: Catalogue | None = None,
    *,
    to_run: bool = False,
    speeds: Speeds | None = None,
) -> Runnable:
    """The sweep or the list of jobs in a file; see `read_sweep`, with the same errors."""
    content = read_mapping(path, _WHAT)
    if kind_of(content) is FileKind.LIST:
        return _list_of(content, path, catalogue or default_catalogue(), to_run=to_run, speeds=speeds or {})
    return sweep_from(with_speeds(content, speeds or {}), path, catalogue, to_run=to_run)


def read_sweep(
    path: str | Path,
    catalogue: Catalogue | None = None,
    *,
    to_run: bool = False,
    speeds: Speeds | None = None,
) -> OneJob:
    """The job in a file, of whatever kind, for commands that plan or run it; a training is a sweep of one trial.

    Args:
        path: Path of the YAML file.
        catalogue: Known instance types; the embedded catalogue by default.
        to_run: Whether the sweep needs a program.
        speeds: Measured speeds, for what the file does not say.

    Raises:
        InputError: The file is missing or is not a job or sweep; a field is wrong; a program is missing.
    """
    content = with_speeds(read_mapping(path, _WHAT), speeds or {})
    return sweep_from(content, path, catalogue, to_run=to_run)


def sweep_from(
    content: dict[str, Any], path: str | Path, catalogue: Catalogue | None = None, *, to_run: bool = False
) -> OneJob:
    """The job in the content of a file, as `read_sweep` reads it.

    Args:
        content: What the file holds, as plain values.
        path: Path of the file, for errors.
        catalogue: Known instance types; the embedded catalogue by default.
        to_run: Whether the sweep needs a program.

    Raises:
        InputError: The content is not a job or sweep; a field is wrong; a program is missing.
    """
    known = catalogue or default_catalogue()
    kind = kind_of(content)
    # A missing program is reported before other fields: with a program, no speed is needed.
    sweep = None if to_run and kind is FileKind.JOB else _sweep_of(content, kind, path, known)
    if sweep is None or (to_run and sweep.command is None and sweep.entry_point is None):
        raise InputError(
            "missing; there is nothing to run: write `command: python train.py`", file=path, field="command"
        )
    return sweep if sweep.policy is None else sweep.model_copy(update={"policy": sweep.policy.beside(path)})


def _list_of(
    content: Mapping[str, Any], path: str | Path, catalogue: Catalogue, *, speeds: Speeds, to_run: bool = False
) -> JobList:
    """The list of jobs in the content of a file."""
    _check_one_kind(content, FileKind.LIST, path)
    jobs = content["jobs"]
    if not isinstance(jobs, list) or not jobs:
        problem = "is empty, or no list: each job is an entry, as in a file of its own"
        raise InputError(problem, file=path, field="jobs")
    name = str(content.get("name", Path(path).stem))
    listed = [_listed(job, place, path, catalogue, speeds, name, to_run=to_run) for place, job in enumerate(jobs)]
    others = {name: value for name, value in content.items() if name != "jobs"}
    if "listed" in others:
        raise InputError("unknown; the jobs stand in `jobs`", file=path, field="listed")
    try:
        found = validated(JobList, {"name": Path(path).stem, **others, "listed": listed}, path)
    except InputError as error:
        # In the file they are called jobs.
        field = None if error.field is None else re.sub(r"^listed\b", "jobs", error.field)
        problems = [re.sub(r"\blisted\b", "jobs", problem) for problem in error.problems]
        raise InputError(
            re.sub(r"\blisted\b", "jobs", error.problem), file=path, field=field, problems=problems
        ) from None
    return found if found.policy is None else found.model_copy(update={"policy": found.policy.beside(path)})


def _listed(
    job: Any,
    place: int,
    path: str | Path,
    catalogue: Catalogue,
    speeds: Speeds,
    listed_in: str,
    *,
    to_run: bool,
) -> dict[str, Any]:
    """Read a job of a list as plain values; its speeds are found by the names of list and job."""
    where = f"jobs.{place}"
    if not isinstance(job, dict):
        raise InputError(f"is {job!r:.80}; a job is needed, as in a file of its own", file=path, field=where)
    shared = next((name for name in SHARED_FIELDS if name in job), None)
    if shared is not None:
        raise InputError("holds for all jobs: write it beside `jobs`", file=path, field=f"{where}.{shared}")
    markets = job.get("markets")
    if isinstance(markets, Mapping) and set(markets) - {"instance_types"}:
        raise InputError(
            "of one job can name instance_types; what else limits markets stands beside `jobs`",
            file=path,
            field=f"{where}.markets",
        )
    needs = job.get("needs", [])
    names = [needs] if isinstance(needs, str) else needs
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"is {needs!r:.80}; the name of a job is needed, or a list of names", file=path, field=f"{where}.needs"
        )
    own = {name: value for name, value in job.items() if name != "needs"}
    content = with_speeds(own, {str(own.get("name")): speeds.get(f"{listed_in}/{own.get('name')}", {})})
    try:
        kind = kind_of(content)
        if kind in (FileKind.LIST, FileKind.WORKFLOW):
            raise InputError("is a list itself; lists do not nest", field="jobs")
        sweep = sweep_from(content, path, catalogue, to_run=to_run)
    except InputError as error:
        raise in_list(error, place, path) from None
    work = sweep.model_copy(update={"policy": None})
    policy = None if sweep.policy is None else sweep.policy.model_dump(mode="json")
    return {
        "needs": names,
        "policy": policy,
        "work": work.model_dump(mode="json"),
    }


def _sweep_of(content: dict[str, Any], kind: FileKind, path: str | Path, catalogue: Catalogue) -> OneJob:
    if kind is FileKind.WORKFLOW:
        raise InputError("is a workflow (it has jobs); `ebbtide cookbook solve` plans it", file=path)
    if kind is FileKind.LIST:
        raise InputError("is a list of jobs, and one job is needed; give each a file of its own", file=path)
    _check_one_kind(content, kind, path)
    if kind is FileKind.JOB and ("steps" in content or "steps_per_hour" in content):
        job = Job.parse(content, path, catalogue)
        if job.coupling is not Coupling.GANG:
            raise InputError("wants machines that work alone; `ebbtide compare` replays that", file=path)
        if job.dataset is not None:
            raise InputError("dataset is for `ebbtide compare`, which replays this job", file=path)
        fields = job.model_dump(mode="json", include=set(_OF_BOTH - {"steps"}))
        return validated(Sweep, fields | {"max_trial_steps": job.steps}, path)
    if kind is FileKind.SWEEP and "steps" in content and "max_trial_steps" not in content:
        # `steps` is accepted for `max_trial_steps`, since jobs call it so.
        content = {**content, "max_trial_steps": content["steps"]}
        del content["steps"]
    if kind in _RUN_AS_WRITTEN:
        return _RUN_AS_WRITTEN[kind].parse(content, path, catalogue)
    sweep = _WRITTEN.get(kind, SingleTraining).parse(content, path).work(path)
    sweep.check_types(catalogue, path)
    return sweep


def _check_known(sweep: Runnable, path: str | Path) -> None:
    """Raise `InputError`, naming the file, where a speed or number of steps that replays need is missing."""
    try:
        sweep.jobs()
    except InputError as error:
        raise InputError(error.problem, file=path, problems=error.problems) from None
