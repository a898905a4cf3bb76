"""Live runs on EC2."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebbtide._utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import Runnable, runnable
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.live.agent.bundle import bundle, bundle_key
from ebbtide.live.agent.config import AgentConfig
from ebbtide.live.agent.folders import code_key, packed
from ebbtide.live.agent_provider import Pace
from ebbtide.live.clouds.ec2.bucket import with_bucket
from ebbtide.live.clouds.ec2.cloud import Ec2Cloud, client_of
from ebbtide.live.clouds.ec2.credentials import check_credentials
from ebbtide.live.clouds.ec2.current_prices import CurrentPrices
from ebbtide.live.clouds.ec2.images import with_images
from ebbtide.live.clouds.ec2.settings import Ec2Settings
from ebbtide.live.command_check import check_command
from ebbtide.live.controller import Controller, OnProgress, Programs
from ebbtide.live.settings import LiveSettings, NewRun, RunFolder
from ebbtide.live.storage import object_store
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.price_store import PriceStore
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.refusals import backing_off

_LOGGER = logging.getLogger(__name__)

# Mean seconds until a machine is revoked, where nothing else is known.
_MTTR_S = 6 * HOUR_S
# Tries of each request for images: nothing is rented yet, and nobody waits for a stop.
_IMAGE_TRIES = 5


def begin_ec2(
    sweep: Runnable,
    sweep_folder: Path,
    new: NewRun,
    settings: Ec2Settings,
    *,
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    catalogue: Catalogue | None = None,
) -> RunFolder:
    """Write down a new run, and put the user's code into storage; `run_ec2` runs it.

    Args:
        sweep: The sweep that is to be trained.
        sweep_folder: Folder with the user's code.
        new: Where the run is kept, and under which id.
        settings: Regions, images and other properties of machines.
        policy: Name of the policy, with which the run can be resumed.
        parameters: Its parameters that differ from the defaults, by name.
        seed: Seed of all random numbers of the run.
        catalogue: Instance types and list prices, kept with the run; by default those that ship with Ebbtide.

    Raises:
        InputError: There is a run with that id; the sweep has no budget, or calls a file that is not beside it;
            there are no credentials, or they end too early; there is too much code; the region of the store is not
            known; a region has no image.
    """
    if sweep.budget_usd is None:
        raise InputError(f"sweep {sweep.name} needs one on EC2, for example 20", field="budget_usd")
    together = next((job for job in sweep.live_jobs(catalogue) if job.most_machines > 1), None)
    if together is not None and len(settings.regions) > 1:
        raise InputError(
            f"the machines of {together.name} work as one and reach each other by private addresses, "
            f"which they do within one region; give one of {', '.join(settings.regions)}",
            field="regions",
        )
    check_command(sweep, sweep_folder, here=False)
    warning = check_credentials(time.time() + _longest_s(sweep))
    if warning:
        _LOGGER.warning("%s", warning)
    sweep = with_bucket(sweep, settings)
    # What is found or copied now is kept, so that a run that is resumed has the same machines.
    settings = with_images(settings, lambda region: client_of(region, _IMAGE_TRIES))
    code = packed(sweep_folder)
    folder = new.folder(sweep.name)
    run = folder.path.name
    object_store(settings.store).put_once(code_key(run, code), code)
    new.keep(folder)
    folder.begin(
        LiveSettings(
            run,
            "ec2",
            policy,
            sweep.model_dump(mode="json"),
            str(sweep_folder.resolve()),
            settings.store,
            {"ec2": settings.model_dump(mode="json"), "code": code_key(run, code)},
            seed,
            dict(parameters or {}),
        ),
        catalogue,
    )
    return folder


def run_ec2(folder: RunFolder, policy: Policy, on_progress: OnProgress | None = None) -> Outcome:
    """Run a new run, or resume one, until it ends.

    Machines run the agent of this version of Ebbtide, which may differ from the one that began the run.
    """
    live, settings = folder.settings, _ec2_settings(folder)
    agent_key = bundle_key(live.run)
    object_store(live.store).put_once(agent_key, bundle())
    sweep = runnable(live.sweep)
    store = PriceStore(folder.path / "prices.db")
    prices = CurrentPrices(store, sweep, list(settings.regions), folder.catalogue, every_s=settings.price_poll_s)
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
    controller = Controller(
        folder,
        backing_off(policy),
        Ec2Cloud(live.run, settings, prices),
        agent,
        Programs(_MTTR_S, settings.python, _code_of(live)),
        Pace(settings.poll_s),
    )
    return controller.run(on_progress)


def cloud_ec2(folder: RunFolder) -> Ec2Cloud:
    """The cloud of a run, to look at machines and end them; nothing can be rented from it."""
    return Ec2Cloud(folder.settings.run, _ec2_settings(folder), _no_prices)


def end_ec2(folder: RunFolder) -> int:
    """Request the end of every machine with the run's tag, in all its regions; returns how many ran."""
    return len(cloud_ec2(folder).end_all())


def _ec2_settings(folder: RunFolder) -> Ec2Settings:
    return validated(Ec2Settings, folder.settings.options["ec2"], folder.path / "run.json")


def _code_of(live: LiveSettings) -> str:
    """Key of the code in storage, as the run was begun with it."""
    return str(live.options.get("code", f"runs/{live.run}/code.tar.gz"))


def _no_prices() -> PriceHistory:
    raise InputError("no prices are asked for where machines are only ended")


def _longest_s(work: Runnable) -> float:
    """Seconds that the longest trial takes on its slowest machine, and jobs one after the other; the deadline, if
    there is one."""
    if work.deadline_h is not None:
        return work.deadline_h * HOUR_S
    return sum(map(_longest_trial_s, work.parts))


def _longest_trial_s(sweep: Sweep) -> float:
    slowest = min(sweep.steps_per_hour.values(), default=sweep.other_steps_per_hour_per_vcpu)
    if slowest is None or sweep.max_trial_steps is None:
        return HOUR_S
    return sweep.max_trial_steps / slowest * HOUR_S
