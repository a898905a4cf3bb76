"""Live runs on this machine, on a local cloud that replays prices at a chosen speed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.agent.config import AgentConfig
from ebbtide.agent.folders import code_key, packed
from ebbtide.base.utc import to_epoch_s
from ebbtide.clouds.local.client import (
    LocalCloud,
    LocalCloudSettings,
    end_cloud,
    machines_running,
    start_local_cloud,
)
from ebbtide.clouds.settings import LiveSettings, NewRun, RunFolder
from ebbtide.clouds.unique_names import absolute_store, own_store
from ebbtide.controller.agent_provider import PollIntervals
from ebbtide.controller.controller import Controller, OnProgress, Outside, Programs
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.assignments import secrets_of
from ebbtide.controller.run_state import LOCK
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, JournalError
from ebbtide.forecasts.bundle import KEPT_MODELS, ModelBundle, hazard_of
from ebbtide.jobs.job_list import Runnable, runnable
from ebbtide.market.availability import Availability
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.replay.generated_markets import (
    MarketKind,
    generate_capacity,
    generate_prices,
    usual_begin,
    usual_markets,
)
from ebbtide.runs.command_check import check_command
from ebbtide.storage.objects import object_store

# One market hour takes two minutes: ten seconds of imports cost a program five market minutes.
SPEED = 30.0

# In real seconds, since programs run at their real speed, whatever the market's speed.
_POLL_S = 0.1
_FIRST_SAVE_S = 1.0
_MARGIN_S = 0.4
_LEAST_NOTICE_S = 2.5
# Agents start within seconds here, or within a minute on a busy machine.
_SETUP_LIMIT_S = 300.0

# Files of a run's folder.
_PRICES, _CAPACITY = "prices.parquet", "capacity.parquet"

# A folder with more files than this holds data, and is not copied for each training.
_MOST_FILES = 5_000

# Length of the market that is generated if no prices are given, and its instance types and zones.
GENERATED_DAYS = 20.0
_MOST_TYPES = 4
_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


@dataclass(frozen=True)
class LocalMarket:
    """The market that a local cloud replays.

    Attributes:
        prices: The price history that is replayed.
        start_s: Time in the prices at which the run begins, seconds since 1970; None: a quarter into them.
        speed: Market seconds in a real second.
        availability: Capacity of the markets that have a record; all others always have machines.
        notice_s: Least length of a revocation notice in real seconds.
        boots_s: Market seconds until a machine is given, and from then until it has booted; None: the defaults.

    Raises:
        InputError: The speed is not a positive number.
    """

    prices: PriceHistory
    start_s: float | None = None
    speed: float = SPEED
    availability: Availability | None = None
    notice_s: float = _LEAST_NOTICE_S
    boots_s: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.speed < math.inf:
            raise InputError(f"speed is {self.speed:g}; a positive number of market seconds a second is needed")

    @property
    def begins_s(self) -> float:
        """Start of a run in the prices, seconds since 1970."""
        if self.start_s is not None:
            return self.start_s
        return self.prices.start_s + (self.prices.end_s - self.prices.start_s) // 4


@dataclass(frozen=True)
class EndedRun:
    """A live run that has ended on this machine, and its cloud with it.

    Attributes:
        outcome: Outcome of the run, as the engine has it.
        bills: The cloud's own record of costs, one mapping per machine.
        left_running: Number of machines that still ran when the run was over.
    """

    outcome: Outcome
    bills: tuple[Mapping[str, Any], ...]
    left_running: int

    @property
    def billed_usd(self) -> float:
        """Cost of all machines in USD by the cloud's own record."""
        return math.fsum(bill["usd"] for bill in self.bills)


def generated_market(
    sweep: Runnable | None,
    seed: int,
    catalogue: Catalogue,
    models: ModelBundle | None = None,
    kind: MarketKind = MarketKind.TODAY,
) -> LocalMarket:
    """A market in which a sweep can be tried: the kind's usual types if they have what it asks for, else others.

    With models, the market begins where their training data ends.

    Args:
        sweep: What is to be trained; None: any machine will do.
        seed: Seed of prices and capacity.
        catalogue: Instance types and list prices.
        models: Models that the policy uses, if any.
        kind: The kind of market.

    Raises:
        InputError: No list price is known for any type that has what the sweep asks for.
    """
    trained_until_s = -math.inf if models is None else models.trained_until_s
    start_s = max(trained_until_s, to_epoch_s(usual_begin(kind)))
    markets = [market for market in usual_markets(kind) if sweep is None or sweep.allows(market, catalogue)]
    if not markets and sweep is not None:
        markets = _markets_with(sweep, catalogue, start_s)
    prices = generate_prices(
        markets, kind=kind, start=start_s, days=GENERATED_DAYS, seed=seed, catalogue=catalogue
    )
    return LocalMarket(prices, availability=generate_capacity(prices, kind=kind, seed=seed))


def _markets_with(sweep: Runnable, catalogue: Catalogue, start_s: float) -> list[Market]:
    """Markets of the cheapest fitting instance types, by list price at the start of the generated prices."""
    found = []
    for machine in catalogue.instance_types:
        markets = [Market(machine.cloud, zone[:-1], zone, machine.name) for zone in _ZONES]
        allowed = [market for market in markets if machine.cloud == "aws" and sweep.allows(market, catalogue)]
        listed = catalogue.on_demand_usd_per_hour(allowed[0], start_s) if allowed else None
        if listed is not None:
            found.append((listed, machine.name, allowed))
    if not found:
        raise InputError(
            f"no market can be generated for {sweep.name}"
            + (f", which asks for {sweep.asked}" if sweep.asked else "")
            + ": no list price is known of such machines; give prices with --prices FILE"
        )
    return [market for _, _, allowed in sorted(found)[:_MOST_TYPES] for market in allowed]


