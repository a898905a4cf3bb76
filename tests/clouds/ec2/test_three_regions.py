"""DeepSpotCloud over three regions on the stand-in for EC2: it moves for the price and because it has to, and each
checkpoint that crosses a region is charged by the bytes that S3 saw."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import boto3
import numpy as np
import pytest
from tests.clouds.renters import EC2, Renter, renter
from tests.runs.sweeps import PROGRAM, total

import ebbtide as eb
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.ec2.images import SOURCE_TAG
from ebbtide.clouds.ec2.settings import Ec2Image, Ec2Region
from ebbtide.controller.journal.journal import Journal
from ebbtide.market.billing import billing_preset
from ebbtide.market.egress import GIB
from ebbtide.market.price_series import PriceSeries
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.running import stand_in
from ebbtide.testing.stand_in.machines import StandInMachine, StandInMachines
from ebbtide.testing.stand_in.money import billed

pytestmark = pytest.mark.usefixtures("processes")

HOME, EUROPE, ASIA = "us-east-1", "eu-west-1", "ap-northeast-1"
MARKETS = {region: eb.Market("aws", region, f"{region}a", "c3.xlarge") for region in (HOME, EUROPE, ASIA)}
IMAGE, STEPS = "training of three regions", 3_500
# Each checkpoint has a weight of its own, so that no sum is right by chance; none is written while another is stored.
HEAVY = PROGRAM.replace("step % 20 ==", "step % 150 ==").replace(
    "    part = folder",
    '    heavy = folder / ".blob.part"; heavy.write_bytes(bytes(100_000 + 7 * step)); heavy.rename(folder / "blob")\n'
    "    part = folder",
)


def prices() -> eb.PriceHistory:
    now_s = math.floor(time.time())
    usd = {HOME: 0.030, EUROPE: 0.040, ASIA: 0.045}
    series = {
        market: PriceSeries(np.array([now_s - 12 * HOUR_S]), np.array([usd[region]]))
        for region, market in MARKETS.items()
    }
    return eb.PriceHistory(series, start_s=now_s - 12 * HOUR_S, end_s=now_s)


@pytest.fixture
def ec2(tmp_path: Path) -> Iterator[Renter]:
    cloud = replace(EC2, prices=prices, opened=partial(stand_in, regions=list(MARKETS)))
    with renter(cloud, tmp_path, sys.executable) as one:
        yield one


@pytest.mark.long
def test_it_moves_by_price_and_by_force_and_pays_for_what_crosses_regions(ec2: Renter) -> None:
    api, machines = ec2.api, ec2.machines
    home = boto3.client("ec2", region_name=HOME)
    source = home.register_image(Name=IMAGE, RootDeviceName="/dev/sda1")["ImageId"]
    settings = ec2.settings.model_copy(
        update={
            "regions": {region: Ec2Region() for region in MARKETS},
            "image": Ec2Image(name=IMAGE, copy_from=HOME),
            "price_poll_s": 10.0,
        }
    )
    ec2.write(settings=settings, trials=1, steps=STEPS, program=HEAVY)
    ec2.start(*ec2.words, "--policy", "deepspotcloud-best-price")
    ec2.wait(lambda: saved_on(api, machines, HOME) >= 2)
    # A move for the price: Europe is now the cheapest.
    api.change_price(MARKETS[HOME], 0.060)
    ec2.wait(lambda: saved_on(api, machines, EUROPE) >= 2)
    # A forced move: the machine is taken, Europe has no other, and then it is too expensive.
    api.refusals.launches.append("InsufficientInstanceCapacity")
    (taken,) = [machine for machine in machines.running if region_of(machine) == EUROPE]
    machines.take(taken, notice_s=40.0)
    ec2.wait(lambda: "InsufficientInstanceCapacity" in api.refusals.sent)
    api.change_price(MARKETS[EUROPE], 0.090)
    ec2.end()
    assert machines.running == []
    assert [region_of(machine) for machine in machines.all.values()] == [HOME, EUROPE, ASIA]
    # The image was copied to the two others, and each machine has its region's.
    for region, machine in zip(MARKETS, machines.all.values(), strict=True):
        (image,) = boto3.client("ec2", region_name=region).describe_images(
            Owners=["self"], Filters=[{"Name": "name", "Values": [IMAGE]}]
        )["Images"]
        assert machine.instance.image_id == image["ImageId"]
    copied = [given for given in api.copied if given["SourceImageId"] == source]
    assert len(copied) == 2
    assert SOURCE_TAG in str(copied)

    folder = ec2.run
    journal = Journal(folder.journal, read_only=True)
    outcome, run = journal.state("outcome"), journal.run()
    assert run is not None
    assert outcome["finished"]
    assert outcome["failed"] == []
    # One move was for the price. The other was forced by the notice, even if the machine was left before its time.
    told = [kind for _, kind, *_ in journal.moments()]
    assert told.count(str(eb.policies.Wake.NOTICE)) == 1
    assert outcome["revocations"] <= 1
    # The result is that of a training that nobody has disturbed.
    (log,) = (folder.path / "logs").iterdir()
    assert float(log.read_text().split()[-1]) == pytest.approx(total(0.1, STEPS))

    # Every upload and every download that S3 saw, and no other, at two cents a GiB between regions.
    entered = [
        (run["engine"]["leases"][lease_id]["market"][1], transfer["size_bytes"], usd)
        for transfer, lease_id, usd in run["engine"]["transfers"]
    ]
    expected = crossing(api, machines)
    assert len(expected) > 8
    assert {region for region, _ in expected} == {EUROPE, ASIA}
    # An upload that failed and began anew is told with the next checkpoint, so sums are compared.
    assert summed((region, size_bytes) for region, size_bytes, _ in entered) == summed(expected)
    assert [usd for _, _, usd in entered] == [pytest.approx(0.02 * size / GIB) for _, size, _ in entered]
    egress_usd = 0.02 * sum(size for _, size in expected) / GIB
    bills = [bill for _, bill in run["engine"]["bills"]]
    paid_usd = sum(charge["usd"] for bill in bills for charge in bill["charges"])
    paid_usd -= sum(bill["refund_usd"] for bill in bills)
    assert outcome["cost_usd"] == pytest.approx(paid_usd + egress_usd, abs=1e-12)
    assert paid_usd == pytest.approx(
        billed(machines.all.values(), api.prices, billing_preset("ec2-second")), abs=1e-4
    )


def crossing(api: StandInApi, machines: StandInMachines) -> list[tuple[str, int]]:
    """Region of the machine and bytes of each checkpoint that it wrote or read, if that is not the bucket's."""
    found: dict[tuple[str, bool, str], int] = {}
    for moved in api.moved:
        _, is_data, place = moved.path.partition("/data/")
        machine = machines.all.get(moved.access_key.removeprefix("OF-THE-ROLE-"))
        if machine is not None and is_data:
            key = (machine.instance.id, moved.is_upload, place.partition("/")[0])
            found[key] = found.get(key, 0) + moved.size_bytes
    regions = {instance_id: region_of(machines.all[instance_id]) for instance_id, *_ in found}
    return [(regions[key[0]], size) for key, size in found.items() if regions[key[0]] != HOME]


def summed(transfers: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes of all transfers of each region."""
    found: dict[str, int] = {}
    for region, size_bytes in transfers:
        found[region] = found.get(region, 0) + size_bytes
    return found


def saved_on(api: StandInApi, machines: StandInMachines, region: str) -> int:
    """How many files of checkpoints the machines of a region have stored."""
    ids = {
        f"OF-THE-ROLE-{machine.instance.id}" for machine in machines.all.values() if region_of(machine) == region
    }
    return sum(moved.is_upload and "/data/" in moved.path and moved.access_key in ids for moved in list(api.moved))


def region_of(machine: StandInMachine) -> str:
    return str(machine.instance.placement.zone[:-1])
