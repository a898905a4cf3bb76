import gzip
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import boto3
import pandas as pd
import pytest

from ebbtide.base.utc import to_epoch_s
from ebbtide.errors import InputError
from ebbtide.jobs.resources import Resources
from ebbtide.market.catalogue import Catalogue, InstanceType, default_catalogue, read_instance_types
from ebbtide.market.markets import Market

# SpotTune's Table III and the list prices of DeepSpotCloud's and the public traces' instances.
LISTED = {
    ("r4.large", "2017-12-01"): (2, 15.25, 0.133),
    ("r4.xlarge", "2017-12-01"): (4, 30.5, 0.266),
    ("m4.2xlarge", "2017-12-01"): (8, 32.0, 0.4),
    ("r4.2xlarge", "2017-12-01"): (8, 61.0, 0.532),
    ("m4.4xlarge", "2017-12-01"): (16, 64.0, 0.8),
    ("m3.medium", "2015-04-01"): (1, 3.75, 0.067),
    ("r3.large", "2015-04-01"): (2, 15.0, 0.175),
    ("c3.xlarge", "2015-04-01"): (4, 7.5, 0.21),
    ("g2.2xlarge", "2015-04-01"): (8, 15.0, 0.65),
    ("d2.8xlarge", "2015-04-01"): (36, 244.0, 5.52),
    ("p2.xlarge", "2020-01-01"): (4, 61.0, 0.90),
    ("p3.16xlarge", "2020-01-01"): (64, 488.0, 24.48),
}


@pytest.mark.parametrize(("name", "date"), LISTED)
def test_known_machines_and_their_list_prices(name: str, date: str) -> None:
    vcpus, memory_gib, usd = LISTED[name, date]
    catalogue = default_catalogue()
    machine = catalogue.instance_type("aws", name)
    assert (machine.vcpus, machine.memory_gib) == (vcpus, pytest.approx(memory_gib, abs=1))
    market = Market("aws", "us-east-1", "us-east-1a", name)
    assert catalogue.on_demand_usd_per_hour(market, to_epoch_s(f"{date}T00:00:00Z")) == pytest.approx(usd)


def test_accelerators_are_counted() -> None:
    machine = default_catalogue().instance_type("azure", "NC24s v2")
    assert (machine.accelerator, machine.accelerator_count) == ("NVIDIA P100", 4)


def test_a_list_price_follows_the_date() -> None:
    market = Market("aws", "us-east-1", "us-east-1a", "m4.4xlarge")
    prices = [
        default_catalogue().on_demand_usd_per_hour(market, to_epoch_s(f"{day}T00:00:00Z"))
        for day in ("2014-01-01", "2015-09-01", "2016-09-01", "2021-01-01")
    ]
    assert prices == [1.008, 1.008, 0.958, 0.8]


def test_machines_of_today_are_found_by_their_accelerators_and_have_prices() -> None:
    catalogue = default_catalogue()
    asked = Resources(accelerators="H100:8")
    found = {(machine.cloud, machine.name) for machine in catalogue.instance_types if asked.fits(machine)}
    assert found >= {("aws", "p5.48xlarge"), ("gcp", "a3-highgpu-8g")}
    p5 = Market("aws", "us-east-1", "us-east-1a", "p5.48xlarge")
    # AWS lowered it in June 2025.
    usd = [
        catalogue.on_demand_usd_per_hour(p5, to_epoch_s(f"{day}T00:00:00Z"))
        for day in ("2025-01-01", "2026-01-01")
    ]
    assert usd == [98.32, 55.04]


def test_a_list_price_is_never_borrowed() -> None:
    catalogue, time_s = default_catalogue(), to_epoch_s("2021-04-01T00:00:00Z")
    assert catalogue.on_demand(Market("aws", "mars-1", "mars-1a", "c3.xlarge"), time_s) is None
    assert catalogue.on_demand(Market("aws", "us-east-1", "us-east-1a", "c3.xlarge", "SUSE Linux"), time_s) is None
    inside = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge", "Linux/UNIX (Amazon VPC)")
    assert catalogue.on_demand_usd_per_hour(inside, time_s) == 0.21


