"""Tables of SkyPilot's catalogue, in its columns and with prices of our own (tests/recordings/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.recorded import FOLDER

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.cli.options import catalogue_with
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.list_prices.skypilot import SkypilotTable
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.price_store import PriceStore

H100 = eb.Market("verda", "FIN-02", "FIN-02", "1H100.32V")


def ebbtide(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def table(cloud: str) -> SkypilotTable:
    return SkypilotTable.read(FOLDER / f"skypilot_{cloud}.csv", cloud)


def test_machines_and_list_prices_of_another_cloud() -> None:
    found = table("verda").listed([], default_catalogue())
    assert found.prices == {
        ("verda", "FIN-02", "1H100.32V", "Linux/UNIX"): 2.5,
        ("verda", "FIN-03", "2B300.60V", "Linux/UNIX"): 13.5,
        ("verda", "FIN-01", "CPU.4V.16G", "Linux/UNIX"): 0.03,
    }
    # A known accelerator has the name that it has elsewhere; a new one has its own.
    types = {one.name: (one.vcpus, one.memory_gib, one.accelerator, one.accelerator_count) for one in found.types}
    assert types["1H100.32V"] == (32, 185.0, "NVIDIA H100", 1)
    assert types["2B300.60V"] == (60, 550.0, "NVIDIA B300", 2)
    assert types["CPU.4V.16G"] == (4, 16.0, None, 0)
    assert found.left_out == {
        "HALF": "a part of a core or of an accelerator",
        "BARE": "no number of cores, or no memory",
    }


def test_zones_that_differ_make_the_higher_price_and_makers_are_read() -> None:
    found = table("aws").listed([], default_catalogue())
    assert found.prices["aws", "us-east-1", "c9x.large", "Linux/UNIX"] == 0.12
    assert {one.name: one.accelerator for one in found.types}["t9.xlarge"] == "NVIDIA M99"
    assert set(table("aws").listed(["us-east-2"], default_catalogue()).prices) == {
        ("aws", "us-east-2", "t9.xlarge", "Linux/UNIX")
    }


def test_google_s_prices_without_accelerators_are_no_prices_of_machines_with_them() -> None:
    found = table("gcp").listed([], default_catalogue())
    assert list(found.prices) == [("gcp", "us-central1", "n2-madeup-4", "Linux/UNIX")]
    assert set(found.left_out) == {"a2-highgpu-1g", "a9-madeup-8g"}
    assert list(table("gcp").spot_prices(default_catalogue(), 1.8e9)["instance_type"]) == ["n2-madeup-4"]


def test_an_imported_machine_is_recommended_and_backtested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, store = tmp_path / "own", tmp_path / "prices.db"
    imported = ("catalogue", "import", FOLDER / "skypilot_verda.csv", "--cloud", "verda", "--into", own)
    assert ebbtide(*imported, "--spot", store) == 0
    told = capsys.readouterr().out
    assert "verda: 3 list prices, 3 new or changed; 3 new types" in told
    assert "3 spot prices new or changed" in told
    assert ebbtide(*imported) == 0
    assert "nothing has changed" in capsys.readouterr().out
    assert PriceStore(store).quotes()[H100] == 0.9
    catalogue = catalogue_with(own)
    assert catalogue.on_demand_usd_per_hour(H100, 1.9e9) == 2.5
    (tmp_path / "job.yaml").write_text("name: a\nsteps: 1000\nsteps_per_hour: {1H100.32V: 100}\n")
    assert ebbtide("plan", "--runs", "0", tmp_path / "job.yaml", "--prices", store, "--instance-types", own) == 0
    assert "FIN-02 1H100.32V" in capsys.readouterr().out
    series = PriceSeries(np.array([1.8e9]), np.array([0.9]))
    prices = eb.PriceHistory({H100: series}, start_s=1.8e9, end_s=1.8e9 + 5 * 86_400)
    job = eb.Job.read(tmp_path / "job.yaml", catalogue)
    result = eb.backtest(
        job, [eb.policies.OnDemand(), eb.policies.CheapestSpot()], prices, starts=1, seed=1, catalogue=catalogue
    )
    costs = result.to_frame().groupby("policy")["cost_usd"].mean()
    assert costs["on-demand"] == pytest.approx(25.0, rel=0.05)
    assert costs["cheapest-spot"] == pytest.approx(9.0, rel=0.05)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "has no column 'InstanceType'"),
        ("InstanceType,vCPUs,MemoryGiB,Price,Region\n", "has no rows"),
        (
            "InstanceType,vCPUs,MemoryGiB,Price,Region\na,2,4,cheap,r\n",
            "row 1, field Price: 'cheap' is not a price",
        ),
        (
            "InstanceType,vCPUs,MemoryGiB,Price,Region\na,2,4,1,r\nb,-1,4,1,r\n",
            "row 2, field vCPUs: '-1' is not a number",
        ),
    ],
)
def test_a_wrong_table_is_told(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "vms.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        SkypilotTable.read(tmp_path / "vms.csv", "lambda")
