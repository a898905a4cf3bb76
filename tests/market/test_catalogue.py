import math
from pathlib import Path

import pandas as pd
import pytest

from ebbtide._utc import to_epoch_s
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
