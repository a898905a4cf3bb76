"""The instance catalogue: the machine behind each instance type, and its on-demand price where it is known.

The data are in `data/`: `instance_types.csv` and `instance_families.csv` (every type of EC2, Google and Azure of
autumn 2026; in a family each vCPU has the same amount of memory), and `on_demand_prices.csv` (list prices by
region; each row gives the day a price was first seen). Cores, memory and accelerators are from moto (EC2),
kubernetes/autoscaler and Azure/karpenter-provider-azure (Azure) and Cyclenerd/google-cloud-pricing-cost-calculator
(Google), all Apache-2.0. Prices of AWS 2013 to 2017 are from ec2instances.info, MIT; of Azure East US of 2020; of
machines with accelerators from 2022 to 2026 from aws/karpenter-provider-aws (us-east-1) and Cyclenerd, Apache-2.0.
A price that is not there is unknown and never guessed.
"""

from __future__ import annotations

import csv
import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path

from ebbtide.base.files import write_text
from ebbtide.errors import InputError, unknown_name
from ebbtide.market.markets import Market, product_name


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine: its cores, its memory and its accelerators.

    Attributes:
        cloud: Name of the cloud, such as `aws`.
        name: Name that the cloud gives to the type.
        vcpus: Number of virtual CPUs.
        memory_gib: Main memory of the machine, GiB.
        accelerator: Name of the accelerator; None if there is none.
        accelerator_count: Number of accelerators in the machine.
        architecture: Name of the processor's architecture, `x86_64`, `arm64` or `mac`; empty: what the type's name
            says (`architecture_of`).
    """

    cloud: str
    name: str
    vcpus: int
    memory_gib: float
    accelerator: str | None = None
    accelerator_count: int = 0
    architecture: str = ""

    def __post_init__(self) -> None:
        if not self.architecture:
            object.__setattr__(self, "architecture", architecture_of(self.cloud, self.name))


X86_64, ARM64, MAC = "x86_64", "arm64", "mac"

# EC2 writes a g behind the generation (m7g.large, x2gd.medium), Google an a (c4a-standard-4, t2a-standard-1),
# Azure a p among the small letters (D4ps v5). Machines of NVIDIA's Grace have ARM cores, too.
_ARM_NAMES = {
    "aws": re.compile(r"a1\.|[a-z]+\d+[a-z]*g[a-z]*(?:-\w+)?\.|[a-z]\d+e?-gb\d+\."),
    "gcp": re.compile(r"[a-z]\d+a-|a\d+x-"),
    "azure": re.compile(r"[A-Z]+\d+(?:-\d+)?[a-z]*p[a-z]*(?: |$)|.* GB\d+ "),
}


def architecture_of(cloud: str, name: str) -> str:
    """The architecture of a type's processor, by its name: `x86_64`, `arm64`, or `mac` of Apple's machines."""
    if cloud == "aws" and name.startswith("mac"):
        return MAC
    arm = _ARM_NAMES.get(cloud)
    return ARM64 if arm and arm.match(name) else X86_64


@dataclass(frozen=True, slots=True)
class OnDemandPrice:
    """A list price and the day on which it was first seen."""

    usd_per_hour: float
    first_seen: datetime


@dataclass(frozen=True, slots=True)
class _Price:
    first_seen_s: float
    usd_per_hour: float


class Catalogue:
    """Instance types by (cloud, name), and their on-demand prices by (cloud, region, type, product)."""

    def __init__(
        self,
        types: Iterable[InstanceType],
        prices: Mapping[tuple[str, str, str, str], Iterable[tuple[datetime, float]]],
    ) -> None:
        self._types = {(entry.cloud, entry.name): entry for entry in types}
        self._prices = {
            key: sorted(
                (_Price(seen.timestamp(), usd) for seen, usd in rows), key=lambda price: price.first_seen_s
            )
            for key, rows in prices.items()
        }

    def __contains__(self, market: Market) -> bool:
        return (market.cloud, market.instance_type) in self._types

    def __add__(self, types: Iterable[InstanceType]) -> Catalogue:
        """This catalogue with more instance types; they replace those of the same name."""
        added = Catalogue([*self._types.values(), *types], {})
        added._prices = self._prices
        return added

    def with_list_prices(
        self, prices: Mapping[tuple[str, str, str, str], Iterable[tuple[datetime, float]]]
    ) -> Catalogue:
        """This catalogue with more list prices.

        Args:
            prices: By cloud, region, instance type and product: when a price was first seen, and USD per hour.
        """
        added = Catalogue(self._types.values(), prices)
        for key, rows in self._prices.items():
            both = {row.first_seen_s: row for row in [*rows, *added._prices.get(key, ())]}
            added._prices[key] = [both[seen_s] for seen_s in sorted(both)]
        return added

    @classmethod
    def read(cls, path: str | Path) -> Catalogue:
        """A catalogue from a file that `write` made.

        Raises:
            InputError: The file cannot be read, or is no catalogue.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            types = [InstanceType(**values) for values in content["instance_types"]]
            prices = {
                (cloud, region, name, product): [
                    (datetime.fromtimestamp(seen_s, UTC), usd) for seen_s, usd in rows
                ]
                for cloud, region, name, product, rows in content["on_demand_prices"]
            }
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=path) from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"is no catalogue of instance types: {error}", file=path) from None
        return cls(types, prices)

    def write(self, path: str | Path) -> None:
        """Write instance types and list prices as JSON, atomically."""
        content = {
            "instance_types": [asdict(entry) for entry in self.instance_types],
            "on_demand_prices": [
                [*key, [[price.first_seen_s, price.usd_per_hour] for price in rows]]
                for key, rows in self._prices.items()
            ],
        }
        write_text(path, json.dumps(content) + "\n")

    @property
    def instance_types(self) -> tuple[InstanceType, ...]:
        return tuple(self._types.values())

    def instance_type(self, cloud: str, name: str) -> InstanceType:
        """The instance type of that name.

        Raises:
            InputError: It is not in the catalogue.
        """
        try:
            return self._types[cloud, name]
        except KeyError:
            names = [known for of, known in self._types if of == cloud]
            if not names:
                raise unknown_name("cloud", cloud, {of for of, _ in self._types}) from None
            raise unknown_name(f"{cloud} instance type", name, names) from None

    def machine_of(self, market: Market) -> InstanceType:
        """The instance type that a market rents.

        Raises:
            InputError: It is not in the catalogue.
        """
        return self.instance_type(market.cloud, market.instance_type)

    def on_demand(self, market: Market, time_s: float) -> OnDemandPrice | None:
        """The on-demand list price of `market` at `time_s`, or None where it is unknown.

        This is the latest price first seen by then; before the first one, the first. A price is never taken from
        another region or product.
        """
        product = product_name(market.cloud, market.product)
        row = self._row((market.cloud, market.region, market.instance_type, product), time_s)
        return OnDemandPrice(row.usd_per_hour, datetime.fromtimestamp(row.first_seen_s, UTC)) if row else None

    def listed_usd(self, key: tuple[str, str, str, str], time_s: float) -> float | None:
        """The list price of a cloud, region, instance type and product at a time, USD per hour; None: unknown."""
        row = self._row(key, time_s)
        return row.usd_per_hour if row else None

    def _row(self, key: tuple[str, str, str, str], time_s: float) -> _Price | None:
        rows = self._prices.get(key)
        if not rows:
            return None
        return rows[max(bisect_right(rows, time_s, key=lambda price: price.first_seen_s) - 1, 0)]

    def on_demand_usd_per_hour(self, market: Market, time_s: float) -> float | None:
        """The list price of `on_demand` in USD per hour, or None where it is unknown."""
        price = self.on_demand(market, time_s)
        return price.usd_per_hour if price else None

    def list_prices(self, time_s: float) -> Callable[[Market], float | None]:
        """A function from market to list price in USD per hour (None where unknown), at one time."""
        return lambda market: self.on_demand_usd_per_hour(market, time_s)


