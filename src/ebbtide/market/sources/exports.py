"""Exports of other people: the Kaggle record of EC2 prices, Azure's price sheets and its Retail Prices API.

CSV files are read as text: no cell is converted before its column is known.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from ebbtide._input_files import read_json, read_text
from ebbtide.errors import InputError
from ebbtide.market.sources.ec2_json import region_of_zone
from ebbtide.market.sources.validation import parsed_prices, parsed_times, wrong_columns

# Three months of a region are about 100 MiB.
_MAX_BYTES = 2 << 30


def read_csv_text(path: str | Path, *, header: bool = True) -> pd.DataFrame:
    """The cells of a CSV file as text; blank ones are missing values.

    Args:
        path: Path of the CSV file.
        header: Whether the first line names the columns; if not, they are numbered from 0.

    Raises:
        InputError: The file cannot be read (`input_files.read_text`), holds nothing, or has a row with more cells
            than its first.
    """
    text = read_text(path, max_bytes=_MAX_BYTES)
    if not text.strip():
        raise InputError("holds nothing", file=path)
    try:
        # Without index_col=False, one cell too many in a row would shift all columns by one.
        table = pd.read_csv(
            io.StringIO(text), dtype="string", skipinitialspace=True, header=0 if header else None, index_col=False
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise InputError(f"is not a CSV file: {error}", file=path) from None
    return table


_COLUMNS = ("datetime", "instance_type", "os", "region", "price")


def read_kaggle_csv(path: str | Path, *, timezone: str | None = None) -> pd.DataFrame:
    """Read the CSV, whose `region` column holds the availability zone.

    Without a header line the columns are in the documented order; with one they may be in any order.

    Args:
        path: Path of the CSV file.
        timezone: Time zone of times without an offset, which are errors if it is None.

    Raises:
        InputError: A column is missing or unknown, or a time or price does not parse.
    """
    table = _named(read_csv_text(path, header=False), path)
    if table.empty:
        raise InputError("holds no rows", file=path)
    zone = table["region"].str.strip()
    return pd.DataFrame(
        {
            "timestamp": parsed_times(table["datetime"], path, "datetime", timezone=timezone),
            "cloud": "aws",
            "region": zone.map({name: region_of_zone(str(name)) for name in zone.dropna().unique()}),
            "zone": zone,
            "instance_type": table["instance_type"].str.strip(),
            "product": table["os"].str.strip(),
            "price_usd_per_hour": parsed_prices(table["price"], path, "price"),
        }
    )


def _named(cells: pd.DataFrame, path: str | Path) -> pd.DataFrame:
    """The rows below the header, if there is one, with the documented column names."""
    first = [str(cell).strip().lower() for cell in cells.iloc[0].fillna("")]
    if any(cell in _COLUMNS for cell in first):
        repeated = next((name for name in first if first.count(name) > 1), None)
        if repeated is not None:
            raise InputError("two columns have this name", file=path, field=repeated or "(blank)")
        if set(first) != set(_COLUMNS):
            raise wrong_columns(first, _COLUMNS, path)
        return cells.iloc[1:].set_axis(first, axis="columns").reset_index(drop=True)
    if not any(character.isdigit() for character in first[0]):
        # No known name and no time: a header with unknown names.
        raise InputError(
            f"its first line is not recognised as a header: {', '.join(first)[:200]}; "
            f"needed are {', '.join(_COLUMNS)}",
            file=path,
        )
    if len(first) != len(_COLUMNS):
        raise InputError(
            f"has no header and {len(first)} columns; needed are {', '.join(_COLUMNS)}", file=path, row=1
        )
    return cells.set_axis(list(_COLUMNS), axis="columns")


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
    path = Path(path)
    region = region or path.stem.replace("_", "-")
    sheet = read_csv_text(path)
    if not len(sheet.columns) or sheet.columns[0].strip().lower() != "date":
        raise InputError(f"has no first column 'Date'; it has {sheet.columns[0]!r}", file=path, field="Date")
    if sheet.empty:
        raise InputError("holds no rows", file=path)
    dates = parsed_times(sheet.iloc[:, 0], path, "Date", timezone=timezone)
    frames = []
    for name in sheet.columns[1:]:
        cells = sheet[name].str.strip()
        given = cells.notna() & (cells != "") & (cells != "-")
        # Blank cells are dropped after the check, so that errors name the sheet's row numbers.
        prices = parsed_prices(cells.where(given, "0"), path, name)
        frames.append(_frame(dates[given], region, name.strip(), prices[given]))
    if not frames or not sum(map(len, frames)):
        raise InputError("holds no prices", file=path)
    return pd.concat(frames, ignore_index=True)


def read_azure_json(path: str | Path) -> pd.DataFrame:
    """Read pages of the Retail Prices API (`{"Items": [...]}`), keeping Linux spot virtual machines.

    Raises:
        InputError: The file is not such JSON, or an item lacks a field.
    """
    answer = read_json(path)
    items = answer.get("Items") if isinstance(answer, dict) else None
    if not isinstance(items, list):
        raise InputError("is not an answer of the Retail Prices API: it has no list named Items", file=path)
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise InputError("item is not a record of names and values", file=path, row=number, field="Items")
    spot = [
        (number, item)
        for number, item in enumerate(items, 1)
        if "Spot" in str(item.get("skuName", "")) and "Windows" not in str(item.get("productName", ""))
    ]
    if not spot:
        raise InputError("holds no Linux spot prices (skuName with 'Spot')", file=path, field="skuName")
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
