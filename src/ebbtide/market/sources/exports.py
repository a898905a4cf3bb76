"""Exports of Azure: its price sheets and its Retail Prices API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.errors import InputError
from ebbtide.market.sources.cells import parsed_prices, parsed_times
from ebbtide.market.sources.contents import content_text
from ebbtide.market.sources.tables import documents, each_page, read_csv_text

if TYPE_CHECKING:
    import pandas as pd


def read_azure_csv(path: str | Path, *, region: str | None = None, timezone: str | None = "UTC") -> pd.DataFrame:
    """Read a sheet with a `Date` column and a column of prices for each instance type.

    A blank cell means that no price was recorded that day: the one before holds on. Dates without a time are
    taken as midnight in `timezone`.

    Args:
        path: Path of the CSV sheet.
        region: The sheet's region; by default the file's name with `-` for `_` (`us_east.csv` is us-east).
        timezone: Time zone of the sheet's dates.

    Raises:
        InputError: There is no Date column, or a date or price does not parse.
    """
    import pandas as pd

    path = Path(path)
    region = region or path.name.partition(".")[0].replace("_", "-")
    sheet = read_csv_text(path)
    if sheet.columns[0].lower() != "date":
        raise InputError(f"has no first column 'Date'; it has {sheet.columns[0]!r}", file=path, field="Date")
    if sheet.empty:
        raise InputError("holds no rows", file=path)
    dates = parsed_times(sheet.iloc[:, 0], path, "Date", timezone=timezone)
    frames = []
    for name in sheet.columns[1:]:
        cells = sheet[name].str.strip()
        given = cells.notna() & (cells != "") & (cells != "-")
        # Blank cells are dropped after the check, so that errors name the sheet's row numbers.
        prices = parsed_prices(cells.where(given, "1"), path, name)
        frames.append(_frame(dates[given], region, name.strip(), prices[given]))
    if not frames or not sum(map(len, frames)):
        raise InputError("holds no prices", file=path)
    return pd.concat(frames, ignore_index=True)


def read_azure_json(path: str | Path) -> pd.DataFrame:
    """Read pages of the Retail Prices API (`{"Items": [...]}`) or their items, keeping spot machines with Linux.

    Rows of other units than an hour are left out.

    Raises:
        InputError: The file is not such JSON, or an item lacks a field.
    """
    import pandas as pd

    items: list[Any] = []
    for document in documents(content_text(path), path):
        for page in each_page(document, "Items"):
            found = page.get("Items") if isinstance(page, dict) else page or None
            if isinstance(page, dict) and "armSkuName" in page:
                found = [page]
            if not isinstance(found, list):
                raise InputError(
                    "is not an answer of the Retail Prices API: it has no list named Items", file=path
                )
            items += found
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise InputError("item is not a record of names and values", file=path, row=number, field="Items")
    spot = [
        (number, item)
        for number, item in enumerate(items, 1)
        if "Spot" in str(item.get("skuName", ""))
        and "Windows" not in str(item.get("productName", ""))
        and str(item.get("unitOfMeasure", "1 Hour")).casefold() in ("1 hour", "1/hour")
    ]
    if not spot:
        raise InputError("holds no Linux spot prices of an hour (skuName with 'Spot')", file=path, field="skuName")
    for number, item in spot:
        for name in ("effectiveStartDate", "armRegionName", "armSkuName", "retailPrice"):
            if item.get(name) in (None, "") or isinstance(item[name], (dict, list)):
                raise InputError(f"item has no {name}", file=path, row=number, field=name)
        if item.get("currencyCode", "USD") != "USD":
            raise InputError(
                f"price in {item['currencyCode']}; ask the API for USD",
                file=path,
                row=number,
                field="currencyCode",
            )
    table = pd.DataFrame([item for _, item in spot])
    frame = _frame(
        parsed_times(table["effectiveStartDate"], path, "effectiveStartDate"),
        "",
        "",
        parsed_prices(table["retailPrice"], path, "retailPrice"),
    )
    names = table["armSkuName"].astype(str).map(azure_type_name)
    return frame.assign(region=table["armRegionName"], zone=table["armRegionName"], instance_type=names)


def azure_type_name(arm_sku_name: str) -> str:
    """An instance type's name in the catalogue: `Standard_NC6s_v3` is `NC6s v3`."""
    return arm_sku_name.removeprefix("Standard_").replace("_", " ")


def _frame(times: pd.Series, region: str, instance_type: str, prices: pd.Series) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {
            "timestamp": times,
            "cloud": "azure",
            "region": region,
            "zone": region,
            "instance_type": instance_type,
            "product": "Linux",
            "price_usd_per_hour": prices,
        }
    )