# The tables of the package, and of a folder of a user's.
TYPES_FILE, PRICES_FILE = "instance_types.csv", "on_demand_prices.csv"
_NEEDED_TYPE_FIELDS = ("cloud", "instance_type", "vcpus", "memory_gib", "accelerator", "accelerator_count")
TYPE_FIELDS = (*_NEEDED_TYPE_FIELDS, "architecture")

# The package's families: a name with `{}` where the number of vCPUs goes, or EC2's word for it.
_FAMILIES_FILE, _FAMILY_FIELDS = "instance_families.csv", ("cloud", "name", "vcpus", "gib_per_vcpu")
PRICE_FIELDS = ("cloud", "region", "instance_type", "product", "first_seen", "on_demand_usd_per_hour")

# By cloud, region, instance type and product: when a price was first seen, and USD per hour.
PriceRows = dict[tuple[str, str, str, str], list[tuple[datetime, float]]]


def read_instance_types(path: str | Path) -> list[InstanceType]:
    """Instance types from a CSV file with the columns of the embedded `instance_types.csv`.

    Raises:
        InputError: A column is missing or a number does not parse; names file, row and field.
    """
    return _instance_types(_text(path), str(path))


def read_list_prices(path: str | Path) -> PriceRows:
    """List prices from a CSV file with the columns of the embedded `on_demand_prices.csv`.

    Raises:
        InputError: A column is missing, or a day or price does not parse; names file, row and field.
    """
    return _list_prices(_text(path), str(path))