def test_an_unknown_type_is_told_with_the_nearest_known() -> None:
    with pytest.raises(InputError, match=r"unknown aws instance type 'c3.xlrage' \(did you mean 'c3.xlarge'"):
        default_catalogue().instance_type("aws", "c3.xlrage")
    with pytest.raises(InputError, match="unknown cloud 'ibm'"):
        default_catalogue().instance_type("ibm", "c3.xlarge")


def test_users_can_add_types_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "types.csv"
    head = "cloud,instance_type,vcpus,memory_gib,accelerator,accelerator_count\n"
    path.write_text(head + "aws,x9.huge,128,4096,,0\n")
    catalogue = default_catalogue() + read_instance_types(path)
    assert catalogue.instance_type("aws", "x9.huge").vcpus == 128
    assert catalogue.instance_type("aws", "c3.xlarge").vcpus == 4
    path.write_text(head + "aws,x9.huge,many,4096,,0\n")
    with pytest.raises(InputError, match=r"types.csv, row 1, field vcpus: 'many' is not a number"):
        read_instance_types(path)


def test_a_catalogue_that_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    own = InstanceType("aws", "x9.huge", 128, 4096.0, "NVIDIA T4", 2)
    extra = [own]
    catalogue = default_catalogue() + extra
    catalogue.write(tmp_path / "catalogue.json")
    read = Catalogue.read(tmp_path / "catalogue.json")
    assert read.instance_types == catalogue.instance_types
    market, time_s = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge"), to_epoch_s("2015-04-01T00:00:00Z")
    assert read.on_demand(market, time_s) == catalogue.on_demand(market, time_s) is not None
    (tmp_path / "catalogue.json").write_text("{}")
    with pytest.raises(InputError, match="is no catalogue of instance types"):
        Catalogue.read(tmp_path / "catalogue.json")


def test_the_data_itself_is_sane() -> None:
    for machine in default_catalogue().instance_types:
        assert machine.vcpus >= 1
        assert machine.memory_gib > 0
        assert math.isfinite(machine.memory_gib)
        assert (machine.accelerator is None) == (machine.accelerator_count == 0)


@pytest.mark.real_traces
def test_every_instance_type_of_the_traces_is_known(traces: Path) -> None:
    known = {(machine.cloud, machine.name) for machine in default_catalogue().instance_types}
    for path in traces.rglob("*.parquet"):
        frame = pd.read_parquet(path)
        # Lists of on-demand prices alone do not say how large a machine is.
        only_listed = set(frame.columns) <= {
            "timestamp",
            "cloud",
            "region",
            "instance_type",
            "on_demand_usd_per_hour",
        }
        if {"cloud", "instance_type"} <= set(frame.columns) and not only_listed:
            pairs = set(zip(frame["cloud"].astype(str), frame["instance_type"].astype(str), strict=True))
            assert pairs <= known, path.name


def test_it_has_every_type_of_ec2_as_moto_knows_it() -> None:
    types = json.loads(gzip.decompress(resources.files("moto.ec2").joinpath(_MOTO).read_bytes()))
    known = {machine.name: machine for machine in default_catalogue().instance_types if machine.cloud == "aws"}
    for name, facts in types.items():
        machine = known[name]
        assert machine.vcpus == facts["VCpuInfo"]["DefaultVCpus"], name
        assert machine.memory_gib == pytest.approx(facts["MemoryInfo"]["SizeInMiB"] / 1024, rel=0.02), name
        architectures = {text.removeprefix("x86_64_").removeprefix("arm64_") for text in _supported(facts)}
        assert machine.architecture in architectures, name
        gpus = [key for key in ("GpuInfo", "NeuronInfo", "InferenceAcceleratorInfo") if key in facts]
        assert bool(machine.accelerator_count) == bool(gpus), name


