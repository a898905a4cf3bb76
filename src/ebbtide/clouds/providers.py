"""The providers by name, and the settings of machines of one or several of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebbtide.clouds.ec2.provider import Ec2Provider
from ebbtide.clouds.gcp.provider import GcpProvider
from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.provider import CloudProvider
from ebbtide.clouds.settings import RENTED, SEVERAL
from ebbtide.clouds.skypilot.provider import SkyPilotProvider
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.parsing import read_mapping

PROVIDERS: Mapping[str, CloudProvider[Any]] = {
    "ec2": Ec2Provider(),
    "gcp": GcpProvider(),
    "skypilot": SkyPilotProvider(),
}

# Providers of a single cloud; a run may combine several of them.
_SINGLE = ("ec2", "gcp")

# Settings of machines, by provider.
Machines = Mapping[str, MachineSettings]

# Billing by each cloud's own rule.
EACH_CLOUDS = "by-cloud"
# Billing of a job whose file names none.
_DEFAULT_BILLING = "ec2-second"

# Settings that must agree across clouds: a run has one controller, store and command.
_SHARED = ("store", "python", "poll_s", "controller_limit_s")


def machines_of(
    provider: str, given: MachineSettings | Mapping[str, MachineSettings] | str | Path | None
) -> Machines:
    """Return the settings of machines that a run was given.

    Args:
        provider: Name of the provider: one of them, or `several`.
        given: The settings, by provider for `several`, or the path of their file; None: none were given.

    Raises:
        InputError: No settings were given, or they are not valid.
    """
    found = _given_machines(provider, given)
    for each in found.values():
        each.check_limits(given if isinstance(given, str | Path) else None)
    return found


def _given_machines(
    provider: str, given: MachineSettings | Mapping[str, MachineSettings] | str | Path | None
) -> Machines:
    if given is None:
        example = PROVIDERS[provider].example if provider in PROVIDERS else "examples/live/several.yaml"
        raise InputError(
            f"--provider {provider} needs --machines {Path(example).stem.upper()}.yaml, as {example} has it"
        )
    if provider != SEVERAL:
        if isinstance(given, str | Path):
            return {provider: PROVIDERS[provider].read(given)}
        if isinstance(given, MachineSettings):
            return {provider: given}
        return dict(given)
    found = _several(given) if isinstance(given, str | Path) else given
    if isinstance(found, MachineSettings) or len(found) < 2:
        raise InputError(
            f"provider {SEVERAL} needs settings of two or more of {', '.join(_SINGLE)}", field="machines"
        )
    _check_shared(found)
    return dict(found)


def _several(path: str | Path) -> dict[str, MachineSettings]:
    """Read a file of settings for several clouds, each inline or as the path of another file."""
    content = read_mapping(path, "settings of several clouds: a mapping with ec2, gcp...")
    unknown = next((name for name in content if name not in _SINGLE), None)
    if unknown is not None:
        raise InputError(
            f"is no provider of one cloud; known: {', '.join(_SINGLE)}", file=path, field=str(unknown)
        )
    found = {}
    for name, value in content.items():
        provider, folder = PROVIDERS[name], Path(path).parent
        found[name] = (
            provider.read(folder / value) if isinstance(value, str) else provider.decode(value, Path(path))
        )
    return found


def _check_shared(machines: Machines) -> None:
    (first, one), *others = machines.items()
    for name, other in others:
        for field in _SHARED:
            if getattr(one, field) != getattr(other, field):
                raise InputError(
                    f"{field} is {getattr(one, field)} for {first} and {getattr(other, field)} for {name}; one "
                    "run has one of it for all clouds",
                    field=f"{name}.{field}",
                )


def kept_machines(options: Mapping[str, Any], file: Path) -> Machines:
    """Decode the settings that a run keeps.

    Args:
        options: Options of the run's settings; each provider's settings are under its name.
        file: Path of the run's file, for errors.

    Raises:
        InputError: They are not valid.
    """
    return {name: PROVIDERS[name].decode(options[name], file) for name in RENTED if name in options}


def with_billing(work: Runnable, provider: str) -> Runnable:
    """Return the work with the provider's billing, unless its file names another rule of that cloud.

    Args:
        work: The sweep, or the list of jobs.
        provider: Name of the provider.

    Raises:
        InputError: Its file names the rule of another cloud.
    """
    # A replay may hold prices of any cloud.
    own = EACH_CLOUDS if provider not in PROVIDERS or provider == SEVERAL else PROVIDERS[provider].billing
    if work.billing == _DEFAULT_BILLING:
        return work.model_copy(update={"billing": own})
    if provider not in RENTED:
        return work
    cloud = work.billing.partition("-")[0]
    if (provider == SEVERAL and work.billing != own) or cloud in {"ec2", "gcp", "azure", "mithril"} - {provider}:
        raise InputError(
            f"{work.billing} is not how {provider} charges; leave it out, or write {own}", field="billing"
        )
    return work
