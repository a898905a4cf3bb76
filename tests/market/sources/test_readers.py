"""The readers of exports: what they survive and what they refuse."""

import json
from pathlib import Path

import pandas as pd
import pytest

from ebbtide.errors import InputError
from ebbtide.market.ingestion import read_source
from ebbtide.market.sources.ec2_json import read_ec2_json, read_price_table
from ebbtide.market.sources.exports import read_azure_csv, read_azure_json
from ebbtide.market.sources.regions import region_of_zone


def entry(time: str = "2015-04-01T00:00:00.000Z", price: str = "0.0321", **more: str) -> dict[str, str]:
    return {
        "AvailabilityZone": "us-east-1a",
        "InstanceType": "c3.xlarge",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": price,
        "Timestamp": time,
    } | more


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("us-east-1a", "us-east-1"),
        ("ap-southeast-2c", "ap-southeast-2"),
        ("us-west-2-lax-1a", "us-west-2"),
        ("us-gov-west-1a", "us-gov-west-1"),
    ],
)
def test_zones_have_regions(zone: str, region: str) -> None:
    assert region_of_zone(zone) == region


def test_ec2_json_is_read_with_any_offset(tmp_path: Path) -> None:
    entries = [entry(), entry("2015-04-01T03:00:00+02:00", "0.05")]
    path = written(tmp_path / "a.json", json.dumps({"SpotPriceHistory": entries}))
    frame = read_ec2_json(path)
    assert frame["timestamp"].astype(str).tolist() == ["2015-04-01 00:00:00+00:00", "2015-04-01 01:00:00+00:00"]
    assert frame["price_usd_per_hour"].tolist() == [0.0321, 0.05]
    assert set(frame["region"]) == {"us-east-1"}


def test_several_json_documents_in_one_file_are_read(tmp_path: Path) -> None:
    document = json.dumps({"SpotPriceHistory": [entry()]})
    path = written(tmp_path / "a.json", f"{document}\n{document}\n{json.dumps([entry()])}")
    assert len(read_ec2_json(path)) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ('{"a": 1}', "no list named SpotPriceHistory"),
        ('{"SpotPriceHistory": []}', "holds no prices"),
        (json.dumps([entry(), entry(price="")]), "row 2, field SpotPrice: entry has no SpotPrice"),
        (json.dumps([entry(price="free")]), "row 1, field SpotPrice: free is not a price"),
        (json.dumps([entry("2015-04-01T00:00:00")]), "row 1, field Timestamp: .*has no time zone"),
    ],
)
def test_bad_ec2_json_is_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_ec2_json(written(tmp_path / "a.json", text))


KAGGLE = "datetime,instance_type,os,region,price\n"


def test_the_kaggle_csv_is_read_with_or_without_its_header(tmp_path: Path) -> None:
    rows = "2017-05-08 19:28:43+00:00,c3.xlarge,Linux/UNIX,us-east-1a,$0.0416\n"
    for text in (KAGGLE + rows, rows):
        frame = read_price_table(written(tmp_path / "a.csv", text))
        assert frame["price_usd_per_hour"].tolist() == [0.0416]
        assert frame["zone"].tolist() == ["us-east-1a"]
        assert frame["region"].tolist() == ["us-east-1"]
        assert frame["product"].tolist() == ["Linux/UNIX"]


def test_local_times_need_their_zone_to_be_named(tmp_path: Path) -> None:
    rows = "2017-05-08 19:28:43,c3.xlarge,Linux/UNIX,us-east-1a,0.04\n2017-05-08 19:28:43+00:00,c3.xlarge,Linux/UNIX,us-east-1b,0.04\n"
    path = written(tmp_path / "a.csv", KAGGLE + rows)
    with pytest.raises(InputError, match=r"a.csv, row 1, field datetime: .*has no time zone"):
        read_price_table(path)
    frame = read_price_table(path, timezone="America/New_York")
    assert frame["timestamp"].astype(str).tolist() == ["2017-05-08 23:28:43+00:00", "2017-05-08 19:28:43+00:00"]
    with pytest.raises(InputError, match="time zone 'Mars/Olympus'"):
        read_price_table(path, timezone="Mars/Olympus")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("datetime,instance_type,os,price\n2017-05-08,a,b,1\n", "has no column 'region'"),
        ("datetime,instance_type,os,region,price,colour\n2017-05-08,a,b,c,1,red\n", "unknown column 'colour'"),
        (KAGGLE, "holds no rows"),
        ("", "holds nothing"),
    ],
)
def test_bad_kaggle_csv_is_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_price_table(written(tmp_path / "a.csv", text))


