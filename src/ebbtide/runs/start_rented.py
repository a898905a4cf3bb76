"""Live runs on rented machines: of EC2, of Google Cloud, of both at once, or through SkyPilot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebbtide.agent.bundle import bundle, bundle_key
from ebbtide.agent.config import AgentConfig
from ebbtide.agent.folders import code_key, packed
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.bucket import with_bucket
from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.own_machines import OwnMachines
from ebbtide.clouds.provider import Prices, RentingCloud
from ebbtide.clouds.providers import PROVIDERS, Machines, kept_machines
from ebbtide.clouds.settings import SEVERAL, LiveSettings, NewRun, RunFolder
from ebbtide.clouds.several import SeveralClouds
from ebbtide.clouds.unique_names import own_store
from ebbtide.controller.agent_provider import PollIntervals
from ebbtide.controller.controller import Controller, OnProgress, Programs
from ebbtide.controller.kinds.assignments import secrets_of
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import KEPT_MODELS, hazard_of
from ebbtide.jobs.job_list import OneJob, Runnable, runnable
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.backoff import backing_off
from ebbtide.runs.command_check import check_command
from ebbtide.storage.objects import object_store


def begin_rented(
    sweep: Runnable,
    sweep_folder: Path,
    new: NewRun,
    machines: Machines,
    *,
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    catalogue: Catalogue | None = None,
) -> RunFolder:
    """Create a new run, and upload the user's code to storage; `run_rented` runs it.

    Args:
        sweep: The sweep that is to be trained.
        sweep_folder: Folder with the user's code.
        new: Where the run is kept, and under which id.
        machines: Regions, images and other properties of machines, by provider; with several, machines are
            rented from all of them.
        policy: Name of the policy, with which the run can be resumed.
        parameters: Its parameters that differ from the defaults, by name.
        seed: Seed of all random numbers of the run.
        catalogue: Instance types and list prices, kept with the run; by default those that ship with Ebbtide.

    Raises:
        InputError: There is a run with that id; the sweep has no budget, or calls a file that is not beside it;
            there are no credentials, or they expire too early; there is too much code; the region of the store is
            not known; a region has no image.
    """
    provider = SEVERAL if len(machines) > 1 else next(iter(machines))
    if sweep.budget_usd is None:
        raise InputError(f"sweep {sweep.name} needs one on {provider}, for example 20", field="budget_usd")
    together = next((job for job in sweep.live_jobs(catalogue) if job.most_machines > 1), None)
    regions = [region for name, settings in machines.items() for region in PROVIDERS[name].regions(settings)]
    apart = next((name for name in machines if not PROVIDERS[name].knows_addresses), None)
    if together is not None and apart is not None:
        raise InputError(
            f"the machines of {together.name} work as one, and {apart} does not tell their addresses; use ec2 or "
            "gcp",
            field="machines",
        )
    if together is not None and len(regions) > 1:
        raise InputError(
            f"the machines of {together.name} work as one and reach each other by private addresses, "
            f"which they do within one region; give one of {', '.join(regions)}",
            field="regions",
        )
    check_command(sweep, sweep_folder, here=False)
    expected_end_s = time.time() + _longest_s(sweep)
    ready = {name: PROVIDERS[name].ready(settings, expected_end_s) for name, settings in machines.items()}
    shared = _shared(ready)
    sweep = with_bucket(sweep, shared)
    code = packed(sweep_folder)
    folder = new.folder(sweep.name)
    run, name = folder.path.name, folder.unique_name
    store = own_store(shared.store, name)
    object_store(store).put_once(code_key(run, code), code)
    new.keep(folder)
    kept = {name: settings.model_dump(mode="json") for name, settings in ready.items()}
    folder.begin(
        LiveSettings(
            run,
            provider,
            policy,
            sweep.model_dump(mode="json"),
            str(sweep_folder.resolve()),
            store,
            {**kept, "code": code_key(run, code)},
            seed,
            dict(parameters or {}),
            new.journal,
            folder.fingerprint,
            journal_name=name if new.journal else "",
        ),
        catalogue,
    )
    return folder


def run_rented(folder: RunFolder, policy: Policy, on_progress: OnProgress | None = None) -> Outcome:
    """Run a new run, or resume one, until it ends.

    Machines run the agent of this version of Ebbtide, which may differ from the one that began the run.
    """
    live, machines = folder.settings, _machines(folder)
    settings = _shared(machines)
    # Checked before anything is stored or rented: a run that is resumed elsewhere may lack a secret.
    secrets_of(runnable(live.sweep))
    agent_key = bundle_key(live.run)
    object_store(live.store).put_once(agent_key, bundle())
    work = runnable(live.sweep)
    prices = {name: PROVIDERS[name].prices(folder, work, one) for name, one in machines.items()}
    agent = AgentConfig(
        live.run,
        "",
        live.store,
        settings.folder,
        agent_key,
        poll_s=settings.poll_s,
        notice_poll_s=settings.notice_poll_s,
        report_s=settings.poll_s,
        controller_limit_s=settings.controller_limit_s,
        pins_cores=True,
    )
    cloud = _cloud(live, machines, prices)
    controller = Controller(
        folder,
        backing_off(policy),
        cloud,
        agent,
        Programs(
            hazard_of(folder.path / KEPT_MODELS).usual_life_s(cloud.markets), settings.python, _code_of(live)
        ),
        PollIntervals(settings.poll_s, silent_s=max(one.setup_limit_s for one in machines.values())),
    )
    return controller.run(on_progress)


def cloud_of(folder: RunFolder) -> RentingCloud:
    """The cloud of a run, to list machines and end them; nothing can be rented from it."""
    machines = _machines(folder)
    return _cloud(folder.settings, machines, dict.fromkeys(machines, _no_prices))


def end_rented(folder: RunFolder) -> int:
    """Request the end of every machine of the run, in all its regions; returns how many ran."""
    return len(cloud_of(folder).end_all())


def _cloud(live: LiveSettings, machines: Machines, prices: Mapping[str, Prices]) -> RentingCloud:
    clouds = {
        PROVIDERS[name].cloud_name: PROVIDERS[name].cloud(live.unique_name, settings, prices[name])
        for name, settings in machines.items()
    }
    cloud = next(iter(clouds.values())) if len(clouds) == 1 else SeveralClouds(clouds)
    return OwnMachines(cloud, live.run, live.unique_name)


def _machines(folder: RunFolder) -> Machines:
    return kept_machines(folder.settings.options, folder.path / "run.json")


def _shared(machines: Machines) -> MachineSettings:
    """Settings that the machines of all clouds of a run share."""
    return next(iter(machines.values()))


def _code_of(live: LiveSettings) -> str:
    """Key in storage of the code with which the run began."""
    return str(live.options.get("code", f"runs/{live.run}/code.tar.gz"))


def _no_prices() -> PriceHistory:
    raise InputError("no prices are asked for where machines are only ended")


def _longest_s(work: Runnable) -> float:
    """The deadline in seconds; if there is none, the time that the longest trial takes on its slowest machine,
    summed over all jobs."""
    if work.deadline_h is not None:
        return work.deadline_h * HOUR_S
    return sum(map(_longest_trial_s, work.parts))


def _longest_trial_s(sweep: OneJob) -> float:
    slowest = min(sweep.steps_per_hour.values(), default=sweep.other_steps_per_hour_per_vcpu)
    return HOUR_S if slowest is None or sweep.steps is None else sweep.steps / slowest * HOUR_S
