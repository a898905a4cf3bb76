"""Programs run on their own operating system and processor alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import InstanceType, default_catalogue
from ebbtide.market.markets import Market, product_name
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

KNOWN = default_catalogue()


def market(kind: str, product: str = "Linux/UNIX", cloud: str = "aws") -> Market:
    return Market(cloud, "us-east-1", "us-east-1a", kind, product)


def job(**fields: object) -> Job:
    return Job(**{"name": "a", "steps": 100, "other_steps_per_hour_per_vcpu": 10.0} | fields)


def sweep(**fields: object) -> Sweep:
    content = {"name": "a", "command": "python train.py {checkpoint_dir}", "metric": "loss"} | fields
    return Sweep.parse(content, None, KNOWN)


@pytest.mark.parametrize(
    ("kind", "product", "cloud", "runs"),
    [
        ("m5.large", "Linux/UNIX", "aws", True),
        ("m5.large", "Windows", "aws", False),
        ("m5.large", "SUSE Linux", "aws", False),
        ("m5.large", "Red Hat Enterprise Linux", "aws", False),
        ("m6g.large", "Linux/UNIX", "aws", False),
        ("mac2.metal", "Linux/UNIX", "aws", False),
        ("D8s v5", "Linux", "azure", True),
        ("D8ps v5", "Linux", "azure", False),
        ("n2-standard-8", "Linux/UNIX", "gcp", True),
        ("t2a-standard-8", "Linux/UNIX", "gcp", False),
    ],
)
def test_it_runs_on_linux_and_its_own_processor(kind: str, product: str, cloud: str, runs: bool) -> None:
    where = market(kind, product, cloud)
    assert (job().steps_per_s(where, KNOWN) > 0) is runs
    assert sweep().allows(where, KNOWN) is runs


def test_a_program_for_arm_runs_on_arm_alone() -> None:
    arm = job(architecture="arm64")
    assert arm.steps_per_s(market("m6g.large"), KNOWN) > 0
    assert arm.steps_per_s(market("m5.large"), KNOWN) == 0
    assert sweep(architecture="arm64").live_jobs(KNOWN)[0].steps_per_s(market("m6g.large"), KNOWN) > 0
    assert sweep().live_jobs(KNOWN)[0].steps_per_s(market("m6g.large"), KNOWN) == 0


def test_a_speed_says_that_it_has_run_there() -> None:
    measured = job(steps_per_hour={"m6g.large": 50}, other_steps_per_hour_per_vcpu=None)
    assert measured.steps_per_s(market("m6g.large"), KNOWN) > 0
    assert measured.steps_per_s(market("m6g.large", "Windows"), KNOWN) == 0
    stated = job(steps_per_hour={"m6g.large": 50, "m5.large": 50}, architecture="x86_64")
    assert stated.steps_per_s(market("m6g.large"), KNOWN) == 0


def test_prices_without_a_suitable_market_are_told_with_what_to_write() -> None:
    prices = PriceHistory({market("m6g.large"): PriceSeries([0.0, 3600.0], [0.1, 0.2])})
    with pytest.raises(InputError, match="is for Linux on x86_64; `architecture: arm64` is for ARM processors"):
        sweep().allowed(prices, KNOWN)
    assert len(sweep(architecture="arm64").allowed(prices, KNOWN)) == 1
    with pytest.raises(InputError, match="architecture"):
        sweep(architecture="sparc")


def test_own_types_have_the_processor_that_is_said() -> None:
    own = [InstanceType("lab", "bee", 4, 16.0, architecture="arm64"), InstanceType("lab", "cow", 4, 16.0)]
    known = KNOWN + own
    rates = [job().steps_per_s(market(kind, cloud="lab"), known) > 0 for kind in ("bee", "cow")]
    assert rates == [False, True]


@pytest.mark.parametrize(
    ("cloud", "product", "name"),
    [
        ("aws", "Linux/UNIX (Amazon VPC)", "Linux/UNIX"),
        ("aws", "linux/unix", "Linux/UNIX"),
        ("aws", "Linux", "Linux/UNIX"),
        ("aws", "SUSE Linux (Amazon VPC)", "SUSE Linux"),
        ("azure", "Linux", "Linux"),
        ("azure", "Linux/UNIX", "Linux"),
        ("aws", "Windows", "Windows"),
    ],
)
def test_each_product_has_one_name(cloud: str, product: str, name: str) -> None:
    assert product_name(cloud, product) == name


def test_the_file_says_the_architecture(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: a\nsteps: 10\nother_steps_per_hour_per_vcpu: 5\narchitecture: arm64\n")
    assert Job.read(path).architecture == "arm64"
