"""The widely used Kaggle record of EC2 prices: `datetime,instance_type,os,region,price` (SpotTune IV-A1)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ebbtide.errors import InputError
from ebbtide.market.sources.ec2_json import region_of_zone
from ebbtide.market.sources.exports import read_csv_text
from ebbtide.market.sources.validation import parsed_prices, parsed_times, wrong_columns

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
