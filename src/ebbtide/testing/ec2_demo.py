"""The live demo on EC2: the same sweep on a stand-in whose machines are local processes, with faults.

EC2 refuses launches for lack of capacity and for the price, throttles, rejects expired credentials, and revokes
machines with a short notice. `python -m ebbtide.testing.live_demo --provider ec2` runs it.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebbtide.jobs.sweep import Sweep
from ebbtide.live.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.live.rented_run import begin_rented, end_rented, run_rented
from ebbtide.live.settings import NewRun
from ebbtide.market.billing import billing_preset
from ebbtide.market.generator import generate_prices
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.choice import policy_for
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.instances import MotoInstances
from ebbtide.testing.live_demo import LiveReport, live_report
from ebbtide.testing.stand_in.environment import environment_variables
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

REGIONS = ("us-east-1",)
# Error codes of the launches in turn; empty: the launch succeeds.
REFUSED = (
    "InsufficientInstanceCapacity",
    "",
    "SpotMaxPriceTooLow",
    "",
    "RequestLimitExceeded",
    "RequestLimitExceeded",
)

_DAYS = 20.0

# Bids low for its refunds, so that machines are taken again and again: that is to be seen.
_POLICY = "spottune-bid"
_BUCKET = "stand-in"
# The user's own keys.
_HIDDEN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
# Where a bucket is that is made without saying where.
_DEFAULT_REGION = "us-east-1"
_KEYS = ("FIRST", "RENEWED")
_NOTICE_S = 12.0
# Time between revocations, their largest number, and the number after which the credentials expire for a while.
_TAKEN_EVERY_S = (2.0, 5.0)
_MOST_TAKEN = 14
_EXPIRED_AFTER = 3
_EXPIRED_S = 2.0


@dataclass(frozen=True)
class Ec2Report(LiveReport):
    """The results of a live run on the stand-in.

    Attributes:
        refusals: Error codes that EC2 sent, in order, each once.
    """

    refusals: tuple[str, ...] = ()


def ec2_demo(
    sweep_file: Path, runs: Path, *, seed: int = 0, most_taken: int = _MOST_TAKEN, budget_usd: float = 5.0
) -> Ec2Report:
    """Run a sweep on a stand-in for EC2 and check the results.

    Args:
        sweep_file: File of the sweep; a budget is added if it has none.
        runs: Folder of the runs.
        seed: Seed of the faults and the market.
        most_taken: Largest number of revoked machines.
        budget_usd: The budget for a sweep without one, USD.
    """
    began = time.monotonic()
    sweep = Sweep.read(sweep_file)
    if sweep.budget_usd is None:
        sweep = sweep.model_copy(update={"budget_usd": budget_usd})
    prices = until_now(generate_prices(days=_DAYS, seed=seed), time.time())
    with stand_in(runs / "stand-in", prices) as (api, machines, settings):
        api.refusals.launches.extend(REFUSED)
        folder = begin_rented(
            sweep, sweep_file.parent, NewRun(runs), "ec2", {"ec2": settings}, policy=_POLICY, seed=seed
        )
        over = threading.Event()
        taker = threading.Thread(target=_take, args=(machines, api, runs, over, seed, most_taken))
        taker.start()
        try:
            outcome = run_rented(folder, policy_for(sweep, _POLICY))
        finally:
            over.set()
            taker.join()
        seconds, left_running = time.monotonic() - began, len(machines.running)
        end_rented(folder)
        machines.close()
        billed_usd = billed(machines.all.values(), prices, billing_preset(sweep.billing))
        found = live_report(folder, sweep, outcome, billed_usd, left_running, seconds)
    return Ec2Report(**vars(found), refusals=tuple(dict.fromkeys(api.refusals.sent)))


@contextmanager
def stand_in(
    folder: Path, prices: PriceHistory, python: str = sys.executable, regions: Sequence[str] = REGIONS
) -> Iterator[tuple[StandInApi, StandInMachines, Ec2Settings]]:
    """A stand-in for EC2 with a bucket, a credentials file and settings for machines.

    Args:
        folder: Folder for all files.
        prices: Price history that EC2 reports.
        python: Python of the machines, with the packages of their programs; the agent needs none.
        regions: Regions in which machines may be rented; the bucket is in the first.
    """
    import boto3

    folder.mkdir(parents=True)
    api = StandInApi(prices)
    settings = Ec2Settings(
        regions={region: Ec2Region(image_id="ami-12c6146b") for region in regions},
        store=f"s3://{_BUCKET}/ebbtide",
        python=python,
        controller_limit_s=60.0,
        poll_s=0.2,
        notice_poll_s=0.2,
    )
    environment = {
        "AWS_ENDPOINT_URL": api.url,
        "AWS_DEFAULT_REGION": regions[0],
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
    }
    write_credentials(folder / "credentials", _KEYS[0])
    # Machines get their credentials from their role.
    of_machines = {name: environment[name] for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")}
    machines = StandInMachines(folder / "machines", settings.folder, of_machines, MotoInstances())
    try:
        with environment_variables(environment, _HIDDEN):
            place = {} if regions[0] == _DEFAULT_REGION else {"LocationConstraint": regions[0]}
            boto3.Session().client("s3").create_bucket(
                Bucket=_BUCKET, **({"CreateBucketConfiguration": place} if place else {})
            )
            yield api, machines, settings
    finally:
        machines.close()
        api.close()


def write_credentials(path: Path, key: str) -> None:
    """Write a credentials file, as a user does to renew them."""
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = none\n")


def _take(
    machines: StandInMachines, api: StandInApi, runs: Path, over: threading.Event, seed: int, most: int
) -> None:
    """Revoke machines at random moments; let the credentials expire, and renew them."""
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
