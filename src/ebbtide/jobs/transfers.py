"""Transfers of data: checkpoints that follow a job to another region, or go to the bucket that keeps them and
back; datasets that a job needs in another cloud."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from ebbtide.jobs.parsing import Frozen
from ebbtide.market.egress import clouds_with_egress
from ebbtide.market.markets import Place


class Cargo(StrEnum):
    """The kind of data that is transferred."""

    CHECKPOINT = "checkpoint"
    DATASET = "dataset"


class Bucket(Frozen):
    """Place of the storage of a job's checkpoints: uploaded from a machine, and downloaded to the next one.

    Attributes:
        cloud: Cloud of the storage; its egress prices are charged for downloads to other regions.
        region: Region of the storage, by the cloud's own name.
    """

    cloud: str = Field(examples=["aws"])
    region: Annotated[str, Field(min_length=1, pattern=r"^\S+$")] = Field(examples=["us-east-1"])

    @field_validator("cloud")
    @classmethod
    def _has_egress_prices(cls, cloud: str) -> str:
        known = clouds_with_egress()
        if cloud not in known:
            raise ValueError(f"{cloud!r} has no egress prices here: write one of {', '.join(known)}")
        return cloud

    @property
    def place(self) -> Place:
        """Its cloud and region."""
        return Place(self.cloud, self.region)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of data from one region to another, to a machine or from one.

    Attributes:
        time_s: When a download began, or an upload was complete, seconds since 1970.
        lease_id: Lease of the machine that downloaded or uploaded the data.
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
