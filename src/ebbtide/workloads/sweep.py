"""Sweeps: a training program, the settings to try, and how to choose among them, as users write them in YAML."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import string
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.workloads.job import Checkpointing, Job, PositiveFloat
from ebbtide.workloads.parsing import Frozen, read_mapping, validated

Value = bool | int | float | str
_Values = Annotated[list[Value], Field(min_length=1)]
_Settings = Annotated[list[dict[str, Value]], Field(min_length=1)]

# What a command may ask for beside the parameters.
BUILT_IN = ("checkpoint_dir", "max_steps")

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Direction(StrEnum):
    """Which end of the metric is the better one."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class Drawn(Frozen):
    """How to draw one parameter; exactly one of the fields.

    Attributes:
        choice: One of these.
        uniform: Between these two.
        log_uniform: Between these two, evenly by the logarithm.
        integers: A whole number from the first to the second, both included.
    """

    choice: _Values | None = None
    uniform: tuple[float, float] | None = None
    log_uniform: tuple[PositiveFloat, PositiveFloat] | None = None
    integers: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Drawn:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of choice, uniform, log_uniform, integers")
        bounds = getattr(self, given[0])
        if given[0] != "choice" and not bounds[0] < bounds[1]:
            raise ValueError(f"{given[0]} needs a lower and a higher bound, not {bounds[0]} and {bounds[1]}")
        return self

    def value(self, random: np.random.Generator) -> Value:
        """One draw."""
        if self.choice is not None:
            return self.choice[int(random.integers(len(self.choice)))]
        if self.integers is not None:
            return int(random.integers(self.integers[0], self.integers[1] + 1))
        if self.uniform is not None:
            return float(random.uniform(*self.uniform))
        assert self.log_uniform is not None
        low, high = self.log_uniform
        return math.exp(random.uniform(math.log(low), math.log(high)))


class RandomSearch(Frozen):
    """Settings drawn at random.

    Attributes:
        samples: How many.
        seed: The same settings for the same seed.
        parameters: How to draw each.
    """

    samples: Annotated[int, Field(ge=1, le=10_000)]
    seed: int = 0
    parameters: Annotated[dict[str, Drawn], Field(min_length=1)]


class MarketFilter(Frozen):
    """Where machines may be rented; what is not named is not restricted."""

    clouds: list[str] = Field(default_factory=list)
    regions: list[str] = Field(default_factory=list)
    zones: list[str] = Field(default_factory=list)
    instance_types: list[str] = Field(default_factory=list)

    def allows(self, market: Market) -> bool:
        """Whether a market passes."""
        pairs = (
            (self.clouds, market.cloud),
            (self.regions, market.region),
            (self.zones, market.zone),
            (self.instance_types, market.instance_type),
        )
        return all(not allowed or value in allowed for allowed, value in pairs)


@dataclass(frozen=True)
class Trial:
    """One setting of a sweep.

    Attributes:
        number: From 0; it stays the same wherever the trial runs.
        values: By parameter.
    """

    number: int
    values: dict[str, Value]

    @property
    def name(self) -> str:
        """For tables."""
        return ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                         for key, value in self.values.items())  # fmt: skip


class Decides(StrEnum):
    """Why spot machines are taken."""

    PRICE = "price"  # above a max price: EC2 until 2017
    CAPACITY = "capacity"  # others want the machine: today


