"""Jobs: work in steps, its speed on each instance type, and its checkpoints."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.parsing import Frozen, read_mapping, validated
from ebbtide.jobs.progress_pattern import checked_pattern
from ebbtide.jobs.resources import MachineCount, Resources
from ebbtide.jobs.transfers import Bucket, seconds_per_gb
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import Market, Place

# The largest number accepted: more than any job needs, and its squares and sums are still finite.
MOST = 10**15

# The part of a machine that a job fills.
Share = Annotated[float, Field(ge=0.01, le=1)]

PositiveFloat = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]


# The message where the speed of a job is unknown.
NO_SPEED = (
    "needs steps_per_hour for some instance type, or other_steps_per_hour_per_vcpu: write "
    "`steps_per_hour: {g4dn.xlarge: 44280}`; `ebbtide run` measures it, and prints the line to write at its end"
)

# The message where there is nothing to put into a bucket.
NO_CHECKPOINT = (
    "bucket says where checkpoints are stored, and with `checkpoint: null` there are none: leave one of them out"
)

# Steps of a training whose length is not known: more than any has, so that nobody takes it for nearly done.
UNKNOWN_STEPS = 1_000_000_000

# Fields of a job that only say how its program is run.
TRAINING_FIELDS = (
    "accelerators",
    "cpus",
    "memory_gib",
    "secrets",
    "checkpoints",
    "progress",
    "metric",
    "budget_usd",
    "deadline_h",
)

# Words of a command that say nothing of what is trained.
_RUNNERS = re.compile(r"(python[\d.]*|torchrun|accelerate|launch|uv|run|poetry|bash|sh|env|-.*|\w+=.*)")

# SpotTune IV-F: moving checkpoints is bound by cores; bytes a second with one core and with sixteen.
_ONE_CORE_BYTES_PER_S = 62.83e6
_SIXTEEN_CORES_BYTES_PER_S = 134.22e6


def checkpoint_bytes_per_s(vcpus: int) -> float:
    """Bytes per second between a machine and object storage (SpotTune IV-F).

    Interpolated in the logarithm of the cores between the paper's two measurements, constant beyond them.
    """
    share = min(math.log2(max(vcpus, 1)) / 4.0, 1.0)
    return _ONE_CORE_BYTES_PER_S + share * (_SIXTEEN_CORES_BYTES_PER_S - _ONE_CORE_BYTES_PER_S)


class Coupling(StrEnum):
    """Dependence of a job's machines on each other."""

    GANG = "gang"  # all work together; losing or gaining one stops and restarts all (MPI, data-parallel)
    INDEPENDENT = "independent"  # each works alone on a shared pool of steps (tasks, Cümülön-D, Spark)


class Checkpointing(Frozen):
    """Costs of saving and restoring a checkpoint.

    Attributes:
        save_s: Time to save and upload, seconds; training stands still meanwhile.
        restore_s: Time to download and load, and to set the machine up for the job, seconds.
        size_bytes: Size of a checkpoint in bytes; charged as egress when moved to another region or cloud.
        interval_s: Seconds between saves while training; None saves only when a machine is released or revoked.
        by_machine: Whether saving and restoring also take the time that a machine of its cores needs to move
            `size_bytes` (`checkpoint_bytes_per_s`).
        by_region: Whether restoring also takes the time that `size_bytes` need from the region where they lie
            (`transfers.seconds_per_gb`), and saving the time that they need to the job's `bucket`, if it has one.
    """

    save_s: NonNegativeFloat = 30.0
    restore_s: NonNegativeFloat = 60.0
    size_bytes: Annotated[int, Field(ge=0, le=1000 * MOST)] = 0
    interval_s: PositiveFloat | None = None
    by_machine: bool = False
    by_region: bool = False

    def moving_s(self, vcpus: int) -> float:
        """Seconds that a machine with this many vCPUs needs to move the checkpoint; 0 unless `by_machine`."""
        return self.size_bytes / checkpoint_bytes_per_s(vcpus) if self.by_machine else 0.0

    @model_validator(mode="after")
    def _can_progress(self) -> Checkpointing:
        if self.interval_s is not None and self.interval_s <= self.save_s:
            raise ValueError(
                f"interval_s {self.interval_s:g} is not longer than save_s {self.save_s:g}: "
                "the job would only save and never finish"
            )
        return self


