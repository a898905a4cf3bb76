"""The live demo on EC2: the same sweep against a stand-in whose machines are processes here, with faults.

EC2 refuses for want of capacity and for the price, throttles, and finds the credentials expired; and it takes
machines, with a short notice. `python -m ebbtide.testing.live_demo --provider ec2` runs it.
"""

from __future__ import annotations

import math
import os
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebbtide.jobs.sweep import Sweep
from ebbtide.live.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.live.ec2_run import begin_ec2, end_ec2, run_ec2
from ebbtide.market.billing import Billing, Ending, billing_preset
from ebbtide.market.generator import generate_prices
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.choice import policy_of
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.machines import Machine, StandInMachines
from ebbtide.testing.live_demo import LiveReport, live_report

REGIONS = ("us-east-1",)
# In turn: launches refused for the market's sake, let through, throttled.
REFUSED = (
    "InsufficientInstanceCapacity",
    "",
    "SpotMaxPriceTooLow",
    "",
    "RequestLimitExceeded",
    "RequestLimitExceeded",
)

_DAYS = 20.0
_BUCKET = "stand-in"
_KEYS = ("FIRST", "RENEWED")
_NOTICE_S = 12.0
# Another machine is taken so often; and after so many the credentials have expired for a while.
_TAKEN_EVERY_S = (2.0, 5.0)
_MOST_TAKEN = 14
_EXPIRED_AFTER = 3
_EXPIRED_S = 2.0


@dataclass(frozen=True)
class Ec2Report(LiveReport):
    """What a live run on the stand-in showed.

    Attributes:
        refusals: Codes that EC2 sent, in order, each kind once.
    """

    refusals: tuple[str, ...] = ()


def ec2_demo(
    sweep_file: Path, runs: Path, *, seed: int = 0, most_taken: int = _MOST_TAKEN, budget_usd: float = 5.0
) -> Ec2Report:
    """Run a sweep on a stand-in for EC2, and look at what came of it.

    Args:
        sweep_file: The sweep; a budget is added if it has none.
        runs: Where the run is kept.
        seed: Of the faults and of the market.
        most_taken: So many machines are taken at most.
        budget_usd: See `sweep_file`.
    """
    began = time.monotonic()
    sweep = Sweep.read(sweep_file)
    if sweep.budget_usd is None:
        sweep = sweep.model_copy(update={"budget_usd": budget_usd})
    prices = until_now(generate_prices(days=_DAYS, seed=seed), time.time())
    with stand_in(runs / "stand-in", prices) as (api, machines, settings):
        api.refusals.launches.extend(REFUSED)
        folder = begin_ec2(sweep, sweep_file.parent, runs, settings, policy="spottune", seed=seed)
        over = threading.Event()
        taker = threading.Thread(target=_take, args=(machines, api, runs, over, seed, most_taken))
        taker.start()
        try:
            outcome = run_ec2(folder, policy_of(sweep))
        finally:
            over.set()
            taker.join()
        seconds, left_running = time.monotonic() - began, len(machines.running)
        end_ec2(folder)
        machines.close()
        billed_usd = billed(machines.all.values(), prices, billing_preset(sweep.billing))
        found = live_report(folder, sweep, outcome, billed_usd, left_running, seconds)
    return Ec2Report(**vars(found), refusals=tuple(dict.fromkeys(api.refusals.told)))


@contextmanager
def stand_in(
    folder: Path, prices: PriceHistory, python: str = sys.executable
) -> Iterator[tuple[StandInApi, StandInMachines, Ec2Settings]]:
    """An EC2 of one's own, and what goes with it: a bucket, credentials in a file, settings for machines.

    Args:
        folder: For all that is written.
        prices: What EC2 tells.
        python: Of the machines, with whatever packages their programs need; their agent needs none.
    """
    import boto3

    folder.mkdir(parents=True)
    api = StandInApi(prices)
    settings = Ec2Settings(
        regions={region: Ec2Region(image_id="ami-12c6146b") for region in REGIONS},
        store=f"s3://{_BUCKET}/ebbtide",
        python=python,
        controller_limit_s=60.0,
        poll_s=0.2,
        notice_poll_s=0.2,
    )
    environment = {
        "AWS_ENDPOINT_URL": api.url,
        "AWS_DEFAULT_REGION": REGIONS[0],
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
    }
    write_credentials(folder / "credentials", _KEYS[0])
    # Their credentials are their role's.
    of_machines = {name: environment[name] for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")}
    machines = StandInMachines(folder / "machines", settings.folder, of_machines)
    try:
        with _environment(environment):
            boto3.Session().client("s3").create_bucket(Bucket=_BUCKET)
            yield api, machines, settings
    finally:
        machines.close()
        api.close()


def write_credentials(path: Path, key: str) -> None:
    """As a user renews them."""
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = none\n")


def until_now(prices: PriceHistory, now_s: float) -> PriceHistory:
    """The same prices, later: so that they end now."""
    later_s = now_s - prices.end_s
    series = {market: PriceSeries(one.times_s + later_s, one.prices) for market, one in prices.items()}
    return PriceHistory(series, start_s=prices.start_s + later_s, end_s=now_s)


def billed(machines: Iterable[Machine], prices: PriceHistory, billing: Billing) -> float:
    """What spot machines cost, reckoned anew: from when EC2 launched each, and when it ended here."""
    usd = 0.0
    for machine in machines:
        instance = machine.instance
        zone = instance.placement.zone
        market = Market("aws", zone[:-1], zone, instance.instance_type)
        ending = Ending.REVOKED if machine.taken else Ending.RELEASED
        usd += billing.bill(prices[market], instance.launch_time.timestamp(), machine.ended_s, ending).usd
    return usd


def _take(
    machines: StandInMachines, api: StandInApi, runs: Path, over: threading.Event, seed: int, most: int
) -> None:
    """Take machines at random moments; let the credentials expire, and renew them."""
    chance = random.Random(seed)
    taken = 0
    while taken < most and not over.wait(chance.uniform(*_TAKEN_EVERY_S)):
        running = [machine for machine in machines.running if math.isinf(machine.taken_at_s)]
        if running:
            machines.take(chance.choice(running), _NOTICE_S)
            taken += 1
        if taken == _EXPIRED_AFTER and not api.refusals.expired:
            api.refusals.expired.add(_KEYS[0])
            over.wait(_EXPIRED_S)
            write_credentials(runs / "stand-in" / "credentials", _KEYS[1])


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """For as long as the stand-in is there; keys of the user's are not to be seen meanwhile."""
    hidden = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
    before = {name: os.environ.get(name) for name in (*values, *hidden)}
    for name in hidden:
        os.environ.pop(name, None)
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