def with_own(base: Catalogue, path: str | Path) -> Catalogue:
    """A catalogue with a user's instance types and list prices; they go before those of the same name.

    Args:
        base: The catalogue that the user's adds to.
        path: A CSV file of instance types, or a folder with tables like the package's, as `ebbtide catalogue
            update` makes it.

    Raises:
        InputError: There is neither, or a table cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return base + read_instance_types(path)
    types, prices = path / TYPES_FILE, path / PRICES_FILE
    if not types.exists() and not prices.exists():
        raise InputError(f"has neither {TYPES_FILE} nor {PRICES_FILE}", file=path)
    found = base + read_instance_types(types) if types.exists() else base
    return found.with_list_prices(read_list_prices(prices)) if prices.exists() else found


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None


def _instance_types(text: str, file: str) -> list[InstanceType]:
    types = []
    for number, row in enumerate(_rows(text, file, _NEEDED_TYPE_FIELDS), 1):
        numbers = {name: _number(row, name, file, number) for name in ("vcpus", "memory_gib", "accelerator_count")}
        types.append(
            InstanceType(
                row["cloud"],
                row["instance_type"],
                int(numbers["vcpus"]),
                numbers["memory_gib"],
                row["accelerator"] or None,
                int(numbers["accelerator_count"]),
                _architecture(row.get("architecture") or "", file, number),
            )
        )
    return types


def _architecture(text: str, file: str, number: int) -> str:
    if text not in ("", X86_64, ARM64, MAC):
        problem = f"{text!r:.40} is no architecture; write {X86_64}, {ARM64} or {MAC}, or leave it blank"
        raise InputError(problem, file=file, row=number, field="architecture")
    return text


def _families(text: str, file: str) -> Iterator[InstanceType]:
    for row in _rows(text, file, _FAMILY_FIELDS):
        for vcpus in map(int, row["vcpus"].split()):
            size = _ec2_size(vcpus) if row["cloud"] == "aws" else str(vcpus)
            memory_gib = round(vcpus * float(row["gib_per_vcpu"]), 2)
            yield InstanceType(row["cloud"], row["name"].format(size), vcpus, memory_gib)


def _ec2_size(vcpus: int) -> str:
    """EC2's word for a number of vCPUs: large has 2, 2xlarge 8."""
    return {1: "medium", 2: "large", 4: "xlarge"}.get(vcpus) or f"{vcpus // 4}xlarge"


def _list_prices(text: str, file: str) -> PriceRows:
    prices: PriceRows = defaultdict(list)
    for number, row in enumerate(_rows(text, file, PRICE_FIELDS), 1):
        try:
            seen = datetime.fromisoformat(row["first_seen"]).replace(tzinfo=UTC)
        except (TypeError, ValueError):
            problem = f"{row['first_seen']!r} is not a day; write for example 2026-11-26"
            raise InputError(problem, file=file, row=number, field="first_seen") from None
        usd = _number(row, "on_demand_usd_per_hour", file, number)
        if not (usd > 0.0 and math.isfinite(usd)):
            problem = f"{usd:g} is no price; it must be above 0"
            raise InputError(problem, file=file, row=number, field="on_demand_usd_per_hour")
        prices[row["cloud"], row["region"], row["instance_type"], row["product"]].append((seen, usd))
    return dict(prices)


def _rows(text: str, file: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    reader = csv.DictReader(text.splitlines())
    missing = [field for field in fields if field not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"has no column {missing[0]!r}; needs {', '.join(fields)}", file=file)
    return iter(reader)


def _number(row: Mapping[str, str], field: str, file: str, number: int) -> float:
    try:
        return float(row[field] or 0)
    except ValueError:
        raise InputError(f"{row[field]!r} is not a number", file=file, row=number, field=field) from None


def _embedded(name: str) -> str:
    return resources.files("ebbtide.market").joinpath("data", name).read_text(encoding="utf-8")


@cache
def default_catalogue() -> Catalogue:
    """The catalogue that ships with Ebbtide."""
    types = [
        *_instance_types(_embedded(TYPES_FILE), TYPES_FILE),
        *_families(_embedded(_FAMILIES_FILE), _FAMILIES_FILE),
    ]
    return Catalogue(types, _list_prices(_embedded(PRICES_FILE), PRICES_FILE))