class Dataset(Frozen):
    """A job's training data, copied once to each other cloud that the job moves to (Dynamic Pricing, 3.2.1).

    Attributes:
        size_bytes: Size in bytes; charged as egress when it is copied.
        cloud: Cloud where it is stored at the start.
        region: Region where it is stored at the start.
        copy_s: Time to copy it, seconds, for which the job waits.
    """

    size_bytes: Annotated[int, Field(ge=0, le=1000 * MOST)]
    cloud: str
    region: str
    copy_s: NonNegativeFloat = 0.0

    @property
    def home(self) -> Place:
        return Place(self.cloud, self.region)


class Amdahl(Frozen):
    """Speedup by Amdahl's law: `1 / (1 - parallel + parallel / n)`.

    Attributes:
        parallel: Share of the work that runs in parallel, in (0, 1].
    """

    parallel: Annotated[float, Field(gt=0, le=1)]

    def speedup(self, machines: int) -> float:
        return 1.0 / (1.0 - self.parallel + self.parallel / machines)


class SpeedupTable(Frozen):
    """Measured speedup; linear between entries and constant beyond the last.

    Attributes:
        table: Speedup over one machine, by number of machines.
    """

    table: dict[Annotated[int, Field(ge=1)], PositiveFloat]

    def speedup(self, machines: int) -> float:
        points = sorted({1: 1.0, **self.table}.items())
        for (low, slow), (high, fast) in pairwise(points):
            if low <= machines <= high:
                return slow + (fast - slow) * (machines - low) / (high - low)
        return points[-1][1]


class Phase(Frozen):
    """A part of a job with a speedup of its own.

    Attributes:
        share: Weight of the phase; its steps are in proportion to its weight among all phases.
        speedup: Speedup of n machines over one in this phase.
    """

    share: PositiveFloat
    speedup: Amdahl | SpeedupTable


class Phases(Frozen):
    """Phases that run one after the other, such as the jobs of a workflow.

    Attributes:
        phases: The phases in the order in which they run.
    """

    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]

    def at(self, share_done: float) -> Amdahl | SpeedupTable:
        """The speedup once the share `share_done` of the job is done."""
        for phase, end in zip(self.phases, self.ends(), strict=True):
            if share_done < end:
                return phase.speedup
        return self.phases[-1].speedup

    def ends(self) -> list[float]:
        """Share of the job that is done at the end of each phase."""
        total = sum(phase.share for phase in self.phases)
        return [sum(phase.share for phase in self.phases[: n + 1]) / total for n in range(len(self.phases))]


# How much faster several machines are than one: always, or phase by phase.
Speedup = Amdahl | SpeedupTable | Phases


