"""Several jobs in one run, side by side or one after the other, each of any kind."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ebbtide.errors import InputError
from ebbtide.jobs.array import Array
from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.cluster import Cluster
from ebbtide.jobs.common_fields import Direction, SharedTerms
from ebbtide.jobs.job import Job
from ebbtide.jobs.parsing import Frozen
from ebbtide.jobs.single_job import SweepTrial
from ebbtide.jobs.sweep import MOST_TRIALS, Sweep
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

# The name is also that of a folder, in which those that need the job find what it has stored.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")

# More jobs than anybody writes down.
MOST_LISTED = 1_000

# What the file says for all of its jobs, and no job for itself.
SHARED_FIELDS = ("budget_usd", "billing", "decides")


# One job of a run, by its kind.
OneJob = Sweep | Array | Cluster


def kind_of_saved(content: Mapping[str, Any]) -> type[OneJob]:
    """The kind of a job, by the fields that it was saved with."""
    if content.get("tasks") is not None:
        return Array
    return Sweep if content.get("framework") is None else Cluster


def one_job(content: Any) -> Any:
    """Restore a job of any kind from the plain values of `model_dump`; what it is already, it stays."""
    return kind_of_saved(content).model_validate(content) if isinstance(content, Mapping) else content


class ListedJob(Frozen):
    """Job of a list.

    Attributes:
        needs: Names of the jobs that must be done before this one begins.
        policy: The policy that decides for this job alone; None: that of the list.
        work: The work of a run of this job alone; its name is the job's.
    """

    needs: tuple[str, ...] = ()
    policy: AskedPolicy | None = None
    work: Annotated[OneJob, BeforeValidator(one_job)]

    @property
    def name(self) -> str:
        """Its name in the list."""
        return self.work.name


class JobList(SharedTerms):
    """Several jobs that run side by side, or after those that they need, for one budget.

    Attributes:
        name: Name of the list in tables and tags.
        listed: The jobs; each stands after those that it needs.
        budget_usd: The most that may be spent on all of them, USD.
        deadline_h: Hours from the start of the run by which all should be done. A job's own deadline counts from
            the start of the run, too.
        policy: The policy that decides for jobs that name none, by name, or with parameters; None: the one that
            suits each.
    """

    is_list: ClassVar[Literal[True]] = True
    kind: ClassVar[Literal["list"]] = "list"
    # Its jobs have no metric and no number of steps in common.
    metric: ClassVar[None] = None
    direction: ClassVar[Direction] = Direction.MINIMIZE
    steps: ClassVar[None] = None

    name: Annotated[str, Field(min_length=1)]
    listed: Annotated[tuple[ListedJob, ...], Field(min_length=1)]

    def _circle(self, name: str) -> Sequence[str]:
        """Names from a job over those that each needs back to it; empty: it does not need itself."""
        needs = {job.name: job.needs for job in self.listed}
        ways, seen = [[name]], {name}
        while ways:
            way = ways.pop()
            for needed in needs.get(way[-1], ()):
                if needed == name:
                    return [*way, name]
                if needed not in seen:
                    seen.add(needed)
                    ways.append([*way, needed])
        return ()

    @model_validator(mode="after")
    def _is_in_order(self) -> JobList:
        names = [job.name for job in self.listed]
        folders: set[str] = set()
        for place, job in enumerate(self.listed):
            # Their folders are one where a disk does not tell small letters from large ones.
            if job.name.casefold() in folders:
                raise ValueError(f"two jobs are named {job.name!r}; give each a `name` of its own")
            folders.add(job.name.casefold())
            if len(set(job.needs)) < len(job.needs):
                raise ValueError(f"job {job.name} needs a job twice")
            if not _NAME.fullmatch(job.name):
                raise ValueError(
                    f"job {job.name!r}: the name of a job in a list has letters, digits, dots, - and _ alone"
                )
            for needed in job.needs:
                if needed == job.name:
                    raise ValueError(f"job {job.name} needs itself")
                if needed not in names:
                    raise ValueError(f"job {job.name} needs {needed!r}, and the jobs are {', '.join(names)}")
                if needed not in names[:place] and (circle := self._circle(job.name)):
                    told = ", ".join(f"{one} needs {other}" for one, other in pairwise(circle))
                    raise ValueError(f"jobs need each other in a circle: {told}; none of them could begin")
                if needed not in names[:place]:
                    raise ValueError(f"job {job.name} stands before {needed}, which it needs; put it after")
        if len(self.listed) > MOST_LISTED:
            raise ValueError(f"has {len(self.listed):,} jobs; {MOST_LISTED:,} at most: a sweep has more trials")
        if len(self.job_names) > MOST_TRIALS:
            raise ValueError(f"has {len(self.job_names):,} trainings; {MOST_TRIALS:,} at most")
        repeated = [name for name, count in Counter(self.job_names).items() if count > 1]
        if repeated:
            raise ValueError(f"two trainings are named {repeated[0]!r}, one as a trial of a sweep; rename one")
        return self

    # What a run of one sweep has, too.

    @property
    def parts(self) -> tuple[OneJob, ...]:
        """The jobs, in order."""
        return tuple(job.work for job in self.listed)

    def part_of(self, job_id: int) -> tuple[OneJob, SweepTrial]:
        """Return the job and the trial of a training, by its number in the run."""
        return self._trainings[job_id]

    @cached_property
    def _trainings(self) -> tuple[tuple[OneJob, SweepTrial], ...]:
        return tuple((part, trial) for part in self.parts for trial in part.trials())

    @property
    def in_words(self) -> str:
        """Number of its jobs in words."""
        return f"{len(self.listed)} jobs"

    def needed_by(self, job_id: int) -> tuple[int, ...]:
        """The numbers in the run of the trainings that must be done before one begins."""
        name = self.part_of(job_id)[0].name
        needs = next(job.needs for job in self.listed if job.name == name)
        return tuple(number for needed in needs for number in self.ids_of(needed))

    def located(self, error: InputError, place: int) -> InputError:
        """An error of the job at a place, which it names."""
        return in_list(error, place, None)

    def in_bucket(self, found: Bucket, store: str) -> JobList:
        """The same with the bucket that the store of its jobs was found to be.

        Raises:
            InputError: The file of one says otherwise.
        """
        listed = []
        for place, job in enumerate(self.listed):
            try:
                listed.append(job.model_copy(update={"work": job.work.in_bucket(found, store)}))
            except InputError as error:
                raise in_list(error, place, None) from None
        # `model_copy` would also copy values cached from the old jobs.
        return JobList(**{name: getattr(self, name) for name in JobList.model_fields} | {"listed": tuple(listed)})

    def ids_of(self, name: str) -> tuple[int, ...]:
        """The numbers in the run of a job's trainings."""
        return self._ids[name]

    @cached_property
    def _ids(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for number, (part, _) in enumerate(self._trainings):
            found[part.name] = (*found.get(part.name, ()), number)
        return found

    @property
    def job_names(self) -> tuple[str, ...]:
        """The name of each training, in order of their numbers."""
        return tuple(name for part in self.parts for name in part.job_names)

    @property
    def setting_names(self) -> tuple[str, ...]:
        """Each training in words, in order of their numbers: its job, and its values."""
        return tuple(
            f"{part.name}: {trial.name}" if part.has_choice else part.name
            for part in self.parts
            for trial in part.trials()
        )

    @property
    def is_measured(self) -> bool:
        """True if the speed of every job is known on some instance type."""
        return all(part.is_measured for part in self.parts)

    @property
    def has_choice(self) -> bool:
        """False: a list of jobs is not a sweep."""
        return False

    @property
    def asked(self) -> str:
        """Requirements for all machines, in words; always empty, since each job has its own."""
        return ""

    def jobs(self, catalogue: Catalogue | None = None) -> tuple[Job, ...]:
        """A job for each training, for replays.

        Raises:
            InputError: The speed or the number of steps of one is unknown.
        """
        known = catalogue or default_catalogue()
        return tuple(limited(job, part, known) for part in self.parts for job in part.jobs())

    def live_jobs(self, catalogue: Catalogue | None = None) -> tuple[Job, ...]:
        """A job for each training, for live runs, in which an unknown speed is measured."""
        known = catalogue or default_catalogue()
        return tuple(limited(job, part, known) for part in self.parts for job in part.live_jobs(known))

    def check_types(self, catalogue: Catalogue, file: str | Path | None = None) -> None:
        """Raise `InputError` for an unknown instance type, or if no type has everything that a job requires."""
        for place, part in enumerate(self.parts):
            try:
                part.check_types(catalogue, file)
            except InputError as error:
                raise in_list(error, place, file) from None

    def allowed(self, prices: PriceHistory, catalogue: Catalogue | None = None) -> PriceHistory:
        """The markets of a history in which machines may be rented that suit one of the jobs.

        Raises:
            InputError: A job has no market in the history.
        """
        known = catalogue or default_catalogue()
        own = [market for market in prices if self.markets.allows(market)]
        if not own:
            raise InputError(
                f"markets of {self.name} allow none of the {len(prices)} markets of these prices", field="markets"
            )
        for part in self.parts:
            part.allowed(prices.select(own), known)
        return prices.select([market for market in own if any(part.allows(market, known) for part in self.parts)])

    def allows(self, market: Market, catalogue: Catalogue) -> bool:
        """Return whether machines may be rented in a market, and suit one of the jobs."""
        return self.markets.allows(market) and any(part.allows(market, catalogue) for part in self.parts)

    def types_wanted(self, catalogue: Catalogue) -> Sequence[str]:
        """Names of the instance types whose prices are needed; empty: all types."""
        if self.markets.instance_types:
            return self.markets.instance_types
        wanted = [part.types_wanted(catalogue) for part in self.parts]
        return sorted({name for names in wanted for name in names}) if all(wanted) else ()

    # The order.

    @cached_property
    def _due_h(self) -> dict[str, float]:
        """Hours from the start of the run by which each job should be done; infinity: whenever it is."""
        after: dict[str, list[ListedJob]] = {}
        for job in self.listed:
            for needed in job.needs:
                after.setdefault(needed, []).append(job)
        due_h: dict[str, float] = {}
        for job in reversed(self.listed):
            own = [each for each in (job.work.deadline_h, self.deadline_h) if each is not None]
            # Those that need it begin so early that they are done in time on the fastest machines that they name.
            latest = (due_h[other.name] - _least_h(other.work) for other in after.get(job.name, ()))
            due_h[job.name] = min([*own, *latest], default=math.inf)
        return due_h

    def deadline_of(self, job: ListedJob) -> float | None:
        """Hours from the start of the run by which a job should be done: its own deadline, that of the list, or
        what those that need it leave; None: there is none.

        Raises:
            InputError: They leave it no time.
        """
        due_h = self._due_h[job.name]
        if due_h <= 0.0:
            raise InputError(
                f"job {job.name} has no time: those that need it take {-due_h + 0.0:.3g} h more than until their "
                "deadlines, on the fastest machines that they name; give more",
                field="deadline_h",
            )
        return None if math.isinf(due_h) else due_h


# What a run runs.
Runnable = OneJob | JobList


def in_list(error: InputError, number: int, file: str | Path | None) -> InputError:
    """An error of a listed job, with its place in the file."""
    where = f"jobs.{number}"
    if error.problems:
        return InputError(error.problem, file=file, field=where, problems=error.problems)
    return InputError(error.problem, file=file, field=f"{where}.{error.field}" if error.field else where)


def limited(job: Job, part: OneJob, catalogue: Catalogue) -> Job:
    """A job that can run on those machines alone that its own requirements allow: the run may rent others, too."""
    types = part.markets.instance_types
    if not part.asked and not types:
        return job
    fitting = [
        machine
        for machine in catalogue.instance_types
        if part.fits(machine) and (not types or machine.name in types)
    ]
    rates: dict[str, float] = {}
    for machine in fitting:
        rate = job.steps_per_hour.get(machine.name)
        if rate is None and job.other_steps_per_hour_per_vcpu is not None:
            rate = job.other_steps_per_hour_per_vcpu * machine.vcpus
        if rate is not None:
            rates[machine.name] = rate
    return job.model_copy(update={"steps_per_hour": rates, "other_steps_per_hour_per_vcpu": None})


def runnable(content: Mapping[str, Any]) -> Runnable:
    """Restore the job or list that a run was started with, from the plain values of `model_dump`."""
    kind = JobList if "listed" in content else kind_of_saved(content)
    return kind.model_validate(content)


def split_by_kind(content: Mapping[str, Any]) -> dict[str, Any]:
    """Drop from saved work what is no field of its kind: once all kinds of jobs had the fields of all."""
    if "listed" in content:
        return {
            **content,
            "listed": [{**job, "work": split_by_kind(job["work"])} for job in content["listed"]],
        }
    known = kind_of_saved(content).model_fields
    return {name: value for name, value in content.items() if name in known}


def _least_h(work: OneJob) -> float:
    """Hours of one of its trainings on the fastest machines that it names; 0: not known."""
    if not work.steps_per_hour or work.steps is None:
        return 0.0
    job = work.jobs()[0]
    return job.steps / max(job.steps_per_hour.values()) / job.speedup_of(job.most_machines)
