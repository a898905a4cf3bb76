"""Base of the kinds of jobs that a run runs: their command, their speed, and where they may run."""

from __future__ import annotations

import re
import shlex
import string
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import RunTerms
from ebbtide.jobs.job import UNKNOWN_STEPS, Job, PositiveFloat, check_known
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.progress_pattern import checked_pattern
from ebbtide.jobs.random_search import Value
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.catalogue import X86_64, Catalogue, InstanceType, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

Arguments = Annotated[list[str], Field(min_length=1)]

# What may stand between braces: a plain name, without attributes, conversions or formats.
_PLACEHOLDER = re.compile(r"[^\W\d][\w-]*")


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


# The folder into which a program writes its checkpoints, and the pattern of its lines that tell progress.
CheckpointFolder = Annotated[str, AfterValidator(checked_folder)]
ProgressPattern = Annotated[str, Field(min_length=1), AfterValidator(checked_pattern)]


class SingleJob(RunTerms):
    """A job of a run. Each kind adds its own fields, and what they mean to those who run it.

    Attributes:
        name: Name of the job in tables and tags.
        command: A command line, or a list of its arguments; never given to a shell.
        steps_per_hour: Measured steps per hour by instance type; if this and the next are empty, the speed is
            unknown.
        other_steps_per_hour_per_vcpu: Steps per hour and vCPU of other types.
    """

    is_list: ClassVar[Literal[False]] = False
    # Placeholders of the command besides parameters; what the job is called where it fills whole machines.
    placeholders: ClassVar[tuple[str, ...]] = ("checkpoint_dir", "max_steps")
    called: ClassVar[str] = "one job"

    name: Annotated[str, Field(min_length=1, examples=["my-sweep"])]
    command: str | Arguments | None = Field(default=None, examples=["python train.py --lr {lr}"])
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict, examples=[{"g4dn.xlarge": 44_280}])
    other_steps_per_hour_per_vcpu: PositiveFloat | None = Field(default=None, examples=[220])

    # Said by each kind.

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """Steps of a complete job, or of a trial of it; None: it ends when its program does."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """The job in words: its trials, its tasks or its framework."""

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Number of machines of a training that save under an id of their own."""

    @abstractmethod
    def _fields_of_job(self) -> dict[str, Any]:
        """Fields of a job for replays that this kind determines."""

    def _check_kind(self) -> None:
        """Raise `ValueError` if fields of the kind contradict each other."""

    def _check_room(self, machines: Iterable[InstanceType], of_what: str, file: str | Path | None = None) -> None:
        """Raise `InputError` if machines are too small for what they are to do."""

    @property
    def _noun(self) -> str:
        return "sweep" if self.has_choice else "job"

    @property
    def has_choice(self) -> bool:
        """True if there are settings to try; without them the job is one training, array or program."""
        return False

    def trials(self) -> tuple[SweepTrial, ...]:
        """All trials, in a fixed order; one without values where there is nothing to choose."""
        return (SweepTrial(0, {}),)

    def command_line(self, trial: SweepTrial) -> tuple[str, ...]:
        """Command line of a trial on a machine."""
        return self.arguments(trial)

    def programs(self) -> Iterable[tuple[tuple[str, ...], str]]:
        """Arguments of the programs that are run, each with the field that names it."""
        return () if self.command is None else ((self.arguments(trial), "command") for trial in self.trials())

    # The command.

    @property
    def _command_field(self) -> str:
        """The field of the command, as its user calls it."""
        return "command"

    @property
    def _parts(self) -> Sequence[str]:
        """The arguments of the command, with placeholders."""
        command = self.command or ()
        return shlex.split(command) if isinstance(command, str) else command

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        self._check_kind()
        if self.share < 1 and (self.machines != 1 or self.called != SingleJob.called):
            raise ValueError(
                f"share {self.share:g} is for trainings on one machine; machines of {self.called} are each filled "
                "whole: leave out `share`, or write `machines: 1`"
            )
        if self.command is not None:
            for names in {tuple(trial.values) for trial in self.trials()}:
                self._check_placeholders(names)
        return self

    def _check_placeholders(self, parameters: Sequence[str]) -> None:
        asked_for = self._asked_for()
        missing = sorted(asked_for - {*parameters, *self.placeholders})
        unused = sorted(set(parameters) - asked_for)
        if missing:
            raise ValueError(f"{self._command_field} asks for {{{missing[0]}}}; {self._values_there(parameters)}")
        if unused:
            raise ValueError(f"parameter {unused[0]} is not in the command; write {{{unused[0]}}} where it goes")
        if "max_steps" in asked_for and self.steps is None:
            raise ValueError("command asks for {max_steps}, and how many steps there are is not said")

    def _values_there(self, parameters: Sequence[str]) -> str:
        """Names that may stand between braces in the command, in words."""
        return f"there are {', '.join(parameters)}" if parameters else "no grid, list or random gives values"

    def _asked_for(self) -> set[str]:
        """Names between braces in the command.

        Raises:
            ValueError: The command is malformed.
        """
        called = self._command_field
        try:
            parts = self._parts
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
        return {field for _, field, _, _ in fields if field is not None}

    def arguments(self, trial: SweepTrial) -> tuple[str, ...]:
        """The command of a trial, split into arguments; a value is never split or read by a shell."""
        # The machine fills in folders and tasks.
        on_machine = {name: f"{{{name}}}" for name in self.placeholders}
        return tuple(part.format(**on_machine | {"max_steps": self.steps} | trial.values) for part in self._parts)

    @classmethod
    def parse(
        cls, content: dict[str, Any], file: str | Path | None = None, catalogue: Catalogue | None = None
    ) -> Self:
        """A job from plain values; errors name `file` and the field.

        Raises:
            InputError: A field is missing, unknown or out of range; an instance type is not in the catalogue.
        """
        found = validated(cls, content, file)
        found.check_types(catalogue or default_catalogue(), file)
        return found

    def check_types(self, catalogue: Catalogue, file: str | Path | None = None) -> None:
        """Raise `InputError` for an unknown instance type, or if no type has everything required."""
        if self.steps_per_hour:
            self.live_jobs(catalogue)[0].check_types(catalogue, file)
        self.check_machines(catalogue, file)
        named = self.markets.instance_types
        able = [entry for entry in catalogue.instance_types if self.fits(entry)]
        wanted = [entry for entry in able if not named or entry.name in named]
        self._check_room(wanted, "instance type", file)

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
            f"{self._noun} {self.name}",
            is_measured=self.is_measured,
            has_steps=self.steps is not None,
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
                steps=self.steps or UNKNOWN_STEPS,
                steps_per_hour=rates,
                other_steps_per_hour_per_vcpu=other,
                machines=self.machines,
                bucket=self.bucket,
                architecture=self.architecture,
                **self._fields_of_job(),
            )
            for name in self.job_names
        )

    @property
    def job_names(self) -> tuple[str, ...]:
        """The name of each trial's job, in the order of trials."""
        return tuple(f"{self.name}-{trial.number}" if self.has_choice else self.name for trial in self.trials())

    @property
    def setting_names(self) -> tuple[str, ...]:
        """The values of each trial in words, in the order of trials."""
        return tuple(trial.name for trial in self.trials())

    @property
    def parts(self) -> tuple[Self, ...]:
        """Jobs of the run: this one alone; a list has several."""
        return (self,)

    def part_of(self, job_id: int) -> tuple[Self, SweepTrial]:
        """Return this job and the trial of a training, by its number in the run."""
        return self, self.trials()[job_id]

    def needed_by(self, job_id: int) -> tuple[int, ...]:  # noqa: ARG002
        """Return no numbers: its trainings need no others."""
        return ()

    def located(self, error: InputError, place: int) -> InputError:  # noqa: ARG002
        """An error of the part at a place, of which there is one."""
        return error

    def in_bucket(self, found: Bucket, store: str) -> Self:
        """The same with the bucket that its store was found to be.

        Raises:
            InputError: Its file says otherwise.
        """
        if self.bucket not in (None, found):
            said = self.bucket.place if self.bucket else None
            raise InputError(
                f"says {said}, and {store} is in {found.place}; leave it out, since it is looked up",
                field="bucket",
            )
        return self.model_copy(update={"bucket": found})

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
                f"{self._noun} {self.name} allows none of the {len(prices)} markets of these prices{why}; they "
                f"have {', '.join(sorted({market.instance_type for market in prices})[:12])}"
            )
        self._check_room(
            [known.machine_of(market) for market in kept if market in known], "machine of these prices"
        )
        if self.is_measured and self.other_steps_per_hour_per_vcpu is None:
            there = sorted({market.instance_type for market in kept})
            if not set(there) & set(self.steps_per_hour):
                known_on = ", ".join(sorted(self.steps_per_hour)[:12])
                raise InputError(
                    f"{self._noun} {self.name} has a speed on {known_on} alone, and its markets have "
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
