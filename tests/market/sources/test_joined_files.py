"""Files that people joined, filtered or cut out of answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide.market.ingestion import read_source

ROW = "2025-06-01T12:00:00Z,p3.2xlarge,Linux/UNIX,us-east-1a,"
HEADER = "datetime,instance_type,os,region,price"
ITEM = {
    "currencyCode": "USD",
    "retailPrice": 0.3,
    "armRegionName": "eastus",
    "effectiveStartDate": "2024-06-01T00:00:00Z",
    "productName": "Virtual Machines NCSv3 Series",
    "skuName": "NC6s v3 Spot",
    "unitOfMeasure": "1 Hour",
    "armSkuName": "Standard_NC6s_v3",
}


def test_files_that_were_joined_have_their_header_again(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text(f"{HEADER}\n{ROW}0.9\n{HEADER}\n{ROW}0.8\n")
    assert read_source(path)["price_usd_per_hour"].tolist() == [0.9, 0.8]


def test_a_zone_that_is_null_leaves_its_place_to_its_id(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    record = {"InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX", "SpotPrice": "0.9"}
    record["Timestamp"] = "2025-06-01T12:00:00Z"
    zones = [{"AvailabilityZone": None, "AvailabilityZoneId": "use1-az4"}]
    zones.append({"AvailabilityZoneId": "use1-az4", "AvailabilityZone": ""})
    zones.append({"AvailabilityZoneId": "use1-az4", "AvailabilityZone": "us-east-1a"})
    path.write_text(json.dumps([{**record, **zone} for zone in zones]))
    assert read_source(path)["zone"].tolist() == ["use1-az4", "use1-az4", "us-east-1a"]


@pytest.mark.parametrize("joined", [json.dumps([ITEM, ITEM]), f"{json.dumps(ITEM)}\n{json.dumps(ITEM)}\n"])
def test_items_of_azure_are_read_without_their_pages(joined: str, tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_text(joined)
    assert read_source(path)["instance_type"].tolist() == ["NC6s v3"] * 2


def test_prices_of_a_month_are_none_of_an_hour(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_text(json.dumps({"Items": [{**ITEM, "unitOfMeasure": "1/Month"}, ITEM]}))
    assert len(read_source(path)) == 1
    path.write_text(json.dumps({"Items": [{**ITEM, "unitOfMeasure": "1/Month"}]}))
    with pytest.raises(InputError, match="of an hour"):
        read_source(path)