SHEET = "Date,NC12,NC6s v2\n2/24/2020,$0.24552,$0.27241\n2/25/2020,,0.414\n2/26/2020,$0.25,\n"


def test_azure_sheets_are_read_with_dollar_signs_and_blank_cells(tmp_path: Path) -> None:
    frame = read_azure_csv(written(tmp_path / "us_east.csv", SHEET))
    assert set(frame["region"]) == {"us-east"}
    assert len(frame) == 4
    nc12 = frame[frame["instance_type"] == "NC12"]
    assert nc12["price_usd_per_hour"].tolist() == [0.24552, 0.25]
    assert nc12["timestamp"].dt.day.tolist() == [24, 26]
    assert set(read_azure_csv(tmp_path / "us_east.csv", region="westeurope")["region"]) == {"westeurope"}


def test_a_bad_cell_of_an_azure_sheet_is_told_by_its_own_row(tmp_path: Path) -> None:
    text = SHEET.replace("$0.25,", "sold out,")
    with pytest.raises(InputError, match="us_east.csv, row 3, field NC12: sold out is not a price"):
        read_azure_csv(written(tmp_path / "us_east.csv", text))
    with pytest.raises(InputError, match="no first column 'Date'"):
        read_azure_csv(written(tmp_path / "us_east.csv", "Day,NC12\n2/24/2020,1\n"))


def test_azure_retail_prices_keep_linux_spot_only(tmp_path: Path) -> None:
    item = {
        "retailPrice": 0.1,
        "armRegionName": "eastus",
        "armSkuName": "Standard_NC6s_v3",
        "skuName": "NC6s v3 Spot",
        "productName": "Virtual Machines NCSv3 Series",
        "effectiveStartDate": "2024-01-01T00:00:00Z",
        "currencyCode": "USD",
    }
    items = [item, item | {"skuName": "NC6s v3"}, item | {"productName": "Virtual Machines NCSv3 Series Windows"}]
    frame = read_azure_json(written(tmp_path / "a.json", json.dumps({"Items": items})))
    assert len(frame) == 1
    assert frame["instance_type"].tolist() == ["NC6s v3"]
    with pytest.raises(InputError, match="row 1, field currencyCode: price in EUR"):
        read_azure_json(written(tmp_path / "a.json", json.dumps({"Items": [item | {"currencyCode": "EUR"}]})))
    with pytest.raises(InputError, match="no Linux spot prices"):
        read_azure_json(written(tmp_path / "a.json", json.dumps({"Items": items[1:]})))


def test_formats_are_recognised_from_content(tmp_path: Path) -> None:
    assert len(read_source(written(tmp_path / "us_east.csv", SHEET))) == 4
    kaggle = KAGGLE + "2017-05-08 19:28:43+00:00,c3.xlarge,Linux/UNIX,us-east-1a,0.04\n"
    assert len(read_source(written(tmp_path / "k.csv", kaggle))) == 1
    assert len(read_source(written(tmp_path / "e.json", json.dumps([entry()])))) == 1
    with pytest.raises(InputError, match="first line is not recognised as a header: dear diary"):
        read_source(written(tmp_path / "notes.txt", "dear diary"))
    with pytest.raises(InputError, match="holds nothing"):
        read_source(written(tmp_path / "none.csv", ""))
    with pytest.raises(InputError, match="unknown format 'xml'"):
        read_source(written(tmp_path / "a.xml", "<a/>"), file_format="xml")


@pytest.mark.real_traces
def test_a_real_history_comes_back_from_ec2_json_and_kaggle_csv(traces: Path, tmp_path: Path) -> None:
    frame = pd.read_parquet(traces / "ec2-auction-2015.parquet").iloc[:2000]
    entries = [
        entry(
            row.timestamp.isoformat(),
            str(row.price_usd_per_hour),
            AvailabilityZone=str(row.zone),
            InstanceType=str(row.instance_type),
        )
        for row in frame.itertuples()
    ]
    read = read_ec2_json(written(tmp_path / "a.json", json.dumps({"SpotPriceHistory": entries})))
    assert read["price_usd_per_hour"].tolist() == frame["price_usd_per_hour"].tolist()
    assert (read["timestamp"].to_numpy() == frame["timestamp"].to_numpy()).all()
