"""Sweeps as users write them in YAML: a training program, the settings to try, and how to choose among them."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.job import MOST, NO_CHECKPOINT, Checkpointing, Speedup
from ebbtide.jobs.parsing import read_mapping
from ebbtide.jobs.random_search import RandomSearch, Value
from ebbtide.jobs.single_job import CheckpointFolder, ProgressPattern, SingleJob, SweepTrial
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.catalogue import Catalogue

_Values = Annotated[list[Value], Field(min_length=1)]
_Settings = Annotated[list[dict[str, Value]], Field(min_length=1)]

# The largest number of trials; more are refused before any is made.
MOST_TRIALS = 10_000

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Sweep(SingleJob):
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
    """

    kind: ClassVar[Literal["sweep"]] = "sweep"

    entry_point: str | None = Field(default=None, examples=["my_package.training:train"])
    grid: Annotated[dict[str, _Values], Field(min_length=1)] | None = Field(
        default=None, examples=[{"lr": [0.1, 0.01]}]
    )
    list: _Settings | None = Field(default=None, examples=[[{"lr": 0.1}, {"lr": 0.01}]])
    random: RandomSearch | None = None
    metric: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["validation_loss"])
    direction: Direction = Field(default=Direction.MINIMIZE, examples=["minimize"])
    max_trial_steps: Annotated[int, Field(gt=0, le=MOST)] | None = Field(default=None, examples=[24_000])
    speedup: Speedup | None = Field(default=None, examples=[{"parallel": 0.9}])
    theta: Annotated[float, Field(gt=0, le=1)] = Field(default=0.7, examples=[0.7])
    mcnt: Annotated[int, Field(ge=1)] = Field(default=3, examples=[3])
    checkpoint: Checkpointing | None = Field(default=Checkpointing(), examples=[{"save_s": 20, "restore_s": 45}])
    checkpoints: CheckpointFolder | None = Field(default=None, examples=["checkpoints"])
    progress: ProgressPattern | None = Field(default=None, examples=[r"it (?P<step>\d+) of (?P<total>\d+)"])
    _made: tuple[tuple[Any, ...], tuple[SweepTrial, ...]] | None = PrivateAttr(default=None)

    def _check_kind(self) -> None:
        ways = [name for name in ("grid", "list", "random") if getattr(self, name) is not None]
        programs = (self.command is not None) + (self.entry_point is not None)
        if programs == 2 or (ways and not programs):
            raise ValueError("needs either command or entry_point: write `command: python train.py --lr {lr}`")
        if self.entry_point is not None and not _ENTRY_POINT.fullmatch(self.entry_point):
            raise ValueError(f"entry_point {self.entry_point!r} is not of the form package.module:function")
        if self.bucket is not None and self.checkpoint is None:
            raise ValueError(NO_CHECKPOINT)
        if len(ways) > 1:
            raise ValueError(f"needs one of grid, list, random, not {' and '.join(ways)}")
        self._check_number()

    @model_validator(mode="after")
    def _has_trials(self) -> Self:
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

    def _check_number(self) -> None:
        number = len(self.list or ())
        if self.grid is not None:
            number = math.prod(len(values) for values in self.grid.values())
        if number > MOST_TRIALS:
            raise ValueError(
                f"has {number:,} trials; {MOST_TRIALS:,} at most: give fewer values, or draw some with `random`"
            )

    @classmethod
    def read(cls, path: str | Path, catalogue: Catalogue | None = None) -> Sweep:
        """Read a sweep from YAML.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range; an
                instance type is not in the catalogue.
        """
        return cls.parse(read_mapping(path, "sweep: a mapping with name, command, metric..."), path, catalogue)

    @property
    def steps(self) -> int | None:
        """Steps of a complete trial; None: it ends when its program does."""
        return self.max_trial_steps

    @property
    def in_words(self) -> str:
        """Number of trials in words."""
        number = len(self.trials())
        return f"{number} trial{'s' * (number > 1)}" if self.has_choice else "one training"

    @property
    def ranks(self) -> int:
        """Number of machines of a training that save under an id of their own."""
        return self.machines if isinstance(self.machines, int) else self.machines.max

    def _fields_of_job(self) -> dict[str, Any]:
        return {"checkpoint": self.checkpoint, "share": self.share, "speedup": self.speedup}

    @property
    def has_choice(self) -> bool:
        """True if there are settings to try; without them the sweep is one training."""
        return any(way is not None for way in (self.grid, self.list, self.random))

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
        return super().arguments(trial)

    def command_line(self, trial: SweepTrial) -> tuple[str, ...]:
        """Command line of a trial on a machine: its command, or Python with the entry point."""
        if self.entry_point is None:
            return self.arguments(trial)
        called = self.entry_point, json.dumps(trial.values), *(() if self.metric is None else (self.metric,))
        return "python", "-m", "ebbtide.agent.entry_point", *called

    def in_bucket(self, found: Bucket, store: str) -> Self:
        """The same, if it can be checkpointed, with the bucket that its store was found to be."""
        return self if self.checkpoint is None else super().in_bucket(found, store)
