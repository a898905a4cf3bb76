"""Requirements of a training for its machine (accelerators, cores, memory), and which machines are faster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError, unknown_name
from ebbtide.jobs.parsing import Frozen
from ebbtide.jobs.throughput import ThroughputModel
from ebbtide.market.catalogue import X86_64, Catalogue, InstanceType, architecture_of
from ebbtide.market.markets import Market, is_linux

# More machines than one job has anywhere.
MOST_MACHINES = 10_000

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

_ACCELERATORS = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9 ._-]*?)(:(?P<count>[1-9]\d{0,3}))?")

# Parallel share of a step before any speed is measured.
_PARALLEL = 0.5


class MachineRange(Frozen):
    """The number of machines of an elastic job, which trains on as many of them as there are.

    Attributes:
        min: Fewest machines on which it trains; with fewer it waits.
        max: Most machines that it uses.
    """

    min: Annotated[int, Field(ge=1, le=MOST_MACHINES, examples=[2])]
    max: Annotated[int, Field(ge=1, le=MOST_MACHINES, examples=[8])]

    @model_validator(mode="after")
    def _is_a_range(self) -> MachineRange:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


def _checked_count(count: Any) -> Any:
    is_number = isinstance(count, int) and not isinstance(count, bool)
    if isinstance(count, Mapping):
        return MachineRange.model_validate(count)
    if isinstance(count, MachineRange) or (is_number and 1 <= count <= MOST_MACHINES):
        return count
    raise ValueError(
        f"{count!r:.40} is no number of machines from 1 to {MOST_MACHINES:,}; for example `machines: 4` for four "
        "or none, or `machines: {min: 2, max: 8}` for as many as there are"
    )


# How many machines one job has: all or none of them, or as many of a range as there are.
MachineCount = Annotated[int | MachineRange, BeforeValidator(_checked_count)]


class Resources(Frozen):
    """Requirements for the machine of one training; fields that are not given require nothing.

    Attributes:
        accelerators: Name and exact number of accelerators, `T4:1`; a program for one gains nothing from four.
            `T4` alone means one.
        cpus: Least number of vCPUs of the machine.
        memory_gib: Least main memory of the machine, GiB.
        architecture: Architecture of the processor for which the program is built; None: x86_64, and what
            `steps_per_hour` names, since it has run there.
        secrets: Names of environment variables, such as `WANDB_API_KEY`, that the program gets with the values
            that they have where the run is begun. Neither journal nor storage has the values.
    """

    accelerators: str | None = Field(default=None, examples=["T4:1"])
    cpus: Annotated[int, Field(ge=1, le=10_000)] | None = Field(default=None, examples=[4])
    memory_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(default=None, examples=[16])

    architecture: Literal["x86_64", "arm64"] | None = Field(default=None, examples=["arm64"])
    secrets: list[str] = Field(default_factory=list, examples=[["WANDB_API_KEY"]])

    @field_validator("secrets")
    @classmethod
    def _names_of_variables(cls, names: list[str]) -> list[str]:
        for name in names:
            # What is longer than a name is perhaps the value itself, which is not to be shown.
            if not _VARIABLE.fullmatch(name):
                raise ValueError(
                    "secrets are names of environment variables, such as `secrets: [WANDB_API_KEY]`, and never "
                    "values"
                )
            if name.startswith("EBBTIDE_"):
                raise ValueError(f"{name} is set by Ebbtide itself; give the secret another name")
        return list(dict.fromkeys(names))

    @field_validator("accelerators")
    @classmethod
    def _name_and_number(cls, text: str | None) -> str | None:
        if text is not None and not _ACCELERATORS.fullmatch(text):
            raise ValueError(f"accelerators {text!r} are not of the form NAME:NUMBER, as in `accelerators: T4:1`")
        # One, as other tools take it; said in full wherever it is shown.
        return text if text is None or ":" in text else f"{text}:1"

    def fits(self, machine: InstanceType) -> bool:
        """Return whether a machine has everything required, and the program runs on its processor."""
        if not self.runs_on(machine.name, machine.architecture):
            return False
        if self.cpus is not None and machine.vcpus < self.cpus:
            return False
        if self.memory_gib is not None and machine.memory_gib < self.memory_gib:
            return False
        if self.accelerators is None:
            return True
        name, count = _asked(self.accelerators)
        return machine.accelerator_count == count and name in _names(machine)

    def runs_on(self, instance_type: str, architecture: str) -> bool:
        """Return whether the program runs on the processor of an instance type."""
        if self.architecture is not None:
            return architecture == self.architecture
        return architecture == X86_64 or self.has_speed_on(instance_type)

    def has_speed_on(self, instance_type: str) -> bool:  # noqa: ARG002
        """Return whether the speed on an instance type is given; here none is."""
        return False

    def allows_system(self, market: Market, catalogue: Catalogue) -> bool:
        """Return whether the program runs on the operating system and the processor of a market's machines."""
        known = catalogue.machine_of(market).architecture if market in catalogue else ""
        architecture = known or architecture_of(market.cloud, market.instance_type)
        return is_linux(market.product) and self.runs_on(market.instance_type, architecture)

    def check_machines(self, catalogue: Catalogue, file: str | Path | None = None) -> None:
        """Raise `InputError` if no instance type has everything required; the message lists what exists."""
        machines = catalogue.instance_types
        if any(self.fits(machine) for machine in machines):
            return
        if self.accelerators is not None:
            name, count = _asked(self.accelerators)
            alike = [machine for machine in machines if name in _names(machine)]
            if not alike:
                known = {_short(machine) for machine in machines if machine.accelerator}
                problem = unknown_name("accelerator", self.accelerators.partition(":")[0], known).problem
                hint = "more instance types are added with --instance-types"
                raise InputError(f"{problem}; {hint}", file=file, field="accelerators")
            counts = sorted({machine.accelerator_count for machine in alike})
            if count not in counts:
                numbers = ", ".join(map(str, counts))
                raise InputError(
                    f"no instance type has {count} of {_short(alike[0])}; there are types with {numbers}",
                    file=file,
                    field="accelerators",
                )
        raise InputError(f"no instance type has {self.asked}", file=file)

    @property
    def asked(self) -> str:
        """The requirements in words; empty if there are none."""
        parts = (
            (self.accelerators, f"accelerators {self.accelerators}"),
            (self.cpus, f"{self.cpus} vCPUs"),
            (self.memory_gib, f"{self.memory_gib or 0.0:g} GiB of memory"),
            (self.architecture, f"architecture {self.architecture}"),
        )
        return ", ".join(text for value, text in parts if value is not None)

    def nominal_steps_per_hour(self, machines: Iterable[InstanceType]) -> dict[str, float]:
        """Nominal steps per hour by instance type until some are measured; only their ratios are meaningful.

        With required accelerators all machines count as equally fast, since all have the same; otherwise the speed
        follows from the cores (`ThroughputModel`).
        """
        model = ThroughputModel(1.0, _PARALLEL)
        return {
            machine.name: HOUR_S / (1.0 if self.accelerators else model.seconds_per_step(machine))
            for machine in machines
            if self.fits(machine)
        }


def _asked(text: str) -> tuple[str, int]:
    found = _ACCELERATORS.fullmatch(text)
    assert found is not None
    return found["name"].casefold(), int(found["count"] or 1)


def _names(machine: InstanceType) -> set[str]:
    """Names of its accelerator in lower case, with and without the maker's name."""
    return {machine.accelerator.casefold(), _short(machine).casefold()} if machine.accelerator else set()


def _short(machine: InstanceType) -> str:
    return (machine.accelerator or "").partition(" ")[2] or (machine.accelerator or "")