def begin_local(
    sweep: Runnable,
    sweep_folder: Path,
    new: NewRun,
    market: LocalMarket,
    *,
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    store: str = "",
    catalogue: Catalogue | None = None,
) -> RunFolder:
    """Create a new run; `run_local` runs it.

    Args:
        sweep: The sweep that is to be trained.
        sweep_folder: Folder with the user's code, in which programs run.
        new: Where the run is kept, and under which id.
        market: The prices that the local cloud replays, from when, and how fast.
        policy: Name of the policy, with which the run can be resumed.
        parameters: Its parameters that differ from the defaults, by name.
        seed: Seed of all random numbers.
        store: Storage for checkpoints, an address or a folder, relative to the working directory; by default in
            the run's folder.
        catalogue: Instance types and list prices, kept with the run; by default those that ship with Ebbtide.

    Raises:
        InputError: The program that the sweep calls does not exist, no market is allowed, the start is outside the
            prices, or there is a run with that id.
    """
    check_command(sweep, sweep_folder, here=True)
    prices, begins_s = sweep.allowed(market.prices, catalogue), market.begins_s
    prices.check_inside(begins_s)
    folder = new.folder(sweep.name)
    run, name = folder.path.name, folder.unique_name
    where = own_store(absolute_store(store), name) if store else str(folder.path / "objects")
    options: dict[str, Any] = {"start_s": begins_s, "speed": market.speed, "least_notice_s": market.notice_s}
    if market.boots_s is not None:
        options["boots_s"] = list(market.boots_s)
    code = _packed(sweep_folder)
    if code is not None:
        options["code"] = code_key(run, code)
        object_store(where).put_once(options["code"], code)
    settings = LiveSettings(
        run,
        "local",
        policy,
        sweep.model_dump(mode="json"),
        str(sweep_folder.resolve()),
        where,
        options,
        seed,
        dict(parameters or {}),
        new.journal,
        folder.fingerprint,
        journal_name=name if new.journal else "",
    )
    prices.write(folder.path / _PRICES)
    if market.availability:
        market.availability.write(folder.path / _CAPACITY)
    new.keep(folder)
    folder.begin(settings, catalogue)
    return folder


def cloud_place(folder: RunFolder) -> Path:
    """Path of the folder of a run's cloud."""
    return folder.path / "cloud"


def prices_of(folder: RunFolder) -> PriceHistory:
    """The prices that the cloud of a run replays."""
    return PriceHistory.read(folder.path / _PRICES, folder.catalogue)


def local_cloud(folder: RunFolder) -> LocalCloud:
    """The cloud of a run: the one that runs already, or a new one.

    Raises:
        InputError: A new cloud does not start.
    """
    settings = folder.settings
    options = settings.options
    delay = {} if "boots_s" not in options else dict(zip(("request_s", "boot_s"), options["boots_s"], strict=True))
    cloud = LocalCloudSettings(
        str(cloud_place(folder)),
        str(folder.path / _PRICES),
        options["start_s"],
        options["speed"],
        settings.sweep["billing"],
        least_notice_s=options.get("least_notice_s", _LEAST_NOTICE_S),
        lock=str(folder.path / LOCK),
        catalogue=str(folder.catalogue_file) if folder.catalogue_file.exists() else "",
        availability=str(folder.path / _CAPACITY) if (folder.path / _CAPACITY).exists() else "",
        **delay,
    )
    return start_local_cloud(cloud)


def run_local(folder: RunFolder, policy: Policy, on_progress: OnProgress | None = None) -> EndedRun:
    """Run a new run, or resume one, until it ends; then end its cloud."""
    settings = folder.settings
    # Opened first: nothing is begun if the journal cannot record it.
    outside = Outside.of(folder)
    secrets_of(runnable(settings.sweep))
    cloud = local_cloud(folder)
    speed = settings.options["speed"]
    agent = AgentConfig(
        settings.run,
        "",
        settings.store,
        "",
        poll_s=_POLL_S,
        notice_poll_s=_POLL_S,
        report_s=_POLL_S,
        controller_limit_s=settings.controller_limit_s,
        first_save_s=_FIRST_SAVE_S,
        margin_s=_MARGIN_S,
    )
    controller = Controller(
        folder,
        policy,
        cloud,
        agent,
        Programs(hazard_of(folder.path / KEPT_MODELS).usual_life_s(cloud.markets) / speed, code=_code(folder)),
        PollIntervals(_POLL_S, missing_s=0.0, silent_s=_SETUP_LIMIT_S),
        outside,
    )
    outcome = controller.run(on_progress)
    running = machines_running(cloud_place(folder))
    bills = cloud.end()
    with suppress(JournalError):
        # A local cloud that has ended leaves no machine, even if it did not answer a request before.
        journal_of(folder).keep({"unended": {}})
    return EndedRun(outcome, tuple(bills), running)


def _code(folder: RunFolder) -> str:
    """Key of the user's code in the store; empty: the code is too large to copy, and is linked to."""
    key = folder.settings.options.get("code", "")
    return str(key)


def _packed(folder: Path) -> bytes | None:
    """The packed code; None: the folder is too large to copy for every training.

    Files are counted first: a folder with many files holds data, and need not be read.
    """
    files = 0
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += len(names)
        if files > _MOST_FILES:
            return None
    try:
        return packed(folder)
    except (InputError, OSError):
        return None


def end_local(folder: RunFolder) -> int:
    """End every machine of a run, and its cloud; returns the number of machines that ran.

    Machines left by a killed cloud are found and ended as well.
    """
    place = cloud_place(folder)
    running = machines_running(place)
    return max(running, end_cloud(place))