class Job(Resources):
    """A piece of training: work to replay, or a command to run, or both.

    With a command nothing else is needed to run it: its name is the program's, it ends when its program does, and
    its speed is measured while it runs. To replay it, `steps` and a speed are needed.

    Attributes:
        name: Name of the job, for tables and tags.
        steps: Number of training steps; `UNKNOWN_STEPS`: it ends when its program does.
        steps_per_hour: Rate by instance type, on one machine of it.
        other_steps_per_hour_per_vcpu: The rate, by core, of types not named above; None: they cannot run it.
        checkpoint: What saving costs; None: the job cannot be checkpointed, and an interruption loses all.
        machines: How many machines it has: a number, or `{min: 2, max: 8}` where fewer do as well. Machines that
            work as one (`gang`) train once they are all there, or at least `min`; those that work alone at once.
        coupling: Whether its machines work as one or alone.
        cpus_per_task: Number of vCPUs of each step, where steps are the tasks of an array: a machine does as many
            of them side by side as it has room for, and each whole or not at all. None: steps are no tasks.
        framework: Name of the framework of a cluster, in which one machine, on demand, is the head of the others
            and works as well: without it nothing is done, and it is one more than `machines`. None: it is none.
        speedup: Of n machines over one, always or phase by phase; perfect if None.
        share: The part of a machine that it fills; jobs whose shares fit run side by side.
        dataset: What it trains on, if moving that is to be counted.
        bucket: Cloud and region of the storage of its checkpoints, to which each is uploaded; None: a checkpoint
            stays in the region of the machine that saved it.
        command: The command line that trains, or a list of its arguments; never given to a shell. None: the job
            can only be replayed.
        accelerators: Name and number of accelerators that its machine has to have, as `T4:1`.
        cpus: Number of vCPUs that its machine has at least.
        memory_gib: Main memory that its machine has at least, in GiB.
        architecture: Processor for which its program is built, `x86_64` or `arm64`; None: x86_64, and the types
            that `steps_per_hour` names.
        secrets: Names of environment variables that the program gets as they are where the run is begun.
        checkpoints: The folder, relative to the working directory, into which the program writes checkpoints and
            from which it resumes; None: it uses `{checkpoint_dir}` in its command.
        progress: A regular expression that finds progress in a line that the program prints, by a group `step` and
            perhaps `total` and `metric`; None: known formats are recognised.
        metric: Name of the metric that the program reports, for tables.
        budget_usd: Most USD that a run of it may spend.
        deadline_h: Hours from its start by which it should be done.
    """

    name: str = Field(min_length=1, examples=["my-training"])
    steps: Annotated[int, Field(gt=0, le=MOST, examples=[24_000])]
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict, examples=[{"g4dn.xlarge": 44_280}])
    other_steps_per_hour_per_vcpu: PositiveFloat | None = Field(default=None, examples=[220])
    checkpoint: Checkpointing | None = Field(default=Checkpointing(), examples=[{"save_s": 20, "restore_s": 45}])
    machines: MachineCount = Field(default=1, examples=[4])
    coupling: Coupling = Coupling.GANG
    cpus_per_task: Annotated[int, Field(ge=1)] | None = None
    framework: Annotated[str, Field(min_length=1)] | None = None
    speedup: Speedup | None = None
    share: Share = 1.0
    dataset: Dataset | None = None
    bucket: Bucket | None = Field(default=None, examples=[{"cloud": "aws", "region": "us-east-1"}])
    command: str | Annotated[list[str], Field(min_length=1)] | None = None
    checkpoints: str | None = None
    progress: Annotated[str, Field(min_length=1)] | None = None
    metric: Annotated[str, Field(min_length=1)] | None = None
    budget_usd: PositiveFloat | None = None
    deadline_h: PositiveFloat | None = None

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _what_a_command_says(cls, content: Any) -> Any:
        if not isinstance(content, dict) or content.get("command") is None:
            return content
        return {"name": name_of(words_of(content["command"])), "steps": UNKNOWN_STEPS} | content

    @field_validator("progress")
    @classmethod
    def _is_usable(cls, pattern: str | None) -> str | None:
        return None if pattern is None else checked_pattern(pattern)

    @model_validator(mode="after")
    def _is_whole(self) -> Job:
        if self.cpus_per_task is not None and (self.framework is not None or self.speedup is not None):
            raise ValueError("cpus_per_task is for tasks that need not each other: without framework and speedup")
        if self.coupling is Coupling.GANG and (self.cpus_per_task or self.framework):
            raise ValueError("cpus_per_task and framework are for machines that work alone: coupling independent")
        if self.bucket is not None and self.checkpoint is None:
            raise ValueError(NO_CHECKPOINT)
        if self.command is not None:
            return self
        if not self.is_measured:
            raise ValueError(NO_SPEED)
        given = next((name for name in TRAINING_FIELDS if getattr(self, name) not in (None, [])), None)
        if given is not None:
            raise ValueError(f"{given} is for a job that is run: write `command: python train.py`")
        return self

    @property
    def most_machines(self) -> int:
        """Largest number of machines that the job uses; a policy without a view of its own gives it as many."""
        return self.machines if isinstance(self.machines, int) else self.machines.max

    @property
    def least_machines(self) -> int:
        """With fewer machines than these it waits."""
        if self.coupling is not Coupling.GANG:
            return 1
        return self.machines if isinstance(self.machines, int) else self.machines.min

    @property
    def is_measured(self) -> bool:
        """True if the job's speed is known on any instance type."""
        return bool(self.steps_per_hour) or self.other_steps_per_hour_per_vcpu is not None

    def check_replayable(self) -> None:
        """Raise `InputError` if its speed, or how many steps it has, is not known."""
        if self.command is not None:
            check_known(f"job {self.name}", is_measured=self.is_measured, has_steps=self.steps < UNKNOWN_STEPS)

    @classmethod
    def read(cls, path: str | Path, catalogue: Catalogue | None = None) -> Job:
        """Read a job from YAML.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range; an
                instance type is not in the catalogue.
        """
        content = read_mapping(path, "job: a mapping with name, steps and steps_per_hour is needed")
        return cls.parse(content, path, catalogue)

    @classmethod
    def parse(
        cls, content: dict[str, Any], file: str | Path | None = None, catalogue: Catalogue | None = None
    ) -> Job:
        """A job from plain values; errors name `file` and the field.

        Raises:
            InputError: A field is missing, unknown or out of range; an instance type is not in the catalogue.
        """
        job = validated(cls, content, file)
        job.check_types(catalogue or default_catalogue(), file)
        return job

    def check_types(self, catalogue: Catalogue, file: str | Path | None = None) -> None:
        """Raise `InputError` for an instance type in `steps_per_hour` that is not in the catalogue."""
        known = {entry.name for entry in catalogue.instance_types}
        for name in self.steps_per_hour:
            if name not in known:
                try:
                    catalogue.instance_type("aws", name)
                except InputError as error:
                    raise InputError(error.problem, file=file, field=f"steps_per_hour.{name}") from None

    def has_speed_on(self, instance_type: str) -> bool:
        return instance_type in self.steps_per_hour

    def steps_per_s(self, market: Market, catalogue: Catalogue) -> float:
        """Steps per second on one machine of a market; 0 where the job cannot run.

        It cannot where its speed is not known, and on other operating systems and processors than its own.
        """
        rate = self.steps_per_hour.get(market.instance_type)
        if rate is None and self.other_steps_per_hour_per_vcpu is not None:
            rate = self.other_steps_per_hour_per_vcpu * catalogue.machine_of(market).vcpus
        return rate / HOUR_S if rate is not None and self.allows_system(market, catalogue) else 0.0

    def speedup_of(self, machines: int, steps_done: float = 0.0) -> float:
        """The speedup of `machines` machines over one, once `steps_done` steps are done."""
        if isinstance(self.speedup, Phases):
            return self.speedup.at(steps_done / self.steps).speedup(machines)
        return self.speedup.speedup(machines) if self.speedup else float(machines)

    def phase_ends(self) -> list[float]:
        """Numbers of steps at which the speedup changes."""
        ends = self.speedup.ends()[:-1] if isinstance(self.speedup, Phases) else []
        return [end * self.steps for end in ends]

    def save_s(self, vcpus: int = 1, place: Place | None = None) -> float:
        """Seconds to save on a machine with this many vCPUs in a place, and to upload from there to the bucket."""
        if self.checkpoint is None:
            return 0.0
        seconds = self.checkpoint.save_s + self.checkpoint.moving_s(vcpus)
        return seconds + self._between_s(place, self.bucket.place if self.bucket else None)

    def restore_s(self, vcpus: int = 1, source: Place | None = None, destination: Place | None = None) -> float:
        """Seconds to download and load on a machine with this many vCPUs.

        Args:
            vcpus: Number of vCPUs of the machine.
            source: Place of the machine that saved the checkpoint; None: there is none, or it does not matter.
                With a bucket the checkpoint comes from there.
            destination: Place of the machine that loads it.
        """
        if self.checkpoint is None:
            return 0.0
        seconds = self.checkpoint.restore_s + self.checkpoint.moving_s(vcpus)
        return seconds + self._between_s(self.bucket.place if self.bucket and source else source, destination)

    def _between_s(self, source: Place | None, destination: Place | None) -> float:
        if self.checkpoint is None or not (self.checkpoint.by_region and source and destination):
            return 0.0
        return self.checkpoint.size_bytes / 1e9 * seconds_per_gb(source, destination)