_MOTO = "resources/instance_types.json.gz"


def _supported(facts: dict[str, Any]) -> list[str]:
    found: list[str] = facts["ProcessorInfo"]["SupportedArchitectures"]
    return found


def test_it_has_every_type_that_ec2_s_api_names() -> None:
    names = boto3.session.Session().client("ec2", region_name="us-east-1").meta.service_model
    known = {machine.name for machine in default_catalogue().instance_types if machine.cloud == "aws"}
    assert set(names.shape_for("InstanceType").enum) - known == set()


@pytest.mark.parametrize(
    ("cloud", "name", "vcpus", "memory_gib", "architecture"),
    [
        ("aws", "c7i.48xlarge", 192, 384.0, "x86_64"),
        ("aws", "m8g.medium", 1, 4.0, "arm64"),
        ("aws", "u7i-12tb.224xlarge", 896, 12288.0, "x86_64"),
        ("aws", "p6e-gb200.36xlarge", 144, 960.0, "arm64"),
        ("aws", "p6-b200.48xlarge", 192, 2048.0, "x86_64"),
        ("aws", "g5g.xlarge", 4, 8.0, "arm64"),
        ("aws", "mac2-m2.metal", 8, 24.0, "mac"),
        ("gcp", "n2-highmem-128", 128, 864.0, "x86_64"),
        ("gcp", "n4d-standard-8", 8, 32.0, "x86_64"),
        ("gcp", "c4a-highcpu-72", 72, 144.0, "arm64"),
        ("gcp", "t2a-standard-1", 1, 4.0, "arm64"),
        ("gcp", "t2d-standard-1", 1, 4.0, "x86_64"),
        ("gcp", "a4x-highgpu-4g", 140, 884.0, "arm64"),
        ("gcp", "e2-micro", 2, 1.0, "x86_64"),
        ("azure", "D8s v5", 8, 32.0, "x86_64"),
        ("azure", "E20ds v5", 20, 160.0, "x86_64"),
        ("azure", "D4pls v6", 4, 8.0, "arm64"),
        ("azure", "B2pts v2", 2, 1.0, "arm64"),
        ("azure", "E16-4s v5", 4, 128.0, "x86_64"),
        ("azure", "ND96isr H100 v5", 96, 1900.0, "x86_64"),
        ("azure", "ND128isr NDR GB200 v6", 128, 900.0, "arm64"),
    ],
)
def test_types_of_each_cloud_have_what_their_names_say(
    cloud: str, name: str, vcpus: int, memory_gib: float, architecture: str
) -> None:
    machine = default_catalogue().instance_type(cloud, name)
    assert (machine.vcpus, machine.memory_gib, machine.architecture) == (vcpus, memory_gib, architecture)


def test_a_part_of_an_accelerator_is_not_one() -> None:
    machine = default_catalogue().instance_type("aws", "g6f.large")
    assert machine.accelerator == "NVIDIA L4 0.125"


def test_the_architecture_of_own_types_is_as_said(tmp_path: Path) -> None:
    head = "cloud,instance_type,vcpus,memory_gib,accelerator,accelerator_count"
    (tmp_path / "own.csv").write_text(f"{head},architecture\nlab,bee,4,16,,0,arm64\nlab,cow,4,16,,0,\n")
    assert [one.architecture for one in read_instance_types(tmp_path / "own.csv")] == ["arm64", "x86_64"]
    (tmp_path / "old.csv").write_text(f"{head}\naws,m99g.large,2,8,,0\n")
    assert [one.architecture for one in read_instance_types(tmp_path / "old.csv")] == ["arm64"]
    (tmp_path / "bad.csv").write_text(f"{head},architecture\nlab,bee,4,16,,0,sparc\n")
    with pytest.raises(InputError, match="row 1, field architecture: 'sparc' is no architecture; write x86_64"):
        read_instance_types(tmp_path / "bad.csv")