class Sweep(Frozen):
    """A sweep.

    Attributes:
        name: For tables and tags.
        command: A command line with `{parameter}` where values go, and `{checkpoint_dir}` and `{max_steps}` where
            those are wanted; it is never given to a shell.
        entry_point: Instead, `package.module:function`, called with the parameters by name.
        grid: Every combination of these values,
        list: or these settings,
        random: or settings drawn at random: exactly one of the three.
        metric: What the training reports and trials are compared by.
        direction: Which end of it is better.
        max_trial_steps: Of a trial trained to its end.
        theta: Trials are predicted from this share of their steps.
        mcnt: So many, the best by prediction, are trained to the end.
        markets: Where machines may be rented.
        budget_usd: Never spent more.
        deadline_h: Hours from the start by which all should be done.
        decides: Whether price or capacity decides when machines are taken; with capacity, and a deadline, they are
            rented by policy `deadline`, with on-demand machines as the way out.
        billing: Preset of spot leases.
        steps_per_hour: Measured rate of a trial by instance type; with the next, empty: not measured yet.
        other_steps_per_hour_per_vcpu: The rate, by core, of other types.
        checkpoint: What saving costs; null: trials cannot be checkpointed.
    """

    name: Annotated[str, Field(min_length=1)]
    command: str | None = None
    entry_point: str | None = None
    grid: Annotated[dict[str, _Values], Field(min_length=1)] | None = None
    list: _Settings | None = None
    random: RandomSearch | None = None
    metric: Annotated[str, Field(min_length=1)]
    direction: Direction = Direction.MINIMIZE
    max_trial_steps: Annotated[int, Field(gt=0)]
    theta: Annotated[float, Field(gt=0, le=1)] = 0.7
    mcnt: Annotated[int, Field(ge=1)] = 3
    markets: MarketFilter = MarketFilter()
    budget_usd: PositiveFloat | None = None
    deadline_h: PositiveFloat | None = None
    decides: Decides = Decides.PRICE
    billing: str = "ec2-second"
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict)
    other_steps_per_hour_per_vcpu: PositiveFloat | None = None
    checkpoint: Checkpointing | None = Checkpointing()

    @model_validator(mode="after")
    def _makes_sense(self) -> Sweep:
        if (self.command is None) == (self.entry_point is None):
            raise ValueError("needs either command or entry_point")
        if self.entry_point is not None and not _ENTRY_POINT.fullmatch(self.entry_point):
            raise ValueError(f"entry_point {self.entry_point!r} is not of the form package.module:function")
        if self.decides is Decides.CAPACITY and self.deadline_h is None:
            raise ValueError("decides: capacity needs a deadline_h, by which on-demand machines are the way out")
        if sum(way is not None for way in (self.grid, self.list, self.random)) != 1:
            raise ValueError("needs exactly one of grid, list, random")
        for trial in self.trials():
            self._check_placeholders(trial)
        return self

    def _check_placeholders(self, trial: Trial) -> None:
        if self.command is None:
            return
        try:
            asked = {field for _, field, _, _ in string.Formatter().parse(self.command) if field is not None}
            parts = shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"command is malformed: {error}") from None
        if not parts:
            raise ValueError("command is empty")
        known = {*trial.values, *BUILT_IN}
        missing, unused = sorted(asked - known), sorted(set(trial.values) - asked)
        if missing:
            raise ValueError(f"command asks for {{{missing[0]}}}; there are {', '.join(trial.values)}")
        if unused:
            raise ValueError(f"parameter {unused[0]} is not in the command; write {{{unused[0]}}} where it goes")

    @classmethod
    def read(cls, path: str | Path, catalogue: Catalogue | None = None) -> Sweep:
        """Read a sweep from YAML.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range; an
                instance type is not in the catalogue.
        """
        sweep = validated(cls, read_mapping(path, "sweep: a mapping with name, command, metric..."), path)
        if sweep.is_measured:
            sweep.jobs()[0].check_types(catalogue or default_catalogue(), path)
        return sweep

    def trials(self) -> tuple[Trial, ...]:
        """All settings, in a fixed order."""
        if self.grid is not None:
            rows = [dict(zip(self.grid, row, strict=True)) for row in itertools.product(*self.grid.values())]
        elif self.list is not None:
            rows = [dict(row) for row in self.list]
        else:
            assert self.random is not None
            draw = np.random.default_rng(self.random.seed)
            drawn = self.random.parameters
            rows = [{key: how.value(draw) for key, how in drawn.items()} for _ in range(self.random.samples)]
        return tuple(Trial(number, row) for number, row in enumerate(rows))

    def arguments(self, trial: Trial) -> tuple[str, ...]:
        """The command of a trial, split into arguments; a value is never split or read by a shell.

        Raises:
            InputError: The sweep calls an entry point instead.
        """
        if self.command is None:
            raise InputError(f"sweep {self.name} has no command; it calls {self.entry_point}")
        # Where checkpoints go only the machine knows.
        built_in = {"checkpoint_dir": "{checkpoint_dir}", "max_steps": self.max_trial_steps}
        return tuple(part.format(**built_in | trial.values) for part in shlex.split(self.command))

    def command_line(self, trial: Trial) -> tuple[str, ...]:
        """What a machine runs for a trial: its command, or Python with the entry point."""
        if self.entry_point is None:
            return self.arguments(trial)
        return "python", "-m", "ebbtide.agent.entry_point", self.entry_point, json.dumps(trial.values)

    @property
    def is_measured(self) -> bool:
        """Whether it is known how fast its trials are anywhere."""
        return bool(self.steps_per_hour) or self.other_steps_per_hour_per_vcpu is not None

    def jobs(self) -> tuple[Job, ...]:
        """A job for each trial.

        Raises:
            InputError: Its speed is not measured.
        """
        if not self.is_measured:
            raise InputError(
                f"the speed of sweep {self.name} is not measured; give steps_per_hour of some instance type "
                "or other_steps_per_hour_per_vcpu"
            )
        return tuple(
            Job(
                name=f"{self.name}-{trial.number}",
                steps=self.max_trial_steps,
                steps_per_hour=self.steps_per_hour,
                other_steps_per_hour_per_vcpu=self.other_steps_per_hour_per_vcpu,
                checkpoint=self.checkpoint,
            )
            for trial in self.trials()
        )

    def allowed(self, prices: PriceHistory) -> PriceHistory:
        """The part of a history in which machines may be rented.

        Raises:
            InputError: No market of it is allowed.
        """
        kept = [market for market in prices if self.markets.allows(market)]
        if not kept:
            raise InputError(f"sweep {self.name} allows none of the {len(prices)} markets of these prices")
        return prices.select(kept)
