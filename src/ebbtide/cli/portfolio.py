"""`ebbtide portfolio`: spread a cluster over markets, with a number of machines in each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.utc import HOUR_S
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import InstanceTypesOption, Window, catalogue_with, print_written, terminal, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError, unknown_name
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

# Risk aversions of the frontier.
_ALPHAS = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class ClusterOptions:
    """The size of the cluster."""

    vcpus: Annotated[float, typer.Option(min=0.0, help="Cores of the whole cluster.")] = 0.0
    memory_gib: Annotated[float, typer.Option("--memory-gib", min=0.0, help="Memory of the whole cluster.")] = 0.0


@dataclass(frozen=True)
class MarketOptions:
    """Options for the choice of markets."""

    alpha: Annotated[float, typer.Option(min=0.0, help="Risk aversion; 0: only the market that saves most.")] = 1.0
    covariance: Annotated[str, typer.Option(help="Covariance: price, revocation, or hybrid for both.")] = "hybrid"
    types: Annotated[
        list[str] | None,
        typer.Option("--instance-type", metavar="TYPE", help="Only this instance type; may be given again."),
    ] = None
    least_mttr_h: Annotated[
        float, typer.Option("--least-mttr-h", min=0.0, help="Minimum mean time to revocation, hours.")
    ] = 0.0
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Show portfolios for several risk aversions instead.")
    ] = False

    @property
    def alphas(self) -> tuple[float, ...]:
        """The risk aversions for which a portfolio is shown."""
        return _ALPHAS if self.frontier else (self.alpha,)

    def allows(self, market: Market) -> bool:
        """Return whether a market has one of the given instance types; if none is given, any type is allowed."""
        return not self.types or market.instance_type in self.types


@grouped
def portfolio_command(
    *,
    prices: Annotated[Path, typer.Option(help="A Parquet file of prices up to now.")],
    cluster: ClusterOptions,
    choice: MarketOptions,
    window: Window,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the result to.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Spread a cluster over markets: the best saving for the risk of losing machines in several at once.

    ebbtide portfolio --prices prices.parquet --vcpus 120 --memory-gib 240 --alpha 1
    """
    from ebbtide.policies.exosphere.allocation import CoresAndMemory, allocate
    from ebbtide.policies.exosphere.candidates import COVARIANCES, Windows, assess, settled_s, with_unseen
    from ebbtide.policies.exosphere.portfolio import Portfolio, PortfolioCache

    if choice.covariance not in COVARIANCES:
        raise unknown_name("covariance", choice.covariance, COVARIANCES)
    catalogue = catalogue_with(instance_types)
    with progress(f"reading {prices.name}") as state:
        history = window.of(PriceHistory.read(prices, catalogue))
        start_s, end_s = settled_s(history.start_s, history.end_s), history.end_s
        known = assess(history, catalogue.list_prices(end_s), start_s, end_s)
        found = known.where(choice.allows, least_mttr_s=choice.least_mttr_h * HOUR_S)
        measure, size = COVARIANCES[choice.covariance]
        windows = Windows.within(start_s, end_s)
        state.step(f"comparing {len(found.markets)} markets")
        cache = PortfolioCache(found, with_unseen(measure(history, found, windows), windows, size))
        state.step("choosing portfolios", len(choice.alphas))
        for alpha in choice.alphas:
            cache.get(alpha)
            state.advance()
    if choice.frontier:
        rows = [_summary(cache.get(alpha), found, alpha) for alpha in choice.alphas]
        _show(rows, f"{len(found.markets)} markets, by risk aversion", json_path, {"frontier": rows})
        return
    wanted = CoresAndMemory(cluster.vcpus, cluster.memory_gib)
    if wanted.is_nothing:
        raise InputError("the cluster is empty; give --vcpus, --memory-gib or both, or --frontier")
    best: Portfolio = cache.get(choice.alpha)
    allocated = allocate(best.shares, wanted, catalogue.machine_of)
    places = {market: place for place, market in enumerate(found.markets)}
    markets: list[dict[str, Any]] = [
        {
            "market": str(market),
            "share": share,
            "machines": allocated.new.get(market, 0),
            "bid_usd_per_hour": float(found.on_demand_usd[places[market]]),
            "bid_is_list_price": bool(found.is_listed[places[market]]),
            "saving": float(found.returns[places[market]]),
            "saving_while_paid": float(found.returns_paid[places[market]]),
            "mttr_h": _hours(float(found.mttr_s[places[market]])),
        }
        for market, share in best.shares.items()
    ]
    summary = _summary(best, found, choice.alpha) | {"over_allocated": allocated.surplus}
    title = f"{len(found.markets)} markets to choose from"
    _show(markets, title, json_path, {"portfolio": summary, "markets": markets})
    lives = "no machine was revoked" if summary["mttr_h"] is None else f"a machine lives {summary['mttr_h']:.0f} h"
    typer.echo(
        f"saves {best.saving:.1%} of on demand, risk {best.risk:.3g}; in this record {lives}; "
        f"{allocated.surplus:.0%} of what is rented is surplus, since machines are whole"
    )


def _summary(portfolio: Any, found: Any, alpha: float) -> dict[str, Any]:
    return {
        "alpha": alpha,
        "markets": len(portfolio.used),
        "saving": portfolio.saving,
        "risk": portfolio.risk,
        "mttr_h": _hours(portfolio.mttr_s(found)),
        "largest": str(next(iter(portfolio.used))),
    }


def _hours(seconds: float) -> float | None:
    """Convert to hours; None: infinite, since no revocation was observed."""
    return seconds / HOUR_S if math.isfinite(seconds) else None


def _show(rows: list[dict[str, Any]], title: str, json_path: Path | None, content: dict[str, Any]) -> None:
    if json_path:
        write_text(json_path, json_text(content))
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in rows[0]:
        is_name = heading in ("market", "largest")
        table.add_column(heading.replace("_", " "), justify="left" if is_name else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    terminal().print(table)
    print_written(json_path)


def _cell(value: object) -> str:
    if value is None:
        return "none observed"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
