"""The live demo on a rented cloud: the same sweep on a stand-in with faults, whose machines are local processes.

The cloud refuses launches for lack of capacity and for the price, throttles, rejects expired credentials, and
revokes machines with a short notice. Run it by `python -m tests.harness.live_demo --provider ec2`, or `gcp` or
`skypilot`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.live_demo import LiveReport, live_report

from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.providers import with_billing
from ebbtide.clouds.settings import NewRun
from ebbtide.clouds.skypilot.settings import SkyPilotPlace
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.billing import billing_preset
from ebbtide.market.generator import generate_auction_prices
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.for_job import policy_for
from ebbtide.runs.start_rented import begin_rented, end_rented, run_rented
from ebbtide.testing.ec2_stand_in.running import KEYS, stand_in, write_credentials
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in
from ebbtide.testing.skypilot_stand_in.running import skypilot_stand_in
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

# Error codes of successive launches; empty: the launch succeeds.
REFUSED = (
    "InsufficientInstanceCapacity",
    "",
    "SpotMaxPriceTooLow",
    "",
    "RequestLimitExceeded",
    "RequestLimitExceeded",
)
_REFUSED_BY_GCP = (
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "",
    "quotaExceeded",
    "",
    "rateLimitExceeded",
    "rateLimitExceeded",
)

_REFUSED_BY_SKYPILOT = ("ResourcesUnavailableError", "", "ConnectionError", "")

_DAYS = 20.0
_GCP_FROM = "2024-06-01T00:00:00Z"
_GCP_TYPES, _GCP_ZONES = ("g2-standard-4", "g2-standard-8"), ("us-central1-a", "us-central1-b")

# This policy bids low for refunds, so that machines are revoked often, as the demo should show.
_POLICY = "spottune-bid"
_NOTICE_S = 12.0
# Time between revocations, their maximum number, and the number after which credentials expire for a while.
_TAKEN_EVERY_S = (2.0, 5.0)
_MOST_TAKEN = 14
_EXPIRED_AFTER = 3
_EXPIRED_S = 2.0
_ENDS_S = 3.0


@dataclass(frozen=True)
class RentedReport(LiveReport):
    """The results of a live run on the stand-in.

    Attributes:
        refusals: Error codes that the cloud sent, in order, each once.
    """

    refusals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A stand-in on which the demo runs.

    Attributes:
        machines: Machines of the stand-in.
        settings: Settings of the run's machines.
        prices: Spot prices of its markets.
        expire: Makes the user's credentials expire, or the launcher unavailable.
        renew: Reverses `expire`.
        refused: Returns the error codes that were sent.
    """

    machines: StandInMachines
    settings: MachineSettings
    prices: PriceHistory
    expire: Callable[[], None]
    renew: Callable[[], None]
    refused: Callable[[], list[str]]


def rented_demo(
    sweep_file: Path,
    runs: Path,
    *,
    provider: str = "ec2",
    seed: int = 0,
    most_taken: int = _MOST_TAKEN,
    budget_usd: float = 5.0,
) -> RentedReport:
    """Run a sweep on a stand-in for a cloud and check the results.

    Args:
        sweep_file: File of the sweep; a budget is added if it has none.
        runs: Folder of the runs.
        provider: The cloud: `ec2` or `gcp`; or `skypilot`.
        seed: Seed of the faults and the market.
        most_taken: Maximum number of revocations.
        budget_usd: The budget for a sweep without one, USD.
    """
    began = time.monotonic()
    sweep = with_billing(Sweep.read(sweep_file), provider)
    assert isinstance(sweep, Sweep)
    if sweep.budget_usd is None:
        sweep = sweep.model_copy(update={"budget_usd": budget_usd})
    staged = {"ec2": _ec2, "gcp": _gcp, "skypilot": _skypilot}[provider]
    with staged(runs / "stand-in", seed) as stage:
        machines = stage.machines
        folder = begin_rented(
            sweep,
            sweep_file.parent,
            NewRun(runs),
            {provider: stage.settings},
            policy=_POLICY,
            seed=seed,
        )
        over = threading.Event()
        taker = threading.Thread(target=_take, args=(stage, over, seed, most_taken))
        taker.start()
        try:
            outcome = run_rented(folder, policy_for(sweep, _POLICY))
        finally:
            over.set()
            taker.join()
        seconds, left_running = time.monotonic() - began, _left(machines)
        end_rented(folder)
        machines.close()
        billed_usd = billed(machines.all.values(), stage.prices, billing_preset(sweep.billing))
        found = live_report(folder, sweep, outcome, billed_usd, left_running, seconds)
        return RentedReport(**vars(found), refusals=tuple(dict.fromkeys(stage.refused())))


def _left(machines: StandInMachines) -> int:
    """Count machines still running after the time in which a requested end takes effect."""
    until_s = time.monotonic() + _ENDS_S
    while machines.running and time.monotonic() < until_s:
        time.sleep(0.1)
    return len(machines.running)


@contextmanager
def _ec2(folder: Path, seed: int) -> Iterator[Stage]:
    prices = until_now(generate_auction_prices(days=_DAYS, seed=seed), time.time())
    with stand_in(folder, prices) as (api, machines, settings):
        api.refusals.launches.extend(REFUSED)
        yield Stage(
            machines,
            settings,
            prices,
            lambda: api.refusals.expired.add(KEYS[0]),
            lambda: write_credentials(folder / "credentials", KEYS[1]),
            lambda: api.refusals.sent,
        )


@contextmanager
def _gcp(folder: Path, seed: int) -> Iterator[Stage]:
    markets = [Market("gcp", zone[:-2], zone, kind) for zone in _GCP_ZONES for kind in _GCP_TYPES]
    prices = until_now(generate_auction_prices(markets, start=_GCP_FROM, days=_DAYS, seed=seed), time.time())
    with gcp_stand_in(folder, prices) as (api, machines, settings):
        api.compute.refusals.launches.extend(_REFUSED_BY_GCP)
        # The client library renews its token by itself.
        yield Stage(
            machines,
            settings,
            prices,
            lambda: api.expired.update(api.given),
            lambda: None,
            lambda: api.compute.refusals.sent,
        )


@contextmanager
def _skypilot(folder: Path, seed: int) -> Iterator[Stage]:
    prices = until_now(generate_auction_prices(days=_DAYS, seed=seed), time.time())
    places = {f"{one.cloud}/{one.region}": SkyPilotPlace() for one in {market.place for market in prices.markets}}
    with skypilot_stand_in(folder, prices, places=places) as (api, machines, settings):
        api.refusals.launches.extend(_REFUSED_BY_SKYPILOT)

        def silent(is_silent: bool) -> None:
            api.refusals.is_silent = is_silent

        yield Stage(
            machines, settings, prices, lambda: silent(True), lambda: silent(False), lambda: api.refusals.sent
        )


def _take(stage: Stage, over: threading.Event, seed: int, most: int) -> None:
    """Revoke machines at random moments; let the credentials expire, and renew them."""
    chance = random.Random(seed)
    taken, has_expired = 0, False
    while taken < most and not over.wait(chance.uniform(*_TAKEN_EVERY_S)):
        running = [machine for machine in stage.machines.running if math.isinf(machine.taken_at_s)]
        if running:
            stage.machines.take(chance.choice(running), _NOTICE_S)
            taken += 1
        if taken == _EXPIRED_AFTER and not has_expired:
            has_expired = True
            stage.expire()
            over.wait(_EXPIRED_S)
            stage.renew()
