"""The widely used Kaggle record of EC2 prices: `datetime,instance_type,os,region,price` (SpotTune IV-A1)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ebbtide.errors import InputError
from ebbtide.market.sources.ec2_json import region_of_zone
from ebbtide.market.sources.validation import parsed_prices, parsed_times

_COLUMNS = ("datetime", "instance_type", "os", "region", "price")


def read_kaggle_csv(path: str | Path, *, timezone: str | None = None) -> pd.DataFrame:
    """Read the CSV; what it calls region is the availability zone. The header line may be missing.

    Args:
        path: The file.
        timezone: Of times written without an offset; without it they are errors.

    Raises:
        InputError: A column is missing or unknown, or a time or price does not parse.
    """
    try:
        head = pd.read_csv(path, nrows=1, header=None, dtype="string")
        named = str(head.iloc[0, 0]).strip().lower() == _COLUMNS[0]
        table = pd.read_csv(
            path, dtype="string", skipinitialspace=True, header=0 if named else None,
            names=None if named else list(_COLUMNS[: head.shape[1]]),
        )  # fmt: skip
    except FileNotFoundError:
        raise InputError("there is no such file", file=path) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(f"is not such a CSV file: {error}", file=path) from None
    table.columns = pd.Index([str(name).strip().lower() for name in table.columns])
    for name in _COLUMNS:
        if name not in table.columns:
            raise InputError(f"has no column {name!r}; needs {', '.join(_COLUMNS)}", file=path, field=name)
    for name in table.columns:
        if name not in _COLUMNS:
            raise InputError(f"unknown column {name!r}; needs {', '.join(_COLUMNS)}", file=path, field=name)
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
