"""Groups of options of `ebbtide cookbook`: the market, and how to solve, charge and rent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError, unknown_name
from ebbtide.market.billing import ON_DEMAND_HOURLY, Billing, billing_preset
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

if TYPE_CHECKING:
    from ebbtide.forecasts.price_chain import PriceChain
    from ebbtide.policies.api.protocol import Policy
    from ebbtide.policies.cookbook.cookbook import Cookbook
    from ebbtide.policies.cookbook.problem import ChargeModel


@dataclass(frozen=True)
class PricedMarket:
    """The market of a cookbook and its prices."""

    prices: Annotated[Path, typer.Option(help="A Parquet file of prices.")]
    market: Annotated[str, typer.Option(metavar="NAME", help="The market, such as 'us-east-1a c3.xlarge'.")]

    def read(self, catalogue: Catalogue) -> tuple[PriceHistory, Market]:
        """Read the prices of all markets, and find the market.

        Raises:
            InputError: The file cannot be read, or has no such market.
        """
        history = PriceHistory.read(self.prices, catalogue)
        for market in history:
            if str(market) == self.market:
                return history, market
        raise unknown_name("market", self.market, [str(market) for market in history])


@dataclass(frozen=True)
class PastMarket(PricedMarket):
    """The market that a cookbook is solved for."""

    prices: Annotated[Path, typer.Option(help="A Parquet file of prices: the market's past.")]


@dataclass(frozen=True)
class RecordedMarket(PricedMarket):
    """The market that a cookbook is run on."""

    prices: Annotated[Path, typer.Option(help="A Parquet file of prices to run it on.")]


@dataclass(frozen=True)
class Solving:
    """Options for the size and the objective of a cookbook."""

    most: Annotated[int, typer.Option(min=1, max=65_000, help="Most machines at once.")] = 100
    gamma: Annotated[float, typer.Option(min=0.0, help="Weight of the standard deviation of the cost.")] = 0.1
    unit: Annotated[float, typer.Option(metavar="HOURS", help="Resolution of remaining work, machine-hours.")] = (
        1.0
    )


@dataclass(frozen=True)
class Charging:
    """Options for charging the machines of a cookbook."""

    on_demand: Annotated[
        float | None,
        typer.Option(metavar="USD", help="On-demand price per hour; if given, on-demand machines are used, too."),
    ] = None
    by_hour: Annotated[bool, typer.Option("--by-hour", help="Charge whole hours at the price at their start.")] = (
        False
    )
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Decide this long ahead; with --by-hour.")
    ] = 600.0

    def charges(self, chain: PriceChain, start_s: float, deadline_h: int) -> ChargeModel:
        """Make the charges of a machine by hour and price.

        Args:
            chain: Model of the market's prices.
            start_s: Start of the workflow, seconds since 1970.
            deadline_h: Hours from the start to the deadline.
        """
        from ebbtide.policies.cookbook.problem import ChargeModel

        ahead = round(self.delay / chain.tick_s) if self.by_hour else None
        decided_s = start_s - (ahead or 0) * chain.tick_s
        charges = ChargeModel(chain.prices, *chain.steps(decided_s, deadline_h, HOUR_S, charged_at=ahead))
        return charges if self.on_demand is None else charges.with_on_demand(self.on_demand)


class BidsChoice(StrEnum):
    """Choice of the bids for machines."""

    SKYLINE = "skyline"
    INFINITY = "infinity"


@dataclass(frozen=True)
class Renting:
    """Options for renting the machines of a cookbook."""

    billing: Annotated[str, typer.Option(help="Billing rule of the machines.")] = "per-second"
    strict: Annotated[
        bool, typer.Option("--strict", help="Ask the cookbook only at the beginning of each step.")
    ] = False
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Time from the request for a machine to its start.")
    ] = 0.0
    bids: Annotated[BidsChoice, typer.Option(help="How to bid where whole periods are charged.")] = (
        BidsChoice.SKYLINE
    )
    on_demand: Annotated[
        bool, typer.Option("--on-demand", help="Also rent on-demand machines while spot costs more.")
    ] = False

    @property
    def by_hour(self) -> bool:
        """True if whole hours are charged."""
        return billing_preset(self.billing).period_s >= HOUR_S

    @property
    def rule(self) -> Billing:
        """The billing rule; if spot machines are charged by whole hours, so are on-demand machines."""
        rule = billing_preset(self.billing)
        return replace(rule, on_demand=ON_DEMAND_HOURLY) if self.by_hour else rule

    def policy(self, book: Cookbook, market: Market) -> Policy:
        """Make the policy that follows a cookbook.

        Args:
            book: The cookbook, already solved.
            market: The market to rent in.

        Raises:
            InputError: The billing rule is unknown, or an option needs billing by whole hours.
        """
        from ebbtide.policies.cookbook.bids import Bids
        from ebbtide.policies.cookbook.cluster import RunCluster
        from ebbtide.policies.cookbook.policy import FollowCookbook

        if self.by_hour:
            offered = Bids.skyline(book) if self.bids is BidsChoice.SKYLINE else Bids.infinite(book)
            return RunCluster(book, market, offered, self.delay, on_demand=self.on_demand)
        if self.on_demand or self.delay:
            raise InputError(
                f"--on-demand and --delay need billing by whole hours; {self.billing} is by the second"
            )
        return FollowCookbook(book, market, dynamic=not self.strict)
