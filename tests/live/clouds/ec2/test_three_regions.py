"""DeepSpotCloud over three regions on the stand-in for EC2: it moves for the price and because it has to, and each
checkpoint that crosses a region is charged by the bytes that S3 saw."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import yaml
from tests.live.sweeps import PROGRAM, sweep, total
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide._utc import HOUR_S
from ebbtide.live.clouds.ec2.images import SOURCE_TAG
from ebbtide.live.clouds.ec2.settings import Ec2Image, Ec2Region, Ec2Settings
from ebbtide.live.journal import Journal
from ebbtide.live.settings import find_run
from ebbtide.market.billing import billing_preset
from ebbtide.market.egress import GIB
from ebbtide.market.price_series import PriceSeries
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.running import stand_in
from ebbtide.testing.stand_in.machines import Machine, StandInMachines
from ebbtide.testing.stand_in.money import billed

pytestmark = pytest.mark.usefixtures("processes")

EC2 = tuple[StandInApi, StandInMachines, Ec2Settings]
HOME, EUROPE, ASIA = "us-east-1", "eu-west-1", "ap-northeast-1"
MARKETS = {region: eb.Market("aws", region, f"{region}a", "c3.xlarge") for region in (HOME, EUROPE, ASIA)}
IMAGE, STEPS = "training of three regions", 3_500
# Each checkpoint has a weight of its own, so that no sum is right by chance; none is written while another is stored.
HEAVY = PROGRAM.replace("step % 20 ==", "step % 150 ==").replace(
    "    part = folder",
    '    heavy = folder / ".blob.part"; heavy.write_bytes(bytes(100_000 + 7 * step)); heavy.rename(folder / "blob")\n'
    "    part = folder",
)


@pytest.fixture
def ec2(tmp_path: Path) -> Iterator[EC2]:
    now_s = math.floor(time.time())
    usd = {HOME: 0.030, EUROPE: 0.040, ASIA: 0.045}
    prices = eb.PriceHistory(
        {
            market: PriceSeries(np.array([now_s - 12 * HOUR_S]), np.array([usd[region]]))
            for region, market in MARKETS.items()
        },
        start_s=now_s - 12 * HOUR_S,
        end_s=now_s,
    )
    with stand_in(tmp_path / "stand-in", prices, regions=list(MARKETS)) as found:
        yield found


@pytest.mark.long
def test_it_moves_by_price_and_by_force_and_pays_for_what_crosses_regions(ec2: EC2, tmp_path: Path) -> None:
    api, machines, plain = ec2
    home = boto3.client("ec2", region_name=HOME)
    source = home.register_image(Name=IMAGE, RootDeviceName="/dev/sda1")["ImageId"]
    settings = plain.model_copy(
        update={
            "regions": {region: Ec2Region() for region in MARKETS},
            "image": Ec2Image(name=IMAGE, copy_from=HOME),
            "price_poll_s": 10.0,
        }
    )
    path, what, runs = tmp_path / "code" / "sweep.yaml", tmp_path / "ec2.yaml", tmp_path / "runs"
    path.parent.mkdir()
    options: dict[str, Any] = {"trials": 1, "steps": STEPS, "program": HEAVY, "budget_usd": 1.0}
    content = sweep(path.parent, **options).model_dump(mode="json", exclude_none=True)
    content["command"] = "python program.py {checkpoint_dir} {max_steps} {lr}"
    path.write_text(yaml.safe_dump(content))
    what.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    words = ("run", path, "--provider", "ec2", "--machines", what, "--runs", runs)
    policy = ("--policy", "deepspotcloud-best-price")
    controller = subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, (*words, *policy))])
    try:
        wait_for(controller, lambda: saved_on(api, machines, HOME) >= 2)
        # A move for the price: Europe is now the cheapest.
        api.change_price(MARKETS[HOME], 0.060)
        wait_for(controller, lambda: saved_on(api, machines, EUROPE) >= 2)
        # A forced move: the machine is taken, Europe has no other, and then it is too expensive.
        api.refusals.launches.append("InsufficientInstanceCapacity")
        (taken,) = [machine for machine in machines.running if region_of(machine) == EUROPE]
        machines.take(taken, notice_s=40.0)
        wait_for(controller, lambda: "InsufficientInstanceCapacity" in api.refusals.sent)
        api.change_price(MARKETS[EUROPE], 0.090)
        assert controller.wait(600) == 0
    finally:
        controller.kill()
        controller.wait()
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

    folder = find_run(runs, None)
    journal = Journal(folder.journal, read_only=True)
    outcome, run = journal.state("outcome"), journal.run()
    assert run is not None
    assert outcome["finished"]
    assert outcome["failed"] == []
    # One move was for the price. The other was forced by the notice, even if the machine was left before its time.
    told = [kind for _, kind, *_ in journal.moments()]
    assert told.count(str(eb.Wake.NOTICE)) == 1
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
    assert sorted((region, size_bytes) for region, size_bytes, _ in entered) == sorted(expected)
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
        head, is_data, place = moved.path.partition("/data/")
        machine = machines.all.get(moved.access_key.removeprefix("OF-THE-ROLE-"))
        if machine is not None and is_data and head.startswith("stand-in/ebbtide/trials/"):
            key = (machine.instance.id, moved.is_upload, place.partition("/")[0])
            found[key] = found.get(key, 0) + moved.size_bytes
    regions = {instance_id: region_of(machines.all[instance_id]) for instance_id, *_ in found}
    return [(regions[key[0]], size) for key, size in found.items() if regions[key[0]] != HOME]


def saved_on(api: StandInApi, machines: StandInMachines, region: str) -> int:
    """How many files of checkpoints the machines of a region have stored."""
    ids = {
        f"OF-THE-ROLE-{machine.instance.id}" for machine in machines.all.values() if region_of(machine) == region
    }
    return sum(moved.is_upload and "/data/" in moved.path and moved.access_key in ids for moved in list(api.moved))


def region_of(machine: Machine) -> str:
    return str(machine.instance.placement.zone[:-1])


def wait_for(controller: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    def has_come() -> bool:
        assert controller.poll() is None, "the run has ended"
        return condition()

    eventually(has_come, limit_s=3 * LIMIT_S, poll_s=0.1)
