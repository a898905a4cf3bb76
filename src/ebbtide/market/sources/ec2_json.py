"""The EC2 API's price history as JSON: what `aws ec2 describe-spot-price-history` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ebbtide._input_files import MAX_JSON_BYTES, json_error, read_text
from ebbtide.errors import InputError
from ebbtide.market.sources.validation import parsed_prices, parsed_times

_FIELDS = ("Timestamp", "AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice")


def read_ec2_json(path: str | Path, *, timezone: str | None = None) -> pd.DataFrame:
    """Read `{"SpotPriceHistory": [...]}`, the bare list, or several such documents in one file.

    Raises:
        InputError: The file is not such JSON, or an entry lacks a field.
    """
    text = read_text(path, max_bytes=MAX_JSON_BYTES)
    entries: list[Mapping[str, Any]] = []
    for document in _documents(text, path):
        found = document.get("SpotPriceHistory") if isinstance(document, dict) else document
        if not isinstance(found, list):
            raise InputError("has no list named SpotPriceHistory", file=path)
        entries += found
    return ec2_frame(entries, path, timezone=timezone)


def ec2_frame(
    entries: Iterable[Mapping[str, Any]], source: str | Path, *, timezone: str | None = None
) -> pd.DataFrame:
    """Entries of the EC2 API as a frame of the price schema, in their own order.

    Raises:
        InputError: An entry lacks a field, or holds a time or price that does not parse.
    """
    rows = list(entries)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise InputError("entry is not a record of names and values", file=source, row=number)
        for name in _FIELDS:
            value = row.get(name)
            if value in (None, ""):
                raise InputError(f"entry has no {name}", file=source, row=number, field=name)
            if isinstance(value, (Mapping, list)):
                raise InputError("is not a single value", file=source, row=number, field=name)
    if not rows:
        raise InputError("holds no prices", file=source)
    table = pd.DataFrame(rows, columns=list(_FIELDS))
    zone = table["AvailabilityZone"].astype(str)
    return pd.DataFrame(
        {
            "timestamp": parsed_times(table["Timestamp"], source, "Timestamp", timezone=timezone),
            "cloud": "aws",
            "region": zone.map({name: region_of_zone(name) for name in zone.unique()}),
            "zone": zone,
            "instance_type": table["InstanceType"].astype(str),
            "product": table["ProductDescription"].astype(str),
            "price_usd_per_hour": parsed_prices(table["SpotPrice"], source, "SpotPrice"),
        }
    )


def region_of_zone(zone: str) -> str:
    """The AWS region of an availability zone: us-east-1a is in us-east-1, us-west-2-lax-1a in us-west-2."""
    match = re.match(r"[a-z]{2}(?:-[a-z]+)+-\d+", zone)
    return match.group() if match else zone


def _documents(text: str, path: str | Path) -> list[Any]:
    decoder, documents, position = json.JSONDecoder(), [], _after_blanks(text, 0)
    while position < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise json_error(error, path) from None
        documents.append(document)
        position = _after_blanks(text, position)
    return documents


def _after_blanks(text: str, position: int) -> int:
    """Where the next document begins. The rest is not copied: there may be one document per line."""
    found = re.compile(r"\s*").match(text, position)
    return found.end() if found else position
