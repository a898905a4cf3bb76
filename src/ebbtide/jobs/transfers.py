"""Transfers of data: checkpoints that follow a job to another region, datasets that it needs in another cloud."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ebbtide.market.markets import Place


class Cargo(StrEnum):
    """The kind of data that is transferred."""

    CHECKPOINT = "checkpoint"
    DATASET = "dataset"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of data out of a region to a machine in another.

    Attributes:
        time_s: When the transfer began, seconds since 1970.
        lease_id: Lease of the machine that downloaded the data.
        cargo: The kind of data transferred.
        size_bytes: Size of the data in bytes.
        source: Cloud and region that the data left.
        destination: Cloud and region that the data went to.
    """

    time_s: float
    lease_id: int
    cargo: Cargo
    size_bytes: int
    source: Place
    destination: Place


_REGIONS = ("us-west", "us-east", "europe", "asia")

# DeepSpotCloud, Table I: mean seconds for 1 GB, from a row's region to a column's.
_SECONDS_PER_GB = {
    "us-west": (11.9, 20.4, 16.4, 13.3),
    "us-east": (14.4, 14.8, 12.9, 16.6),
    "europe": (18.1, 24.1, 10.0, 22.3),
    "asia": (13.8, 27.5, 21.0, 10.2),
}

_SLOWEST = max(seconds for row in _SECONDS_PER_GB.values() for seconds in row)

# Prefixes of the clouds' region names, longer ones before shorter ones that they begin with.
_BEGINNINGS = {
    "us-west": "us-west",
    "westus": "us-west",
    "us-gov-west": "us-west",
    "us-": "us-east",
    "eastus": "us-east",
    "southcentralus": "us-east",
    "northcentralus": "us-east",
    "centralus": "us-east",
    "ca-": "us-east",
    "northamerica": "us-east",
    "eu-": "europe",
    "europe": "europe",
    "northeurope": "europe",
    "westeurope": "europe",
    "uk": "europe",
    "france": "europe",
    "germany": "europe",
    "ap-": "asia",
    "asia": "asia",
    "japan": "asia",
    "korea": "asia",
    "eastasia": "asia",
    "southeastasia": "asia",
}


def seconds_per_gb(source: Place, destination: Place) -> float:
    """Mean seconds to transfer 1 GB (DeepSpotCloud, Table I).

    The table has four parts of the world; other regions get its slowest entry.
    """
    origin, target = _part_of(source.region), _part_of(destination.region)
    if origin is None or target is None:
        return _SLOWEST
    return _SECONDS_PER_GB[origin][_REGIONS.index(target)]


def _part_of(region: str) -> str | None:
    return next((part for beginning, part in _BEGINNINGS.items() if region.startswith(beginning)), None)
