"""Live runs on this machine: a local cloud, replaying prices at a chosen speed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.engine.outcome import Outcome
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.sweep import Sweep
from ebbtide.live.agent.config import AgentConfig
from ebbtide.live.agent.folders import packed
from ebbtide.live.clouds.local.client import (
    LocalCloud,
    LocalCloudSettings,
    clear_dead_cloud,
    start_local_cloud,
)
from ebbtide.live.clouds.local.server import ADDRESS
from ebbtide.live.command_check import check_command
from ebbtide.live.controller import Controller, OnProgress
from ebbtide.live.settings import LiveSettings, RunFolder, new_run_id
from ebbtide.live.stopping import LOCK
from ebbtide.live.storage import object_store
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.generator import demo_markets, generate_prices
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy

# One market hour in two minutes: what a program imports in ten seconds costs it five minutes of the market.
SPEED = 30.0

# Real seconds: what is real keeps its own pace, whatever the market's speed.
_POLL_S = 0.1
_CONTROLLER_LIMIT_S = 60.0
_FIRST_SAVE_S = 1.0
_MARGIN_S = 0.4
_LEAST_NOTICE_S = 2.5

# A folder of more is one of data: it is not copied for each training.
_MOST_FILES = 5_000

# Market seconds that machines live in the mean, where nothing else is known.
_MTTR_S = 6 * 3600.0

# Length of the market that is generated where no prices are given, and what is rented there.
GENERATED_DAYS = 20.0
_MOST_TYPES = 4
_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


@dataclass(frozen=True)
class Ended:
    """A live run that has ended here, with its cloud.

    Attributes:
        outcome: What came of it.
        bills: The provider's own record: a machine each.
        left_running: Machines that ran when the run was over.
    """

    outcome: Outcome
    bills: tuple[Mapping[str, Any], ...]
    left_running: int

    @property
    def billed_usd(self) -> float:
        """By the provider's record."""
        return math.fsum(bill["usd"] for bill in self.bills)


def generated_market(sweep: Sweep, seed: int, catalogue: Catalogue) -> PriceHistory:
    """A market in which a sweep can be tried: the demo's types if they have what it asks for, else others.

    Raises:
        InputError: No list price is known of any type that has it.
    """
    markets = [market for market in demo_markets() if sweep.allows(market, catalogue)]
    if not markets:
        markets = _markets_with(sweep, catalogue)
    history = generate_prices(markets, days=GENERATED_DAYS, seed=seed)
    return sweep.allowed(history, catalogue)


def _markets_with(sweep: Sweep, catalogue: Catalogue) -> list[Market]:
    """Of the cheapest types that do, by list price when the generated record begins."""
    found = []
    for machine in catalogue.instance_types:
        markets = [Market(machine.cloud, zone[:-1], zone, machine.name) for zone in _ZONES]
        allowed = [market for market in markets if machine.cloud == "aws" and sweep.allows(market, catalogue)]
        listed = catalogue.on_demand_usd_per_hour(allowed[0], 0.0) if allowed else None
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
    sweep: Sweep,
    sweep_folder: Path,
    runs: Path,
    *,
    policy: str,
    prices: PriceHistory,
    start_s: float | None = None,
    speed: float = SPEED,
    seed: int = 0,
    store: str = "",
    catalogue: Catalogue | None = None,
) -> RunFolder:
    """Write down a new run; `run_local` runs it.

    Args:
        sweep: What is to be trained.
        sweep_folder: Where its programs run.
        runs: Where runs are kept.
        policy: Its name, for whoever goes on with the run.
        prices: What the local cloud replays.
        start_s: From then on; by default a quarter into the record.
        speed: Market seconds in a real second.
        seed: Of all chance.
        store: Where checkpoints go; by default a folder of the run's.
        catalogue: Instance types and list prices, kept with the run; by default those that ship with Ebbtide.

    Raises:
        InputError: What the sweep calls is not there.
    """
    run = new_run_id(sweep.name)
    folder = RunFolder((runs / run).resolve())
    prices = sweep.allowed(prices, catalogue)
    begins_s = prices.start_s + (prices.end_s - prices.start_s) // 4 if start_s is None else start_s
    where = store or str(folder.path / "objects")
    options: dict[str, Any] = {"start_s": begins_s, "speed": speed}
    check_command(sweep, sweep_folder, here=True)
    code = _packed(sweep_folder)
    if code is not None:
        options["code"] = f"runs/{run}/code.tar.gz"
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
    )
    folder.begin(settings, catalogue)
    prices.write(folder.path / "prices.parquet")
    return folder


def local_cloud(folder: RunFolder) -> LocalCloud:
    """The cloud of a run: the one that runs, or else a new one.

    Raises:
        InputError: It does not start.
    """
    settings = folder.settings
    cloud = LocalCloudSettings(
        str(folder.path / "cloud"),
        str(folder.path / "prices.parquet"),
        settings.options["start_s"],
        settings.options["speed"],
        settings.sweep["billing"],
        least_notice_s=_LEAST_NOTICE_S,
        lock=str(folder.path / LOCK),
        catalogue=str(folder.catalogue_file) if folder.catalogue_file.exists() else "",
    )
    return start_local_cloud(cloud)


def run_local(folder: RunFolder, policy: Policy, on_progress: OnProgress | None = None) -> Ended:
    """Run it, or go on with it, to its end; then end its cloud."""
    settings = folder.settings
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
        controller_limit_s=_CONTROLLER_LIMIT_S,
        first_save_s=_FIRST_SAVE_S,
        margin_s=_MARGIN_S,
    )
    controller = Controller(
        folder,
        policy,
        cloud,
        billing_preset(settings.sweep["billing"]),
        folder.catalogue,
        agent,
        mttr_s=_MTTR_S / speed,
        poll_s=_POLL_S,
        missing_s=0.0,
        code=_code(folder),
    )
    outcome = controller.run(on_progress)
    try:
        running = len(cloud.processes())
    except CloudError:
        running = 0
    return Ended(outcome, tuple(cloud.end()), running)


def _code(folder: RunFolder) -> str:
    """Key in the store of the user's code; empty: it is too much to be copied, and is linked to."""
    key = folder.settings.options.get("code", "")
    return str(key)


def _packed(folder: Path) -> bytes | None:
    """The code, where it is little enough to be copied for every training; None: it is not.

    What is in a folder of data need not be looked through: many files are as good a sign as many bytes.
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
    """End every machine of a run and its cloud; returns how many ran.

    A cloud that was killed leaves machines that nobody minds: they are found and ended as well.
    """
    place = folder.path / "cloud"
    left = clear_dead_cloud(place)
    if not (place / ADDRESS).exists():
        return left
    try:
        cloud = LocalCloud(place, PriceHistory.read(folder.path / "prices.parquet", folder.catalogue))
        running = len(cloud.processes())
    except CloudError:
        return clear_dead_cloud(place)  # it has ended just now
    cloud.end()
    return running
