"""A user's catalogue: a folder with the two tables that come with the package, of what is new or has changed.

`instance_types.csv` has machines, `on_demand_prices.csv` their list prices, each with the day on which it was
first seen. A price that is as it was adds no row.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ebbtide.base.files import write_text
from ebbtide.base.utc import DAY_S
from ebbtide.errors import CloudError, InputError
from ebbtide.market.catalogue import (
    PRICE_FIELDS,
    PRICES_FILE,
    TYPE_FIELDS,
    TYPES_FILE,
    Catalogue,
    InstanceType,
    PriceRows,
    read_instance_types,
    read_list_prices,
    with_own,
)
from ebbtide.market.list_prices.listed import Listed, PriceKey, PriceList

# Two prices are the same if they differ by less: sums of parts are rounded differently.
_SAME = 1e-4


@dataclass(frozen=True)
class Updated:
    """Result of updating the list prices of one cloud.

    Attributes:
        cloud: Name of the cloud.
        prices: Number of list prices that the cloud gave.
        changed: List prices that are new or have changed: before (None: none was known) and now, USD per hour.
        types: Instance types that are new.
        left_out: Names of instance types that were left out, with the reason in words.
        problem: Reason why there is no result, in words; empty: there is one.
    """

    cloud: str
    prices: int = 0
    changed: Mapping[PriceKey, tuple[float | None, float]] = field(default_factory=dict)
    types: Sequence[InstanceType] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def update(
    folder: Path, asked: Sequence[tuple[PriceList, Sequence[str]]], base: Catalogue, now_s: float
) -> list[Updated]:
    """Ask clouds for their list prices, and add what is new or has changed to a user's catalogue.

    What one cloud answers is stored before the next one is asked; one that fails changes nothing.

    Args:
        folder: The user's catalogue; it is made if it does not exist.
        asked: Price lists of clouds, with the regions to ask for.
        base: The catalogue that the user's adds to.
        now_s: The present time, seconds since 1970; changes get its day.

    Returns:
        What was done for each cloud, in their order.

    Raises:
        InputError: The folder holds a table that cannot be read, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError("is a file; a catalogue is a folder with two tables", file=folder)
    done = []
    for source, regions in asked:
        begun = any((folder / name).exists() for name in (TYPES_FILE, PRICES_FILE))
        known = with_own(base, folder) if begun else base
        try:
            listed = source.listed(regions, known)
        except (CloudError, InputError) as error:
            # No credentials are an InputError; what this cloud lacks does not keep others from answering.
            done.append(Updated(source.cloud, problem=str(error)))
            continue
        found = _compared(source.cloud, listed, known, now_s)
        _write(folder, found, now_s)
        done.append(found)
    return done


def _compared(cloud: str, listed: Listed, known: Catalogue, now_s: float) -> Updated:
    changed: dict[PriceKey, tuple[float | None, float]] = {}
    for key, usd in listed.prices.items():
        before = known.listed_usd(key, now_s)
        if before is None or not math.isclose(before, usd, rel_tol=_SAME):
            changed[key] = before, usd
    names = {(entry.cloud, entry.name) for entry in known.instance_types}
    types = [entry for entry in listed.types if (entry.cloud, entry.name) not in names]
    return Updated(cloud, len(listed.prices), changed, types, listed.left_out)


def _write(folder: Path, found: Updated, now_s: float) -> None:
    """Add to the tables, each atomically; machines first, so that every price has its machine."""
    if found.types:
        types = read_instance_types(folder / TYPES_FILE) if (folder / TYPES_FILE).exists() else []
        every = {(entry.cloud, entry.name): entry for entry in [*types, *found.types]}
        write_text(
            folder / TYPES_FILE, _csv(TYPE_FIELDS, [_type_cells(entry) for _, entry in sorted(every.items())])
        )
    if found.changed:
        path = folder / PRICES_FILE
        prices: PriceRows = read_list_prices(path) if path.exists() else {}
        today = datetime.fromtimestamp(now_s // DAY_S * DAY_S, UTC)
        for key, (_, usd) in found.changed.items():
            prices[key] = sorted({**dict(prices.get(key, ())), today: usd}.items())
        rows = [[*key, f"{seen:%Y-%m-%d}", repr(usd)] for key, own in sorted(prices.items()) for seen, usd in own]
        write_text(path, _csv(PRICE_FIELDS, rows))


def _type_cells(entry: InstanceType) -> list[str]:
    cells = (
        entry.cloud,
        entry.name,
        entry.vcpus,
        entry.memory_gib,
        entry.accelerator or "",
        entry.accelerator_count,
        entry.architecture,
    )
    return [str(cell) for cell in cells]


def _csv(fields: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([fields, *rows])
    return text.getvalue()
