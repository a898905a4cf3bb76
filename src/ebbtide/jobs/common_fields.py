"""Fields common to the files of all that is run: markets, budget, deadline and billing; machines of each job."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.job import PositiveFloat, Share
from ebbtide.jobs.parsing import Frozen, validated
from ebbtide.jobs.resources import MachineCount, Resources
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.markets import Market


class Direction(StrEnum):
    """Direction of a metric: whether lower or higher is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class Decides(StrEnum):
    """Cause of the revocation of spot machines."""

    PRICE = "price"  # the price exceeds the max price: EC2 until 2017
    CAPACITY = "capacity"  # capacity runs out: today


class MarketFilter(Frozen):
    """Filter of the markets in which machines may be rented; empty fields do not restrict.

    Attributes:
        clouds: Names of the allowed clouds.
        regions: Names of the allowed regions.
        zones: Names of the allowed zones.
        instance_types: Names of the allowed instance types.
    """

    clouds: list[str] = Field(default_factory=list)
    regions: list[str] = Field(default_factory=list)
    zones: list[str] = Field(default_factory=list)
    instance_types: list[str] = Field(default_factory=list)

    def allows(self, market: Market) -> bool:
        """Return whether machines may be rented in a market."""
        pairs = (
            (self.clouds, market.cloud),
            (self.regions, market.region),
            (self.zones, market.zone),
            (self.instance_types, market.instance_type),
        )
        return all(not allowed or value in allowed for allowed, value in pairs)


class SharedTerms(Frozen):
    """The terms on which a job, or several, are run.

    Attributes:
        markets: Where machines may be rented.
        budget_usd: The most that may be spent, USD.
        deadline_h: Hours from the start by which it should be done.
        decides: Whether price or capacity decides when machines are revoked.
        billing: Name of the billing preset of spot leases.
        policy: The policy that decides, by name, or with parameters; None: the one that suits.
    """

    markets: MarketFilter = Field(default=MarketFilter(), examples=[{"regions": ["us-east-1"]}])
    budget_usd: PositiveFloat | None = Field(default=None, examples=[20])
    deadline_h: PositiveFloat | None = Field(default=None, examples=[12])
    decides: Decides = Field(default=Decides.PRICE, examples=["price"])
    billing: str = Field(default="ec2-second", examples=["ec2-second"])
    policy: AskedPolicy | None = Field(default=None, examples=["reactive"])

    @model_validator(mode="after")
    def _has_a_way_out(self) -> Self:
        if self.decides is Decides.CAPACITY and self.deadline_h is None:
            raise ValueError("decides: capacity needs a deadline_h, by which on-demand machines are the way out")
        return self


class RunTerms(Resources, SharedTerms):
    """The fields that all kinds of jobs have in common, as users write them in YAML.

    Attributes:
        name: Name in tables and tags; by default that of the program.
        machines: How many machines it has; what that means is said by the kind of job.
        share: The part of a machine that it fills, above 0 and at most 1; policies may put others of its run on
            the same machine, if their shares fit. Below 1 it has to train on one machine.
        bucket: Cloud and region of the storage of checkpoints: uploads to it and downloads from it are counted in
            time and cost. None: a checkpoint stays where it was saved; on EC2 the region of the store is found.
    """

    name: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["my-job"])
    machines: MachineCount = Field(default=1, examples=[4])
    share: Share = Field(default=1.0, examples=[0.5])
    bucket: Bucket | None = Field(default=None, examples=[{"cloud": "aws", "region": "us-east-1"}])

    @classmethod
    def parse(cls, content: dict[str, Any], file: str | Path | None = None) -> Self:
        """A job from plain values; errors name `file` and the field.

        Raises:
            InputError: Fields are unknown or out of range; all of them are listed.
        """
        return validated(cls, content, file)
