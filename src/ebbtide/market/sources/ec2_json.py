"""EC2's price history in every form in which people have it, and SpotLake's files, as tables of the price schema.

EC2's own tools print it as JSON, text, a table or YAML, its old tools as text; people keep the records as CSV, as
JSON lines or as lists of pages, and archives of all regions name zones by their ids. SpotLake's files have a row
for each type and zone at one time, with scores beside prices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.errors import InputError
from ebbtide.market.markets import LINUX, PRICE_COLUMNS
from ebbtide.market.sources.cells import parsed_prices, parsed_times
from ebbtide.market.sources.columns import FileCells, is_column_name
from ebbtide.market.sources.contents import content_text
from ebbtide.market.sources.regions import region_of_zone
from ebbtide.market.sources.tables import (
    documents,
    each_page,
    table_of_records,
    table_of_text,
    yaml_documents,
)
from ebbtide.market.sources.validation import wrong_columns

if TYPE_CHECKING:
    import pandas as pd

HISTORY = "SpotPriceHistory"

# By role: EC2's name of the field, and the names of the documented CSV.
_FIELDS = {
    "timestamp": "Timestamp",
    "zone": "AvailabilityZone",
    "instance_type": "InstanceType",
    "product": "ProductDescription",
    "price": "SpotPrice",
}
_CSV = {
    "timestamp": "datetime",
    "instance_type": "instance_type",
    "product": "os",
    "region": "region",
    "price": "price",
}

# What SpotLake writes where nothing is known.
_UNKNOWN = re.compile(r"-1(?:\.0*)?|nan|none|null|n/a", re.IGNORECASE)

# SpotLake's archives name a file by its time in UTC: 2025/06/15/12-00-00.csv.gz.
_NAMED_TIME = re.compile(r"(\d{4})[/-](\d{2})[/-](\d{2})[/T_ -](\d{2})-(\d{2})-(\d{2})\.")


# A time, a zone, a type and a price.
_LEAST_CELLS = 4


def read_ec2_json(path: str | Path, *, timezone: str | None = None, product: str | None = None) -> pd.DataFrame:
    """Read JSON or YAML: records, `{"SpotPriceHistory": [...]}`, lists of either, or several of these in one file.

    Raises:
        InputError: The file is not such JSON or YAML, or an entry lacks a field.
    """
    return price_frame(
        table_of_records(_records(content_text(path), path), path), path, timezone=timezone, product=product
    )


def read_price_table(path: str | Path, *, timezone: str | None = None, product: str | None = None) -> pd.DataFrame:
    """Read rows of text: CSV with any separator, EC2's command lines as text or as a table, archives, SpotLake.

    Args:
        path: Path of the file, compressed or not.
        timezone: Time zone of times without an offset, which are errors if it is None, except in SpotLake's files.
        product: Product of the rows of a table that does not have it.

    Raises:
        InputError: A column is missing or not recognised, or a time or price does not parse.
    """
    return price_frame(table_of_text(content_text(path), path), path, timezone=timezone, product=product)


def ec2_frame(
    entries: Iterable[Mapping[str, Any]], source: str | Path, *, timezone: str | None = None
) -> pd.DataFrame:
    """Entries of the EC2 API as a frame of the price schema, in their own order.

    Raises:
        InputError: An entry lacks a field, or holds a time or price that does not parse.
    """
    return price_frame(table_of_records(entries, source), source, timezone=timezone)


def price_frame(
    table: FileCells, path: str | Path, *, timezone: str | None = None, product: str | None = None
) -> pd.DataFrame:
    """The price schema of a table whose columns have roles, in the order of its rows.

    Raises:
        InputError: A column is missing, a cell is blank, or a time or price does not parse.
    """
    if "on_demand" in table.cells:
        return _spotlake_frame(table, path, timezone)
    table = _with_product(table, path, product)
    cells = _with_all_roles(table, path)
    if cells.empty:
        raise InputError("holds no rows", file=path)
    for role in ("timestamp", "zone", "instance_type", "product", "price"):
        blank = cells[role].isna()
        if blank.any():
            row, name = int(blank.to_numpy().argmax()) + 1, table.names.get(role, _FIELDS[role])
            raise InputError(f"entry has no {name}", file=path, row=row, field=name)
    _require_usd(table, path)
    return _schema(cells, table, path, timezone)


def _records(text: str, path: str | Path) -> list[Any]:
    """The records of all pages."""
    found: list[Any] = []
    is_json = text.lstrip()[:1] in ("{", "[") or not re.match(r"\s*(?:#|---|-\s|\w+:)", text)
    for document in documents(text, path) if is_json else yaml_documents(text, path):
        for page in each_page(document, HISTORY):
            records = page.get(HISTORY) if isinstance(page, Mapping) and HISTORY in page else _of_pandas(page)
            if isinstance(records, Mapping) and sum(is_column_name(str(name)) for name in records) > 1:
                records = [records]
            if isinstance(records, list) and len(records) >= _LEAST_CELLS and not any(map(_is_nested, records)):
                # One row in each line, as `jq -c` prints them.
                records = [records]
            if not isinstance(records, list):
                raise InputError(f"has no list named {HISTORY}", file=path)
            found += records
    return found


def _of_pandas(page: Any) -> Any:
    """The records of a frame that pandas wrote by columns, in two lists, or with a schema; others as they are."""
    if not isinstance(page, Mapping):
        return page
    columns, data = page.get("columns"), page.get("data")
    if isinstance(columns, list) and isinstance(data, list):
        whole = all(isinstance(row, list) and len(row) == len(columns) for row in data)
        return [dict(zip(map(str, columns), row, strict=True)) for row in data] if whole else page
    if isinstance(page.get("schema"), Mapping) and isinstance(data, list):
        return data
    by_column = list(page.values())
    if len(page) < _LEAST_CELLS or not all(isinstance(each, Mapping) for each in by_column):
        return page
    if sum(is_column_name(str(name)) for name in page) < _LEAST_CELLS:
        return page
    if any(each.keys() != by_column[0].keys() for each in by_column):
        return page
    return [{name: column[key] for name, column in page.items()} for key in by_column[0]]


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, list))


def _with_product(table: FileCells, path: str | Path, product: str | None) -> FileCells:
    """The table with the product of all its rows, where it has no column of it and nothing else is missing."""
    has = {*table.cells, *(["zone"] if "region" in table.cells else [])}
    if "product" in has or table.cells.empty or not {"timestamp", "zone", "instance_type", "price"} <= has:
        return table
    if product is None:
        raise InputError(
            "the rows do not say their product: add ProductDescription to --query, or give "
            f"`ebbtide ingest --product {LINUX}` if that is the product of all",
            file=path,
            row=1,
            field="ProductDescription",
        )
    key = [name for name in ("timestamp", "region", "zone", "instance_type") if name in table.cells]
    prices = table.cells[[*key, "price"]].astype("string").drop_duplicates()
    other = prices.duplicated(key)
    if other.any():
        at = int(prices.index[other][0])
        raise InputError(
            "has another price than a row of the same zone, type and time, so that the rows are of several "
            "products; add ProductDescription to --query",
            file=path,
            row=at + 1,
            field=table.names["price"],
        )
    return replace(table, cells=table.cells.assign(product=product))


def _with_all_roles(table: FileCells, path: str | Path) -> pd.DataFrame:
    """The cells with a column for each role that a price needs."""
    cells = table.cells.copy()
    lower = {name.casefold() for name in (*table.names.values(), *table.extra)}
    if "cloud" in cells:
        needed: Mapping[str, str] = dict(
            zip(
                ("timestamp", "cloud", "region", "zone", "instance_type", "product", "price"),
                PRICE_COLUMNS,
                strict=True,
            )
        )
    elif {"datetime", "os"} & lower and "zone" not in cells:
        # The documented CSV names its zones `region`.
        needed = _CSV
    else:
        needed = _FIELDS
    given = {table.names.get(role, name): role for role, name in needed.items() if role in cells}
    missing = [
        name for role, name in needed.items() if role not in cells and not (role == "zone" and "region" in cells)
    ]
    if missing or (needed is _CSV and table.extra):
        names = table.columns
        raise (
            wrong_columns(names, [*given, *missing], path)
            if missing
            else wrong_columns(names, list(_CSV.values()), path)
        )
    if "zone" not in cells:
        cells = cells.rename(columns={"region": "zone"})
    return cells


def _require_usd(table: FileCells, path: str | Path) -> None:
    if "currency" not in table.cells:
        return
    other = table.cells["currency"].notna() & (table.cells["currency"].astype("string").str.upper() != "USD")
    if other.fillna(False).any():
        row = int(other.fillna(False).to_numpy(dtype=bool).argmax())
        value, name = table.cells["currency"].iloc[row], table.names["currency"]
        raise InputError(f"price in {value}; convert it to USD", file=path, row=row + 1, field=name)


def _schema(cells: pd.DataFrame, table: FileCells, path: str | Path, timezone: str | None) -> pd.DataFrame:
    import pandas as pd

    zone = cells["zone"].astype("string").str.strip()
    if "region" in cells:
        region = cells["region"].astype("string").str.strip()
    else:
        region = zone.map({name: region_of_zone(str(name)) for name in zone.unique()})
    names = table.names
    return pd.DataFrame(
        {
            "timestamp": parsed_times(cells["timestamp"], path, names.get("timestamp", "time"), timezone=timezone),
            "cloud": cells["cloud"].astype("string").str.strip() if "cloud" in cells else "aws",
            "region": region,
            "zone": zone,
            "instance_type": cells["instance_type"].astype("string").str.strip(),
            "product": cells["product"].astype("string").str.strip(),
            "price_usd_per_hour": parsed_prices(cells["price"], path, names.get("price", "price")),
        }
    )


def _spotlake_frame(table: FileCells, path: str | Path, timezone: str | None) -> pd.DataFrame:
    """Rows of SpotLake's files of AWS, Azure and Google that have a spot price; -1 and blank cells are none."""
    cells = table.cells.copy()
    for role in ("instance_type", "region", "price"):
        if role not in cells:
            raise InputError(f"has no column of the {role.replace('_', ' ')}, as SpotLake's files have", file=path)
    cloud = "azure" if "tier" in cells else "aws" if "zone" in cells else "gcp"
    if "timestamp" not in cells:
        named = _NAMED_TIME.search(Path(path).as_posix())
        if named is None:
            raise InputError(
                "has no column Time, and its name has no time, as 2025/06/15/12-00-00.csv.gz", file=path
            )
        cells["timestamp"] = "{}-{}-{} {}:{}:{}".format(*named.groups())
    price = cells["price"].astype("string").str.strip()
    given = price.notna() & (price != "") & ~price.str.fullmatch(_UNKNOWN).fillna(True).astype(bool)
    if cloud != "aws":
        # The price is the region's, whatever zone stands beside it.
        cells["zone"] = cells["region"]
    if cloud == "azure":
        cells["instance_type"] = cells["instance_type"].astype("string").str.replace("_", " ")
    # Rows without a price are dropped after the check, so that errors name the file's row numbers.
    cells = cells.assign(
        cloud=cloud, product="Linux" if cloud == "azure" else LINUX, price=price.where(given, "1")
    )
    frame = _schema(cells, table, path, timezone or "UTC")[given].reset_index(drop=True)
    if frame.empty:
        raise InputError("holds no prices", file=path)
    return frame
