"""Fields common to the files of all jobs that are run: machines, markets, budget, deadline and billing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.job import PositiveFloat, Share
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.resources import MachineCount, Resources
from ebbtide.jobs.sweep import Decides, MarketFilter
from ebbtide.jobs.transfers import Bucket


class RunTerms(Resources):
    """The fields that all kinds of jobs have in common, as users write them in YAML.

    Attributes:
        name: Name in tables and tags; by default that of the program.
        machines: How many machines it has; what that means is said by the kind of job.
        share: The part of a machine that it fills, above 0 and at most 1; policies may put others of its run on
            the same machine, if their shares fit. Below 1 it has to train on one machine.
        markets: Where machines may be rented.
        budget_usd: The most that may be spent, USD.
        deadline_h: Hours from the start by which it should be done.
        decides: Whether price or capacity decides when machines are revoked.
        billing: Name of the billing preset of spot leases.
        bucket: Cloud and region of the storage of checkpoints: uploads to it and downloads from it are counted in
            time and cost. None: a checkpoint stays where it was saved; on EC2 the region of the store is found.
        policy: The policy that decides, by name, or with parameters; None: the one that suits.
    """

    name: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["my-job"])
    machines: MachineCount = Field(default=1, examples=[4])
    share: Share = Field(default=1.0, examples=[0.5])
    markets: MarketFilter = Field(default=MarketFilter(), examples=[{"regions": ["us-east-1"]}])
    budget_usd: PositiveFloat | None = Field(default=None, examples=[20])
    deadline_h: PositiveFloat | None = Field(default=None, examples=[12])
    decides: Decides = Field(default=Decides.PRICE, examples=["price"])
    billing: str = Field(default="ec2-second", examples=["ec2-second"])
    bucket: Bucket | None = Field(default=None, examples=[{"cloud": "aws", "region": "us-east-1"}])
    policy: AskedPolicy | None = Field(default=None, examples=["reactive"])

    @classmethod
    def parse(cls, content: dict[str, Any], file: str | Path | None = None) -> Self:
        """A job from plain values; errors name `file` and the field.

        Raises:
            InputError: Fields are unknown or out of range; all of them are listed.
        """
        return validated(cls, content, file)
