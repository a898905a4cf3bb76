"""Sweeps as users write them in YAML: a training program, the settings to try, and how to choose among them."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr, field_validator, model_validator

from ebbtide.errors import InputError
from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.job import (
    MOST,
    NO_CHECKPOINT,
    UNKNOWN_STEPS,
    Checkpointing,
    Coupling,
    Job,
    PositiveFloat,
    Share,
    Speedup,
    check_known,
)
from ebbtide.jobs.parsing import Frozen, read_mapping, validated
from ebbtide.jobs.progress_pattern import checked_pattern
from ebbtide.jobs.random_search import RandomSearch, Value
from ebbtide.jobs.resources import MachineCount, Resources
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.catalogue import X86_64, Catalogue, InstanceType, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

_Values = Annotated[list[Value], Field(min_length=1)]
_Settings = Annotated[list[dict[str, Value]], Field(min_length=1)]
_Arguments = Annotated[list[str], Field(min_length=1)]

# Placeholders of a command besides the parameters.
BUILT_IN = ("checkpoint_dir", "max_steps")
_OF_ARRAY = ("task", "result_dir")

# The largest number of trials; more are refused before any is made.
MOST_TRIALS = 10_000

# What may stand between braces: a plain name, without attributes, conversions or formats.
_PLACEHOLDER = re.compile(r"[^\W\d][\w-]*")

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Direction(StrEnum):
    """Direction of a metric: whether lower or higher is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class MarketFilter(Frozen):
    """Filter of the markets in which machines may be rented; empty fields do not restrict.

    Attributes:
        clouds: Names of the allowed clouds.
        regions: Names of the allowed regions.
        zones: Names of the allowed zones.
        instance_types: Names of the allowed instance types.
    """

    clouds: list[str] = Field(default_factory=list)
    regions: list[str] = Field(default_factory=list)
    zones: list[str] = Field(default_factory=list)
    instance_types: list[str] = Field(default_factory=list)

    def allows(self, market: Market) -> bool:
        """Return whether machines may be rented in a market."""
        pairs = (
            (self.clouds, market.cloud),
            (self.regions, market.region),
            (self.zones, market.zone),
            (self.instance_types, market.instance_type),
        )
        return all(not allowed or value in allowed for allowed, value in pairs)


@dataclass(frozen=True)
class SweepTrial:
    """Trial of a sweep: one setting of its parameters.

    Attributes:
        number: Number of the trial, from 0; the same wherever the trial runs.
        values: Value of each parameter, by name.
    """

    number: int
    values: dict[str, Value]

    @property
    def name(self) -> str:
        """The values as text, for tables."""
        return ", ".join(
            f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in self.values.items()
        )


class Decides(StrEnum):
    """Cause of the revocation of spot machines."""

    PRICE = "price"  # the price exceeds the max price: EC2 until 2017
    CAPACITY = "capacity"  # capacity runs out: today


