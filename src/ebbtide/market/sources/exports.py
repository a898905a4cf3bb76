"""Exports of Azure: its price sheets and its Retail Prices API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.errors import InputError
from ebbtide.market.sources.cells import parsed_prices, parsed_times
from ebbtide.market.sources.contents import content_text
from ebbtide.market.sources.tables import documents, each_page, read_csv_text
from ebbtide.market.sources.validation import wrong_columns

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = ("effectiveStartDate", "armRegionName", "armSkuName", "retailPrice")
# What says which items are spot prices, and which of Windows.
_TELLING = ("skuName", "productName")
_OPTIONAL = ("meterName", "currencyCode", "unitOfMeasure")


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


def read_azure_json(path: str | Path, *, timezone: str | None = None) -> pd.DataFrame:
    """Read pages of the Retail Prices API (`{"Items": [...]}`) or their items, keeping spot machines with Linux.

    Rows of other units than an hour are left out.

    Args:
        path: Path of the file.
        timezone: Time zone of times without an offset, which are errors if it is None.

    Raises:
        InputError: The file is not such JSON, or an item lacks a field.
    """
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
    return _retail_frame(items, path, timezone)


def read_azure_items_csv(path: str | Path, *, timezone: str | None = None) -> pd.DataFrame:
    """Read items of the Retail Prices API as CSV, as PowerShell's `Export-Csv` writes them.

    Args:
        path: Path of the CSV file.
        timezone: Time zone of times without an offset, which are errors if it is None.

    Raises:
        InputError: The file is not such CSV, or an item lacks a field.
    """
    sheet = read_csv_text(path)
    known = {name.casefold(): name for name in (*_NEEDED, *_TELLING, *_OPTIONAL)}
    sheet = sheet.rename(columns=lambda name: known.get(str(name).casefold(), str(name)))
    telling = ("meterName", "productName") if "meterName" in sheet else _TELLING
    if not {*_NEEDED, *telling} <= set(sheet):
        raise wrong_columns(sheet.columns, [*_NEEDED, *telling], path)
    items = sheet.astype(object).where(sheet.notna(), None).to_dict("records")
    return _retail_frame(items, path, timezone)


def _retail_frame(items: Sequence[Any], path: str | Path, timezone: str | None) -> pd.DataFrame:
    """The spot prices among items of the Retail Prices API, of machines with Linux by the hour."""
    import pandas as pd

    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise InputError("item is not a record of names and values", file=path, row=number, field="Items")
    spot = [(number, item) for number, item in enumerate(items, 1) if _is_spot(item)]
    if not spot:
        raise InputError("holds no Linux spot prices of an hour (skuName with 'Spot')", file=path, field="skuName")
    for number, item in spot:
        for name in _NEEDED:
            if item.get(name) in (None, "") or isinstance(item[name], (dict, list)):
                raise InputError(f"item has no {name}", file=path, row=number, field=name)
        currency = item.get("currencyCode") or "USD"
        if currency != "USD":
            raise InputError(
                f"price in {currency}; ask the API for USD", file=path, row=number, field="currencyCode"
            )
    table = pd.DataFrame([item for _, item in spot])
    try:
        times = parsed_times(table["effectiveStartDate"], path, "effectiveStartDate", timezone=timezone)
        prices = parsed_prices(table["retailPrice"], path, "retailPrice")
    except InputError as error:
        row = error.row and spot[error.row - 1][0]
        raise InputError(error.problem, file=error.file, row=row, field=error.field) from None
    frame = _frame(times, "", "", prices)
    region = table["armRegionName"].astype(str).str.strip()
    names = table["armSkuName"].astype(str).str.strip().map(azure_type_name)
    return frame.assign(region=region, zone=region, instance_type=names)


def _is_spot(item: Mapping[str, Any]) -> bool:
    """Return whether an item is the hourly spot price of a Linux machine."""
    return (
        "Spot" in str(item.get("skuName") or item.get("meterName") or "")
        and "Windows" not in str(item.get("productName") or "")
        and str(item.get("unitOfMeasure") or "1 Hour").strip().casefold() in ("1 hour", "1/hour")
    )


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
