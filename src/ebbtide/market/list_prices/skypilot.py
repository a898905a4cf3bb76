"""Tables of machines and prices as SkyPilot publishes them (skypilot-catalog): a CSV file a cloud.

A row is a machine in a region or zone: InstanceType, vCPUs, MemoryGiB, AcceleratorName, AcceleratorCount, Price
and SpotPrice (USD per hour; empty: it is not offered so), Region and, for some, AvailabilityZone and GpuInfo.
"""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.base.utc import iso
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, InstanceType
from ebbtide.market.list_prices.listed import Listed, PriceKey
from ebbtide.market.markets import LINUX, PRICE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = ("InstanceType", "vCPUs", "MemoryGiB", "Price", "Region")

# Of Google's machines with accelerators a table has the cores and the memory; accelerators are rows of their own.
_WITH_ACCELERATORS = re.compile(r"(?:a|g|ct)\d")
_PRICED_APART = (
    "the table's price is without its accelerators; `ebbtide catalogue update --gcp REGION` has the whole price"
)


@dataclass(frozen=True)
class _Row:
    number: int
    name: str
    region: str
    zone: str
    vcpus: float | None
    memory_gib: float | None
    accelerator: str
    accelerator_count: float
    usd: float | None
    spot_usd: float | None


@dataclass(frozen=True)
class SkypilotTable:
    """A table that was read: a price list that asks nobody.

    Attributes:
        cloud: Name of the cloud, as in markets.
        rows: Its rows, in order.
    """

    cloud: str
    rows: Sequence[_Row] = field(repr=False)

    @classmethod
    def read(cls, path: str | Path, cloud: str) -> SkypilotTable:
        """Read a table.

        Args:
            path: The CSV file.
            cloud: Name that its cloud is to have in markets.

        Raises:
            InputError: It cannot be read; a column is missing; a cell is no number. Names file, row and field.
        """
        if not re.fullmatch(r"[a-z][a-z0-9-]*", cloud):
            raise InputError(f"{cloud!r:.40} is no name of a cloud; write for example lambda, in lower case")
        try:
            with open(path, encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
                if missing:
                    needs = ", ".join(_NEEDED)
                    raise InputError(f"has no column {missing[0]!r}; a table of SkyPilot has {needs}", file=path)
                rows = [_row(cells, number, path) for number, cells in enumerate(reader, 1)]
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=path) from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"is no CSV file: {error}", file=path) from None
        if not rows:
            raise InputError("has no rows", file=path)
        return cls(cloud, rows)

    def listed(self, regions: Sequence[str], known: Catalogue) -> Listed:
        """List prices and instance types of the table.

        Args:
            regions: Names of regions; none: all.
            known: Known machines; accelerators get the names that they have there.
        """
        left_out: dict[str, str] = {}
        types: dict[str, InstanceType] = {}
        prices: dict[PriceKey, float] = {}
        names = _known_accelerators(known.instance_types)
        for row in self._machines():
            reason = self._reason(row, known)
            if reason:
                left_out.setdefault(row.name, reason)
            elif not regions or row.region in regions:
                types.setdefault(row.name, self._type(row, names))
                if row.usd is not None:
                    key = (self.cloud, row.region, row.name, LINUX)
                    # Where zones differ, none costs more than is said.
                    prices[key] = max(prices.get(key, 0.0), row.usd)
        return Listed(prices, tuple(types.values()), left_out)

    def spot_prices(self, known: Catalogue, time_s: float) -> pd.DataFrame:
        """Its spot prices in the price schema, as of a time (seconds since 1970): those of the machines listed."""
        import pandas as pd

        when = pd.Timestamp(iso(time_s))
        rows = {
            (row.region, row.zone, row.name): row.spot_usd
            for row in self._machines()
            if row.spot_usd is not None and not self._reason(row, known)
        }
        return pd.DataFrame(
            [(when, self.cloud, region, zone, name, LINUX, usd) for (region, zone, name), usd in rows.items()],
            columns=list(PRICE_COLUMNS),
        )

    def _machines(self) -> Iterable[_Row]:
        """Rows of machines; of Google's, some are accelerators alone."""
        return (row for row in self.rows if row.name)

    def _reason(self, row: _Row, known: Catalogue) -> str:
        """Reason why a machine is left out, in words; empty: it is not left out."""
        if not row.region:
            return "no region"
        if not row.vcpus or not row.memory_gib:
            return "no number of cores, or no memory"
        if row.vcpus % 1 or row.accelerator_count % 1:
            return "a part of a core or of an accelerator"
        if self.cloud == "gcp" and not row.accelerator:
            own = {entry.name for entry in known.instance_types if entry.cloud == "gcp" and entry.accelerator}
            if row.name in own or _WITH_ACCELERATORS.match(row.name):
                return _PRICED_APART
        return ""

    def _type(self, row: _Row, names: Mapping[str, str]) -> InstanceType:
        accelerator = names.get(row.accelerator.casefold(), row.accelerator) or None
        assert row.vcpus is not None
        assert row.memory_gib is not None
        return InstanceType(
            self.cloud, row.name, int(row.vcpus), row.memory_gib, accelerator, int(row.accelerator_count)
        )


def _row(cells: Mapping[str, str | None], number: int, path: str | Path) -> _Row:
    def text(name: str) -> str:
        return (cells.get(name) or "").strip()

    def amount(name: str, *, is_price: bool = False) -> float | None:
        if not text(name):
            return None
        try:
            value = float(text(name))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0.0):
            what = "price in USD per hour" if is_price else "number"
            raise InputError(f"{text(name)!r:.40} is not a {what}", file=path, row=number, field=name)
        # What costs nothing is not offered.
        return (value or None) if is_price else value

    region = text("Region")
    name = text("AcceleratorName")
    maker = _maker(text("GpuInfo"))
    return _Row(
        number,
        text("InstanceType"),
        region,
        text("AvailabilityZone") or region,
        amount("vCPUs"),
        amount("MemoryGiB"),
        f"{maker} {name}" if maker and name else name,
        amount("AcceleratorCount") or 0.0,
        amount("Price", is_price=True),
        amount("SpotPrice", is_price=True),
    )


def _maker(info: str) -> str:
    """The maker of an accelerator, where GpuInfo names it; else nothing."""
    try:
        gpus = ast.literal_eval(info)["Gpus"]
        return str(gpus[0].get("Manufacturer") or "")
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, AttributeError):
        return ""


def _known_accelerators(types: Iterable[InstanceType]) -> dict[str, str]:
    """The known name of an accelerator by its name without the maker's, in lower case."""
    return {
        entry.accelerator.partition(" ")[2].casefold(): entry.accelerator
        for entry in types
        if entry.accelerator and " " in entry.accelerator
    }
