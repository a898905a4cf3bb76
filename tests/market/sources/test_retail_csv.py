"""Items of Azure's Retail Prices API as CSV, with the columns that people keep."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide.market.ingestion import read_source

ITEM = {
    "currencyCode": "USD",
    "retailPrice": "0.918",
    "armRegionName": "eastus",
    "effectiveStartDate": "2024-04-01T00:00:00Z",
    "productName": "Virtual Machines NCSv3 Series",
    "skuName": "NC6s v3 Spot",
    "meterName": "NC6s v3 Spot",
    "unitOfMeasure": "1 Hour",
    "armSkuName": "Standard_NC6s_v3",
}
LIST_PRICE = ITEM | {"skuName": "NC6s v3", "meterName": "NC6s v3", "retailPrice": "-", "effectiveStartDate": "?"}
WINDOWS = ITEM | {"productName": "Virtual Machines NCSv3 Series Windows", "retailPrice": "2"}


def written(path: Path, items: Sequence[dict[str, str]], *, is_quoted: bool = False, mark: str = ",") -> Path:
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(
            file, list(items[0]), quoting=csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL, delimiter=mark
        )
        rows.writeheader()
        rows.writerows(items)
    return path


@pytest.mark.parametrize("without", [(), ("meterName",), ("skuName", "currencyCode", "unitOfMeasure")])
@pytest.mark.parametrize("style", [{}, {"is_quoted": True}, {"mark": ";"}], ids=str)
def test_items_are_read(tmp_path: Path, without: Sequence[str], style: dict[str, object]) -> None:
    items = [{k: v for k, v in one.items() if k not in without} for one in (LIST_PRICE, ITEM, WINDOWS)]
    path = written(tmp_path / "a.csv", items, **style)  # type: ignore[arg-type]
    path.write_text("#TYPE System.Management.Automation.PSCustomObject\n" + path.read_text())
    names = ["timestamp", "cloud", "region", "zone", "instance_type", "product", "price_usd_per_hour"]
    frame = read_source(path)
    assert list(frame) == names
    ((time, *cells),) = frame.astype({"timestamp": str}).values.tolist()
    assert (time, cells) == ("2024-04-01 00:00:00+00:00", ["azure", "eastus", "eastus", "NC6s v3", "Linux", 0.918])


def test_names_count_without_case(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", [{name.upper(): value for name, value in ITEM.items()}])
    assert len(read_source(path)) == 1


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{k: v for k, v in ITEM.items() if k not in ("skuName", "meterName")}], "has no column 'skuName'"),
        ([{k: v for k, v in ITEM.items() if k != "productName"}], "has no column 'productName'"),
        ([{k: v for k, v in ITEM.items() if k != "retailPrice"}], "has no column 'retailPrice'"),
        ([LIST_PRICE, ITEM | {"retailPrice": "0,918"}], "row 2, field retailPrice: 0,918 seems to have a decimal comma"),
        ([LIST_PRICE, ITEM | {"currencyCode": "EUR"}], "row 2, field currencyCode: price in EUR"),
        ([ITEM | {"effectiveStartDate": "04/03/2024 00:00:00"}], "row 1, field effectiveStartDate: .* can be"),
        ([ITEM | {"effectiveStartDate": "2024-04-03T00:00:00"}], "has no time zone"),
        ([ITEM, ITEM | {"armRegionName": ""}], "row 2, field armRegionName: item has no armRegionName"),
        ([LIST_PRICE], "holds no Linux spot prices"),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_is_wrong_is_told(tmp_path: Path, items: Sequence[dict[str, str]], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_source(written(tmp_path / "a.csv", items))