class Sweep(Resources):
    """A sweep; without `grid`, `list` and `random`, a single training with nothing to choose.

    Attributes:
        name: Name of the sweep in tables and tags.
        command: A command line with `{parameter}` where values go, and `{checkpoint_dir}` and `{max_steps}` where
            those are wanted; or a list of its arguments. It is never given to a shell.
        entry_point: Instead of a command, `package.module:function`, called with the parameters by name; one named
            `trial` gets the current `SweepTrial`.
        grid: Values of each parameter; every combination is tried. At most one of `grid`, `list`, `random`.
        list: The settings to try, values by parameter.
        random: Distributions from which settings are drawn.
        metric: Name of the reported metric by which trials are compared; may be None with one trial.
        direction: Whether a lower or a higher metric is better.
        machines: How many machines each trial has: all of them or none (`4`), or as many as there are
            (`{min: 2, max: 8}`); they train as one.
        share: The part of a machine that each trial fills, above 0 and at most 1; policies may put several trials
            whose shares fit on one machine. Below 1 each trial has to train on one machine.
        speedup: Of n machines over one; perfect if None.
        max_trial_steps: Steps of a complete trial; None: one trial, which ends when its program does.
        theta: Share of a trial's steps after which its final metric is predicted (SpotTune III-C).
        mcnt: Number of trials, the best by prediction, that are trained to the end.
        markets: Where machines may be rented.
        budget_usd: The most that may be spent, USD.
        deadline_h: Hours from the start by which all trials should be done.
        decides: Whether price or capacity decides when machines are revoked; with capacity and a deadline, policy
            `deadline` rents them, with on-demand machines as a last resort.
        billing: Name of the billing preset of spot leases.
        policy: The policy that decides, by name, or with parameters; None: the one that suits.
        steps_per_hour: Measured steps per hour of a trial by instance type; if this and the next are empty, the
            speed is unknown.
        other_steps_per_hour_per_vcpu: Steps per hour and vCPU of other types.
        checkpoint: What saving costs; null: trials cannot be checkpointed.
        checkpoints: The folder, relative to where the program runs, into which the program writes its checkpoints
            itself and from which it resumes; None: it uses `{checkpoint_dir}`.
        progress: A regular expression that finds progress in a line that the program prints, by a group `step` and
            perhaps `total` and `metric`; None: known formats are recognised.
        bucket: Cloud and region of the storage of checkpoints, to which each is uploaded; None: a checkpoint
            stays in the region of the machine that saved it, and on EC2 the region of its storage is looked up.
        tasks: The values of the tasks of an array, which is one job with a step for each; None: it is none.
        cpus_per_task: Number of vCPUs of each of its tasks.
        framework: Name of the framework whose head runs the command and has workers on other machines, `spark` or
            `dask`; None: the command runs by itself.
    """

    is_list: ClassVar[Literal[False]] = False

    name: Annotated[str, Field(min_length=1, examples=["my-sweep"])]
    command: str | _Arguments | None = Field(default=None, examples=["python train.py --lr {lr}"])
    entry_point: str | None = Field(default=None, examples=["my_package.training:train"])
    grid: Annotated[dict[str, _Values], Field(min_length=1)] | None = Field(
        default=None, examples=[{"lr": [0.1, 0.01]}]
    )
    list: _Settings | None = Field(default=None, examples=[[{"lr": 0.1}, {"lr": 0.01}]])
    random: RandomSearch | None = None
    metric: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["validation_loss"])
    direction: Direction = Field(default=Direction.MINIMIZE, examples=["minimize"])
    max_trial_steps: Annotated[int, Field(gt=0, le=MOST)] | None = Field(default=None, examples=[24_000])
    machines: MachineCount = Field(default=1, examples=[4])
    share: Share = Field(default=1.0, examples=[0.5])
    speedup: Speedup | None = Field(default=None, examples=[{"parallel": 0.9}])
    theta: Annotated[float, Field(gt=0, le=1)] = Field(default=0.7, examples=[0.7])
    mcnt: Annotated[int, Field(ge=1)] = Field(default=3, examples=[3])
    markets: MarketFilter = Field(default=MarketFilter(), examples=[{"regions": ["us-east-1"]}])
    budget_usd: PositiveFloat | None = Field(default=None, examples=[20])
    deadline_h: PositiveFloat | None = Field(default=None, examples=[12])
    decides: Decides = Field(default=Decides.PRICE, examples=["price"])
    billing: str = Field(default="ec2-second", examples=["ec2-second"])
    policy: AskedPolicy | None = Field(default=None, examples=["reactive"])
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict, examples=[{"g4dn.xlarge": 44_280}])
    other_steps_per_hour_per_vcpu: PositiveFloat | None = Field(default=None, examples=[220])
    checkpoint: Checkpointing | None = Field(default=Checkpointing(), examples=[{"save_s": 20, "restore_s": 45}])
    checkpoints: str | None = Field(default=None, examples=["checkpoints"])
    progress: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, examples=[r"it (?P<step>\d+) of (?P<total>\d+)"]
    )
    bucket: Bucket | None = Field(default=None, examples=[{"cloud": "aws", "region": "us-east-1"}])
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    cpus_per_task: Annotated[int, Field(ge=1)] = 1
    framework: Literal["spark", "dask"] | None = None
    _made: tuple[tuple[Any, ...], tuple[SweepTrial, ...]] | None = PrivateAttr(default=None)

    @field_validator("checkpoints")
    @classmethod
    def _below_the_program(cls, folder: str | None) -> str | None:
        return None if folder is None else checked_folder(folder)

    @field_validator("progress")
    @classmethod
    def _is_usable(cls, pattern: str | None) -> str | None:
        return None if pattern is None else checked_pattern(pattern)

    @model_validator(mode="after")
    def _makes_sense(self) -> Sweep:
        ways = [name for name in ("grid", "list", "random") if getattr(self, name) is not None]
        programs = (self.command is not None) + (self.entry_point is not None)
        if programs == 2 or (ways and not programs):
            raise ValueError("needs either command or entry_point: write `command: python train.py --lr {lr}`")
        if self.entry_point is not None and not _ENTRY_POINT.fullmatch(self.entry_point):
            raise ValueError(f"entry_point {self.entry_point!r} is not of the form package.module:function")
        if self.decides is Decides.CAPACITY and self.deadline_h is None:
            raise ValueError("decides: capacity needs a deadline_h, by which on-demand machines are the way out")
        if self.bucket is not None and self.checkpoint is None:
            raise ValueError(NO_CHECKPOINT)
        if self.share < 1 and (self.machines != 1 or self.tasks is not None or self.framework is not None):
            what = (
                "an array" if self.tasks is not None else "a cluster" if self.framework is not None else "one job"
            )
            raise ValueError(
                f"share {self.share:g} is for trainings on one machine; machines of {what} are each filled whole: "
                "leave out `share`, or write `machines: 1`"
            )
        if len(ways) > 1:
            raise ValueError(f"needs one of grid, list, random, not {' and '.join(ways)}")
        if self.tasks is not None:
            self._check_array(ways)
        self._check_number()
        for names in {tuple(trial.values) for trial in self.trials()}:
            self._check_placeholders(names)
        for trial in self.trials():
            for name, value in trial.values.items():
                if isinstance(value, str) and "\0" in value:
                    raise ValueError(f"parameter {name} has a NUL character, which no program can be given")
        if len(self.trials()) > 1:
            missing = ["`metric: validation_loss`"] if self.metric is None else []
            missing += ["`max_trial_steps: 24_000`"] if self.max_trial_steps is None else []
            if missing:
                raise ValueError(f"trials are compared by a metric as they train: write {' and '.join(missing)}")
        return self

    def _check_array(self, ways: Sequence[str]) -> None:
        assert self.tasks is not None
        if ways or self.command is None:
            raise ValueError(
                f"tasks make it an array, which is one command without {ways[0] if ways else 'an entry_point'}"
            )
        if self.max_trial_steps != len(self.tasks):
            raise ValueError(f"an array of {len(self.tasks):,} tasks has as many steps, and not other ones")
        if self.checkpoints is not None or self.metric is not None:
            raise ValueError("an array has results, and neither checkpoints nor a metric")
        if any("\0" in task for task in self.tasks):
            raise ValueError("a task has a NUL character, which no program can be given")

    def _check_number(self) -> None:
        number = len(self.list or ())
        if self.grid is not None:
            number = math.prod(len(values) for values in self.grid.values())
        if number > MOST_TRIALS:
            raise ValueError(
                f"has {number:,} trials; {MOST_TRIALS:,} at most: give fewer values, or draw some with `random`"
            )

    def _check_placeholders(self, parameters: Sequence[str]) -> None:
        if self.command is None:
            return
        # As its user calls it.
        called = self.framework or "command"
        try:
            parts = self._parts()
            fields = [field for part in parts for field in string.Formatter().parse(part) if field[1] is not None]
        except ValueError as error:
            raise ValueError(f"{called} is malformed: {error}") from None
        if not parts or not parts[0]:
            raise ValueError(f"{called} is empty")
        if any("\0" in part for part in parts):
            raise ValueError(f"{called} has a NUL character, which no program can be given")
        for _, field, form, conversion in fields:
            if not _PLACEHOLDER.fullmatch(field or "") or form or conversion:
                asked = f"{field}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}"
                raise ValueError(
                    f"{called} asks for {{{asked}}}; only a parameter's name may stand between braces, as in "
                    "{lr}; {{ and }} stand for braces themselves"
                )
        asked_for = {field for _, field, _, _ in fields if field is not None}
        known = {*parameters, *(BUILT_IN if self.tasks is None else _OF_ARRAY)}
        missing, unused = sorted(asked_for - known), sorted(set(parameters) - asked_for)
        if missing:
            there = f"there are {', '.join(parameters)}" if parameters else "no grid, list or random gives values"
            if self.tasks is not None:
                there = f"an array has {' and '.join(f'{{{name}}}' for name in _OF_ARRAY)}"
            raise ValueError(f"{called} asks for {{{missing[0]}}}; {there}")
        if unused:
            raise ValueError(f"parameter {unused[0]} is not in the command; write {{{unused[0]}}} where it goes")
        if "max_steps" in asked_for and self.max_trial_steps is None:
            raise ValueError("command asks for {max_steps}, and how many steps there are is not said")

    def _parts(self) -> Sequence[str]:
        """The arguments of the command, with placeholders."""
        command = self.command or ()
        return shlex.split(command) if isinstance(command, str) else command

    @classmethod
    def read(cls, path: str | Path, catalogue: Catalogue | None = None) -> Sweep:
        """Read a sweep from YAML.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range; an
                instance type is not in the catalogue.
        """
        return cls.parse(read_mapping(path, "sweep: a mapping with name, command, metric..."), path, catalogue)

    @classmethod
    def parse(
        cls, content: dict[str, Any], file: str | Path | None = None, catalogue: Catalogue | None = None
    ) -> Sweep:
        """A sweep from plain values; errors name `file` and the field.

        Raises:
            InputError: A field is missing, unknown or out of range; an instance type is not in the catalogue.
        """
        sweep = validated(cls, content, file)
        sweep.check_types(catalogue or default_catalogue(), file)
        return sweep

    def check_types(self, catalogue: Catalogue, file: str | Path | None = None) -> None:
        """Raise `InputError` for an unknown instance type, or if no type has everything required."""
        if self.steps_per_hour:
            self.live_jobs(catalogue)[0].check_types(catalogue, file)
        self.check_machines(catalogue, file)
        named = self.markets.instance_types
        able = [entry for entry in catalogue.instance_types if self.fits(entry)]
        wanted = [entry for entry in able if not named or entry.name in named]
        self._check_cpus_per_task(wanted, "instance type", file)

    def _check_cpus_per_task(
        self, machines: Iterable[InstanceType], of_what: str, file: str | Path | None = None
    ) -> None:
        """Raise `InputError` for tasks of an array that are larger than every machine."""
        most = max((machine.vcpus for machine in machines), default=self.cpus_per_task)
        if self.tasks is not None and self.cpus_per_task > most:
            raise InputError(
                f"is {self.cpus_per_task:,}; no {of_what} has more than {most} vCPUs",
                file=file,
                field="cpus_per_task",
            )

    def trials(self) -> tuple[SweepTrial, ...]:
        """All trials, in a fixed order; one without values where there is nothing to choose."""
        # Cached, because the trials are asked for each time that machines are assigned.
        ways = (self.grid, self.list, self.random)
        if self._made is None or any(was is not now for was, now in zip(self._made[0], ways, strict=True)):
            self._made = (ways, self._all_trials())
        return self._made[1]

    def _all_trials(self) -> tuple[SweepTrial, ...]:
        rows: Sequence[dict[str, Value]]
        if self.grid is not None:
            rows = [dict(zip(self.grid, row, strict=True)) for row in itertools.product(*self.grid.values())]
        elif self.list is not None:
            rows = [dict(row) for row in self.list]
        elif self.random is None:
            rows = [{}]
        else:
            draw = np.random.default_rng(self.random.seed)
            drawn = self.random.parameters
            rows = [{key: how.value(draw) for key, how in drawn.items()} for _ in range(self.random.samples)]
        return tuple(SweepTrial(number, row) for number, row in enumerate(rows))

    def arguments(self, trial: SweepTrial) -> tuple[str, ...]:
        """The command of a trial, split into arguments; a value is never split or read by a shell.

        Raises:
            InputError: The sweep calls an entry point instead.
        """
        if self.command is None:
            raise InputError(f"sweep {self.name} has no command; it calls {self.entry_point}")
        # The machine fills in folders and tasks.
        on_machine = {name: f"{{{name}}}" for name in ("checkpoint_dir", *_OF_ARRAY)}
        built_in = {**on_machine, "max_steps": self.max_trial_steps}
        return tuple(part.format(**built_in | trial.values) for part in self._parts())

    def command_line(self, trial: SweepTrial) -> tuple[str, ...]:
        """Command line of a trial on a machine: its command, or Python with the entry point."""
        if self.entry_point is None:
            return self.arguments(trial)
        called = self.entry_point, json.dumps(trial.values), *(() if self.metric is None else (self.metric,))
        return "python", "-m", "ebbtide.agent.entry_point", *called

    @property
    def is_measured(self) -> bool:
        """True if the speed of the trials is known on any instance type."""
        return bool(self.steps_per_hour) or self.other_steps_per_hour_per_vcpu is not None

    def jobs(self, catalogue: Catalogue | None = None) -> tuple[Job, ...]:  # noqa: ARG002
        """A job for each trial, for replays and plans.

        Raises:
            InputError: The speed or the number of steps is unknown.
        """
        check_known(
            f"{self._kind} {self.name}",
            is_measured=self.is_measured,
            has_steps=self.max_trial_steps is not None,
        )
        return self._jobs(self.steps_per_hour, self.other_steps_per_hour_per_vcpu)

    def live_jobs(self, catalogue: Catalogue | None = None) -> tuple[Job, ...]:
        """A job for each trial, for live runs, in which an unknown speed is measured.

        Where no speed is given, the rates are nominal and only their ratios are meaningful. Where the number of
        steps is unknown, it is set to one that is never reached: the trial ends with its program.
        """
        if self.is_measured:
            return self._jobs(self.steps_per_hour, self.other_steps_per_hour_per_vcpu)
        return self._jobs(self.nominal_steps_per_hour((catalogue or default_catalogue()).instance_types), None)

    def _jobs(self, rates: dict[str, float], other: float | None) -> tuple[Job, ...]:
        return tuple(
            Job(
                name=name,
                steps=self.max_trial_steps or UNKNOWN_STEPS,
                steps_per_hour=rates,
                other_steps_per_hour_per_vcpu=other,
                checkpoint=self.checkpoint,
                machines=self.machines,
                share=self.share,
                coupling=Coupling.GANG if self.tasks is None and self.framework is None else Coupling.INDEPENDENT,
                cpus_per_task=None if self.tasks is None else self.cpus_per_task,
                framework=self.framework,
                speedup=self.speedup,
                bucket=self.bucket,
                architecture=self.architecture,
            )
            for name in self.job_names
        )

    @property
    def kind(self) -> Literal["sweep", "array", "cluster"]:
        """Kind of the job."""
        return "cluster" if self.framework is not None else "sweep" if self.tasks is None else "array"

    @property
    def in_words(self) -> str:
        """The trials, the tasks or the framework in words."""
        if self.tasks is not None:
            return f"{len(self.tasks):,} tasks"
        if self.framework is not None:
            return f"a {self.framework.capitalize()} application"
        number = len(self.trials())
        return f"{number} trial{'s' * (number > 1)}" if self.has_choice else "one training"

    @property
    def steps(self) -> int | None:
        """Steps of a complete trial; None: it ends when its program does."""
        return self.max_trial_steps

    @property
    def task_values(self) -> tuple[str, ...]:
        """The values of the tasks of an array; empty: it is none."""
        return self.tasks or ()

    @property
    def job_names(self) -> tuple[str, ...]:
        """The name of each trial's job, in the order of trials."""
        return tuple(f"{self.name}-{trial.number}" if self.has_choice else self.name for trial in self.trials())

    @property
    def setting_names(self) -> tuple[str, ...]:
        """The values of each trial in words, in the order of trials."""
        return tuple(trial.name for trial in self.trials())

    @property
    def parts(self) -> tuple[Sweep, ...]:
        """Sweeps of the run: this one alone; a list of jobs has several."""
        return (self,)

    def part_of(self, job_id: int) -> tuple[Sweep, SweepTrial]:
        """Return this sweep and the trial of a training, by its number in the run."""
        return self, self.trials()[job_id]

    def needed_by(self, job_id: int) -> tuple[int, ...]:  # noqa: ARG002
        """Return no numbers: its trainings need no others."""
        return ()

    def located(self, error: InputError, place: int) -> InputError:  # noqa: ARG002
        """An error of the part at a place, of which there is one."""
        return error

    def in_bucket(self, found: Bucket, store: str) -> Sweep:
        """The same, if it can be checkpointed, with the bucket that its store was found to be.

        Raises:
            InputError: Its file says otherwise.
        """
        if self.checkpoint is None:
            return self
        if self.bucket not in (None, found):
            said = self.bucket.place if self.bucket else None
            raise InputError(
                f"says {said}, and {store} is in {found.place}; leave it out, since it is looked up",
                field="bucket",
            )
        return self.model_copy(update={"bucket": found})

    @property
    def has_choice(self) -> bool:
        """True if there are settings to try; without them the sweep is one training."""
        return any(way is not None for way in (self.grid, self.list, self.random))

    @property
    def _kind(self) -> str:
        return "sweep" if self.has_choice else "job"

    def allowed(self, prices: PriceHistory, catalogue: Catalogue | None = None) -> PriceHistory:
        """The markets of a history in which machines may be rented and have everything required.

        Raises:
            InputError: No market of the history is allowed, or none has room for a task.
        """
        known = catalogue or default_catalogue()
        kept = [market for market in prices if self.allows(market, known)]
        if not kept:
            why = f": it asks for {self.asked}" if self.asked else ""
            if not any(self.allows_system(market, known) for market in prices):
                wanted = self.architecture or X86_64
                why += f": its program is for Linux on {wanted}; `architecture: arm64` is for ARM processors"
            raise InputError(
                f"{self._kind} {self.name} allows none of the {len(prices)} markets of these prices{why}; they "
                f"have {', '.join(sorted({market.instance_type for market in prices})[:12])}"
            )
        self._check_cpus_per_task(
            [known.machine_of(market) for market in kept if market in known], "machine of these prices"
        )
        if self.is_measured and self.other_steps_per_hour_per_vcpu is None:
            there = sorted({market.instance_type for market in kept})
            if not set(there) & set(self.steps_per_hour):
                known_on = ", ".join(sorted(self.steps_per_hour)[:12])
                raise InputError(
                    f"{self._kind} {self.name} has a speed on {known_on} alone, and its markets have "
                    f"{', '.join(there[:12])}",
                    field="steps_per_hour",
                )
        return prices.select(kept)

    def types_wanted(self, catalogue: Catalogue) -> Sequence[str]:
        """Names of the instance types whose prices are needed; empty: all types."""
        if self.markets.instance_types:
            return self.markets.instance_types
        limited = self.is_measured and self.other_steps_per_hour_per_vcpu is None
        if not self.asked:
            return sorted(self.steps_per_hour) if limited else ()
        fitting = (machine.name for machine in catalogue.instance_types if self.fits(machine))
        return sorted(name for name in fitting if not limited or name in self.steps_per_hour)

    def allows(self, market: Market, catalogue: Catalogue) -> bool:
        """Return whether machines may be rented in a market and have everything required."""
        fits = not self.asked or (market in catalogue and self.fits(catalogue.machine_of(market)))
        return fits and self.allows_system(market, catalogue) and self.markets.allows(market)

    def has_speed_on(self, instance_type: str) -> bool:
        return instance_type in self.steps_per_hour


def checked_folder(folder: str) -> str:
    """A folder below the one in which a program runs, as a relative path.

    Raises:
        ValueError: The folder is elsewhere, or is that folder itself.
    """
    path = PurePosixPath(folder)
    leads_elsewhere = path.is_absolute() or ".." in path.parts or folder.startswith("~") or "\0" in folder
    if leads_elsewhere or not path.parts:
        raise ValueError(f"checkpoints {folder!r} is no folder below the one in which the program runs")
    return path.as_posix()