def check_known(what: str, *, is_measured: bool, has_steps: bool) -> None:
    """Raise `InputError` where a replay needs what only a run can tell.

    Args:
        what: Kind and name of the job or sweep, for the error.
        is_measured: Whether its speed is known.
        has_steps: Whether the number of its steps is known.
    """
    missing = []
    if not is_measured:
        missing.append(
            f"the speed of {what} is not measured: write "
            "`steps_per_hour: {g4dn.xlarge: 44280}` or other_steps_per_hour_per_vcpu; `ebbtide run` measures "
            "it, and prints the line to write at its end"
        )
    if not has_steps:
        missing.append(f"how many steps {what} has is not said: write `steps: 24_000`")
    if len(missing) == 1:
        raise InputError(missing[0])
    if missing:
        raise InputError(f"{what.partition(' ')[2]} cannot be replayed or planned yet", problems=missing)


def jobs_of(given: Job | Sequence[Job]) -> tuple[Job, ...]:
    """Return one job, or each of several, as a tuple.

    Raises:
        InputError: There is none.
    """
    jobs = (given,) if isinstance(given, Job) else tuple(given)
    if not jobs:
        raise InputError("no job to run; give one or more")
    return jobs


def name_of(arguments: Sequence[str]) -> str:
    """A name for a training from its command: that of its program."""
    scripts = [PurePath(word).stem for word in arguments if PurePath(word).suffix in (".py", ".sh")]
    modules = [word.rpartition(".")[2] for before, word in pairwise(arguments) if before == "-m"]
    others = [PurePath(word).stem for word in arguments if not _RUNNERS.fullmatch(PurePath(word).name)]
    return next((name for name in (*scripts, *modules, *others) if name), "training")


def words_of(command: Any) -> Sequence[str]:
    """The arguments of a command that may still be malformed."""
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError:
            return ()
    return [word for word in command if isinstance(word, str)] if isinstance(command, list | tuple) else ()
