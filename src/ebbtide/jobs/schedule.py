"""Jobs that run by a schedule: a YAML file each, read here, and which of them is due.

    # jobs/digits.yaml
    run: ../examples/live/sweep.yaml     # a job or a sweep, or its content in place of the path
    schedule: "0 2 * * 1"                # cron, UTC; or `once: 2026-11-22T02:00`
    policy: spottune
    budget_usd: 5

What is due follows from the schedule, the last run and the time alone, so that nothing is run twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator, model_validator

from ebbtide.base.utc import from_epoch_s, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.job import PositiveFloat
from ebbtide.jobs.job_files import read_sweep, sweep_from
from ebbtide.jobs.job_list import OneJob
from ebbtide.jobs.parsing import Frozen, read_mapping, validated
from ebbtide.market.catalogue import Catalogue

_WHAT = "due job: a mapping with run, and with schedule or once, is needed"
# A file's name becomes part of its runs' names, which are folders and keys in storage.
_NAME = re.compile(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*")
_STAMP = "%Y%m%d-%H%M%S"
_CRON_FIELDS = 5

_Text = Annotated[str, Field(min_length=1)]


class Schedule(Frozen):
    """Schedule of a job: a cron expression, or a single time.

    Attributes:
        schedule: Cron expression of five fields, in UTC; None: the job is due once.
        once: The only time at which it is due, in UTC unless it has an offset; None: it has a schedule.
    """

    schedule: _Text | None = Field(default=None, examples=["0 2 * * *"])
    once: datetime | None = Field(default=None, examples=["2026-11-22T02:00"])

    @field_validator("schedule")
    @classmethod
    def _has_times(cls, cron: str | None) -> str | None:
        if cron is not None:
            problem = f"{cron!r} is no cron expression; five fields are needed: minute, hour, day, month, weekday"
            if len(cron.split()) != _CRON_FIELDS:
                raise ValueError(problem)
            try:
                next(CronSim(cron, datetime.now(UTC)))
            except (CronSimError, StopIteration) as error:
                raise ValueError(f"{problem} ({str(error) or 'it never comes'})") from None
        return cron

    @field_validator("once", mode="before")
    @classmethod
    def _is_written_as_a_time(cls, once: Any) -> Any:
        if isinstance(once, int | float):
            raise ValueError(f"{once} is a number; a time is written as 2026-11-22T02:00")
        return once

    @field_validator("once")
    @classmethod
    def _in_utc(cls, once: datetime | None) -> datetime | None:
        if once is None:
            return None
        return (once.replace(tzinfo=UTC) if once.tzinfo is None else once.astimezone(UTC)).replace(microsecond=0)

    def latest_s(self, now_s: float) -> float | None:
        """The last time up to `now_s` at which the job was due, seconds since 1970; None: it has not been yet."""
        if self.once is not None:
            return self.once.timestamp() if self.once.timestamp() <= now_s else None
        assert self.schedule is not None
        # Going backwards begins before the time that is given, and that time may be one that is due.
        after = from_epoch_s(float(int(now_s) + 1))
        try:
            return next(CronSim(self.schedule, after, reverse=True)).timestamp()
        except StopIteration:
            return None


def due_at_s(schedule: Schedule, last_s: float | None, now_s: float) -> float | None:
    """The time for which a job has to be run now; None: it need not be run.

    However many times were missed, the job is run once, for the last of them.

    Args:
        schedule: When the job is due.
        last_s: The time for which it was last run, seconds since 1970; None: it was never run.
        now_s: Time of the question in seconds since 1970.
    """
    latest_s = schedule.latest_s(now_s)
    return latest_s if latest_s is not None and (last_s is None or latest_s > last_s) else None


class DueContent(Schedule):
    """The content of a due job's file. Paths are relative to the file's folder.

    Attributes:
        run: Path of a job or sweep file, or the content of one.
        deadline_h: Hours from its start by which the run should be done, in place of the job's own.
        budget_usd: The most that the run may spend in USD, in place of the job's own.
        policy: The policy that decides, by name or file, or with parameters; `default`: that of the job, or the
            one that suits.
        provider: `local` for processes on this machine and a replayed market, `ec2` for machines of EC2, `gcp`
            for those of Google Cloud, `several` for both, `skypilot` for what SkyPilot rents.
        models: Path of the model bundle that the policy asks; None: it asks none.
        prices: For `local`: path of the price history that is replayed; None: a generated one.
        start: For `local`: time in the prices at which the run begins; None: after a quarter of them, and not
            before the end of what its models were trained on.
        speed: For `local`: market seconds in a real second; None: as `ebbtide run` has it.
        billing: Name of the billing preset of spot leases; None: the job's own.
        seed: Seed of the policy's random numbers and of generated prices.
        spells: Path of models of how long capacity lasts; None: the default models.
        folder: Folder of the code, in which the program runs; None: that of the job's file.
        store: For `local`: folder or s3://bucket/prefix of checkpoints; None: the run's folder.
        machines: For all but `local`, required: path of the settings of machines.
    """

    run: _Text | dict[str, Any] = Field(examples=["../examples/live/job.yaml"])
    deadline_h: PositiveFloat | None = Field(default=None, examples=[12])
    budget_usd: PositiveFloat | None = Field(default=None, examples=[20])
    policy: AskedPolicy = Field(default=AskedPolicy(name="default"), examples=["spottune"])
    provider: Literal["local", "ec2", "gcp", "skypilot", "several"] = Field(default="local", examples=["local"])
    models: _Text | None = Field(default=None, examples=["../models"])
    prices: _Text | None = Field(default=None, examples=["../data/prices.parquet"])
    start: str | datetime | None = Field(default=None, examples=["2015-04-20T00:00:00Z"])
    speed: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] | None = Field(default=None, examples=[30])
    billing: _Text | None = Field(default=None, examples=["ec2-second"])
    seed: int = Field(default=0, examples=[0])
    spells: _Text | None = Field(default=None, examples=["../models/spells.json"])
    folder: _Text | None = Field(default=None, examples=["../examples/live"])
    store: _Text | None = Field(default=None, examples=["s3://bucket/prefix"])
    machines: _Text | None = Field(default=None, examples=["ec2.yaml"])

    @field_validator("start")
    @classmethod
    def _is_time(cls, start: str | datetime | None) -> str | datetime | None:
        if start is not None:
            to_epoch_s(start)
        return start

    @model_validator(mode="after")
    def _fits(self) -> DueContent:
        if (self.schedule is None) == (self.once is None):
            raise ValueError("one of schedule and once is needed; for example `schedule: 0 2 * * *`")
        if self.provider != "local":
            if self.machines is None:
                raise ValueError(
                    f"provider {self.provider} needs machines, as examples/live/{self.provider}.yaml has them"
                )
            local = [name for name in ("prices", "start", "speed", "store") if getattr(self, name) is not None]
            if local:
                raise ValueError(f"{', '.join(local)}: for provider local alone")
        elif self.machines is not None:
            raise ValueError("machines: not for provider local")
        return self


@dataclass(frozen=True)
class DueJob:
    """A job that runs by a schedule.

    Attributes:
        name: Name of the job, which is its file's without the suffix.
        file: Path of the file that describes it.
        content: What the file says, checked.
    """

    name: str
    file: Path
    content: DueContent

    @classmethod
    def read(cls, file: str | Path) -> DueJob:
        """Read a due job; errors name file and field.

        Raises:
            InputError: The file cannot be read, its name has other characters than letters, digits, - and _, or
                a field is missing, unknown or wrong.
        """
        file = Path(file)
        if not _NAME.fullmatch(file.stem):
            raise InputError("is no name of a job; use letters, digits, - and _, such as digits.yaml", file=file)
        return cls(file.stem, file, validated(DueContent, read_mapping(file, _WHAT), file))

    def path(self, name: str) -> Path | None:
        """The path in one of the fields, from the working directory; None: the field is empty."""
        value = getattr(self.content, name)
        return None if value is None else self.file.parent / str(value)

    @property
    def policy(self) -> AskedPolicy:
        """The policy that decides; one in a file, by the file's path from the working directory."""
        return self.content.policy.beside(self.file)

    def sweep(self, catalogue: Catalogue | None = None) -> OneJob:
        """The job to run, with the deadline and the budget of this file where it has them.

        Raises:
            InputError: The job is missing or wrong, or it has no program.
        """
        run = self.content.run
        if isinstance(run, str):
            found = read_sweep(self.file.parent / run, catalogue, to_run=True)
        else:
            try:
                found = sweep_from(run, self.file, catalogue, to_run=True)
            except InputError as error:
                field = f"run.{error.field}" if error.field else "run"
                raise InputError(error.problem, file=self.file, field=field, problems=error.problems) from None
        own = {name: getattr(self.content, name) for name in ("deadline_h", "budget_usd")}
        return found.model_copy(update={name: value for name, value in own.items() if value is not None})

    @property
    def code(self) -> Path:
        """Folder of the code, in which the program runs."""
        given, run = self.path("folder"), self.content.run
        if given is not None:
            return given
        return (self.file.parent / run).parent if isinstance(run, str) else self.file.parent

    def run_id(self, due_s: float) -> str:
        """Name of the run for one time at which the job is due, the same whenever it is asked."""
        return f"{self.name}-{from_epoch_s(due_s):{_STAMP}}"

    def due_s_of(self, run_id: str) -> float | None:
        """The time for which a run was started, seconds since 1970; None: it is no run of this job."""
        stamp = run_id.removeprefix(f"{self.name}-")
        if stamp == run_id or not re.fullmatch(r"\d{8}-\d{6}", stamp):
            return None
        try:
            return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None


def read_due_jobs(folder: str | Path) -> tuple[list[DueJob], Mapping[str, str]]:
    """The due jobs in a folder, by name, and what is wrong with files that cannot be read, by their paths.

    Raises:
        InputError: There is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError("there is no such folder of jobs", file=folder)
    found, problems = [], {}
    for file in sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml")):
        try:
            found.append(DueJob.read(file))
        except InputError as error:
            problems[str(file)] = str(error)
    return found, problems
