"""`ebbtide plan`: show what a sweep would rent and cost, before anything is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.terminal import PlainConsole
from ebbtide.base.utc import HOUR_S, iso
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import (
    InstanceTypesOption,
    Models,
    Source,
    SpellsOption,
    catalogue_with,
    print_written,
    terminal,
    to_be_written,
)
from ebbtide.cli.progress import progress
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.forecasts.hazard.chances import chance_text
from ebbtide.jobs.common_fields import Decides
from ebbtide.jobs.job_files import read_sweep
from ebbtide.jobs.job_list import OneJob
from ebbtide.market.availability import Availability
from ebbtide.market.prices import PriceHistory
from ebbtide.planning.plan import KEPT_SHARE, Estimate, Plan
from ebbtide.planning.plan_picture import KINDS, check_drawable, check_picture, plan_picture, write_plan_picture
from ebbtide.planning.planning import plan
from ebbtide.policies.spottune.offers import BestBid
from ebbtide.replay.generated_markets import MarketKind

# Exit code: the budget or the deadline is not feasible.
INFEASIBLE = 3

# Maximum number of markets listed; the JSON has all.
_SHOWN = 12

# Wider than any table.
_ANY_WIDTH = 10_000

# The search has no known total, so only the elapsed time is shown.
_SEARCHING = "the budget or the deadline is not feasible; searching for the lowest that is"

_HEADINGS = (
    "expected $/1000 steps: refunds, work lost with a machine, restarts and waiting counted, an hour of waiting "
    f"counts as {BestBid().time_share:.0%} of an hour on the market that is cheapest per step; if kept: at the "
    "current price, on a machine that is never revoked"
)


_PLACES_HEADINGS = (
    "available: share of time with a machine; lasts: mean hours once rented; granted, kept 1 h, kept: chance to "
    "be granted a machine now, and to keep it for an hour and for the work; expected USD: of a trial there alone, "
    "within the deadline, on demand where that needs it; of backtests: share of their machine hours"
)

# Days of the market generated if no prices are given.
_GENERATED_DAYS = 30.0


@dataclass(frozen=True)
class RecentSource(Source):
    """Prices up to now, or generated ones."""

    prices: Annotated[Path | None, typer.Option(help="A Parquet file of prices up to now.")] = None


@dataclass(frozen=True)
class Backtests:
    """The backtests that a plan is estimated from."""

    runs: Annotated[int, typer.Option(min=1, max=10_000, help="Number of backtests.")] = 30
    days: Annotated[float, typer.Option(min=1.0, help="Length of the price history used, from its end.")] = 14.0
    seed: Annotated[int, typer.Option(min=0, help="Seed of the starts.")] = 0
    availability: Annotated[
        Path | None,
        typer.Option(help="Recorded capacity, for a sweep where that decides; by default it is drawn."),
    ] = None
    spells: SpellsOption = None


@grouped
def plan_command(
    *,
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="The sweep, as in examples/sweep.yaml.")],
    source: RecentSource,
    backtests: Backtests,
    learnt: Models,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the plan to.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            callback=to_be_written,
            help=f"File to draw the plan into ({', '.join(KINDS)}), where capacity decides.",
        ),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Show what a sweep would rent now and why, its estimated cost and its duration. Nothing is rented.

    Cost and time are ranges from backtests on the newest prices. A budget or deadline that is not kept in 95 % of
    them ends with exit code 3 and the lowest feasible one. If the speed of a trial is not measured, only prices
    per hour are shown.

        ebbtide plan examples/sweep.yaml --prices prices.parquet
    """
    if picture:
        check_picture(picture)
    catalogue = catalogue_with(instance_types)
    wanted = read_sweep(sweep, catalogue)
    if picture:
        # Do not check the speed yet: learnt models may know it, and a plan without it is made at once.
        check_drawable(is_measured=True, by_capacity=wanted.decides is Decides.CAPACITY)
    if source.prices is None and source.generate is None:
        source = replace(source, generate=_GENERATED_DAYS)
        market = "a market like today's" if source.kind is MarketKind.TODAY else f"a market of kind {source.kind}"
        made = f"{_GENERATED_DAYS:g} days of {market} are generated"
        typer.echo(f"no prices are named: {made}", err=True)
    history = source.history(backtests.seed, catalogue)
    bundle = learnt.bundle(history.end_s)
    with progress("backtesting on recent prices") as state:
        found = plan(
            wanted,
            history,
            runs=backtests.runs,
            days=backtests.days,
            seed=backtests.seed,
            catalogue=catalogue,
            availability=_capacity(wanted, source, backtests, history),
            spells=SpellModels.read(backtests.spells) if backtests.spells else None,
            models=bundle,
            on_progress=state.of,
            on_infeasible=lambda: state.step(_SEARCHING),
        )
    if json_path:
        write_text(json_path, json_text(found.to_dict()))
    if found.estimate:
        # An infeasible budget or deadline is the main result, so it comes first.
        for line in _least(found, wanted):
            typer.echo(line)
    _print_whole(_main_table(found))
    if found.places:
        typer.echo(_PLACES_HEADINGS)
    if found.offers:
        typer.echo(_HEADINGS)
    if found.estimate:
        for line in _estimate_lines(found.estimate, wanted):
            typer.echo(line)
    for note in found.notes:
        typer.echo(f"note: {note}")
    if picture:
        drawn = plan_picture(found, budget_usd=wanted.budget_usd, deadline_h=wanted.deadline_h)
        write_plan_picture(drawn, picture)
    print_written(json_path, picture)
    if found.feasibility and not found.feasibility.feasible:
        raise typer.Exit(INFEASIBLE)


def _capacity(
    sweep: OneJob, source: RecentSource, backtests: Backtests, history: PriceHistory
) -> Availability | None:
    """Return recorded capacity or, if capacity decides, that of a generated market."""
    if backtests.availability is None and sweep.decides is not Decides.CAPACITY:
        return None
    return source.capacity(history, backtests.seed, backtests.availability)


def _print_whole(table: Table) -> None:
    """Print a table, at full width into a file or a pipe, so that nothing is cut off."""
    out = terminal()
    if not out.is_terminal:
        out = PlainConsole(width=max(out.width, PlainConsole(width=_ANY_WIDTH).measure(table).maximum))
    out.print(table)


def _main_table(found: Plan) -> Table:
    if found.offers:
        return _offers_table(found)
    return _places_table(found) if found.places else _quotes_table(found)


def _places_table(found: Plan) -> Table:
    of = f"{found.trials} trials; where one" if found.trials > 1 else "where it"
    title = f"{found.sweep}: {of} would train at {iso(found.as_of_s)}, cheapest first"
    table = Table(title=title, box=SIMPLE_HEAD)
    headings = (
        "market",
        "USD/h now",
        "list USD/h",
        "work h",
        "available",
        "lasts h",
        "granted",
        "kept 1 h",
        "kept",
        "expected USD",
        "of backtests",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "market" else "right", no_wrap=True)
    for place in found.places[:_SHOWN]:
        listed, alone = place.on_demand_usd_per_hour, place.alone_usd
        table.add_row(
            str(place.market),
            f"{place.usd_per_hour:.2f}",
            "-" if listed is None else f"{listed:.2f}",
            f"{place.work_h:.1f}",
            f"{place.available:.0%}",
            f"{place.lasts_h:.1f}",
            *map(chance_text, (place.granted, place.kept_1h, place.kept)),
            "-" if alone is None else f"{alone:.2f}",
            f"{place.share:.0%}",
        )
    return table


def _offers_table(found: Plan) -> Table:
    title = f"{found.sweep}: {found.trials} trials; what one would rent at {iso(found.as_of_s)}, best first"
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in (
        "market",
        "USD/h now",
        "list USD/h",
        "max price",
        "s/step",
        "revoked in 1 h",
        "$/1000 steps if kept",
        "expected $/1000 steps",
    ):
        table.add_column(heading, justify="left" if heading == "market" else "right", no_wrap=True)
    quotes = {quote.market: quote for quote in found.quotes}
    for offer in found.offers[:_SHOWN]:
        quote = quotes[offer.market]
        listed = quote.on_demand_usd_per_hour
        table.add_row(
            str(offer.market),
            f"{quote.usd_per_hour:.4f}",
            "-" if listed is None else f"{listed:.4f}",
            f"{offer.max_price_usd_per_hour:.4f}",
            f"{offer.seconds_per_step:.3g}",
            "-" if math.isnan(offer.revoked) else f"{offer.revoked:.0%}",
            f"{1000 * quote.usd_per_hour * offer.seconds_per_step / HOUR_S:.4f}",
            f"{1000 * offer.usd_per_step:.4f}",
        )
    return table


def _quotes_table(found: Plan) -> Table:
    title = f"{found.sweep}: {found.trials} trials; prices at {iso(found.as_of_s)}"
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in ("market", "USD/h now", "mean of last hour", "list USD/h"):
        table.add_column(heading, justify="left" if heading == "market" else "right", no_wrap=True)
    for quote in found.quotes[:_SHOWN]:
        listed = quote.on_demand_usd_per_hour
        table.add_row(
            str(quote.market),
            f"{quote.usd_per_hour:.4f}",
            f"{quote.mean_usd_per_hour:.4f}",
            "-" if listed is None else f"{listed:.4f}",
        )
    return table


def _estimate_lines(estimate: Estimate, sweep: OneJob) -> list[str]:
    cost, hours = estimate.cost_usd, estimate.duration_h
    lines = [
        f"cost: {cost.mean:.2f} USD expected, {cost.low:.2f} to {cost.high:.2f} in nine of ten backtests",
        f"time: {hours.mean:.1f} h expected, {hours.low:.1f} to {hours.high:.1f} h",
    ]
    runs = estimate.runs
    if estimate.over_budget is not None:
        over = round(estimate.over_budget * runs)
        lines.append(
            f"budget: {sweep.budget_usd:g} USD is passed in {over} of {runs} backtests; training would stop there"
        )
    if estimate.past_deadline is not None:
        late = round(estimate.past_deadline * runs)
        lines.append(f"deadline: {sweep.deadline_h:g} h is missed in {late} of {runs} backtests")
    if estimate.unfinished:
        lines.append(
            f"{estimate.unfinished} of {runs} backtests did not end within the prices; they count as over"
        )
    if estimate.rivals_stopping_early_usd:
        stopping = f"with the same early stopping (theta {sweep.theta:g}, mcnt {sweep.mcnt})"
        lines.append(f"for comparison, {stopping}: {_listed(estimate.rivals_stopping_early_usd)}")
    lines.append(f"for comparison, every trial trained to its end: {_listed(estimate.rivals_usd)}")
    return lines


def _listed(rivals_usd: dict[str, float | None]) -> str:
    return ", ".join(
        f"{name} " + ("does not end within the prices" if usd is None else f"{usd:.2f} USD")
        for name, usd in rivals_usd.items()
    )


def _least(found: Plan, sweep: OneJob) -> list[str]:
    """Describe the lowest feasible budget and deadline, if the requested ones are infeasible."""
    feasibility, estimate = found.feasibility, found.estimate
    if feasibility is None or estimate is None or feasibility.feasible:
        return []
    missed = estimate.past_deadline is not None and estimate.past_deadline > 1.0 - KEPT_SHARE
    other = " under the lowest deadline" if sweep.decides is Decides.CAPACITY else " without a deadline"
    under = other if missed else ""
    lines = [f"not feasible: the budget and the deadline must be kept in {KEPT_SHARE:.0%} of backtests"]
    if feasibility.least_budget_usd is not None:
        takes = f"; it then takes up to {feasibility.least_budget_takes_h:g} h"
        lines.append(f"lowest feasible budget{under}: {feasibility.least_budget_usd:g} USD{takes}")
    if feasibility.least_deadline_h is not None:
        usd = feasibility.least_deadline_costs_usd
        costs = "" if usd is None else f", with a budget of {usd:g} USD"
        lines.append(f"lowest feasible deadline: {feasibility.least_deadline_h:g} h{costs}")
    if feasibility.least_budget_usd is None and feasibility.least_deadline_h is None:
        lines.append("no feasible budget or deadline was found within these prices; give more days of prices")
    lines.append(
        f"nothing ends sooner than {feasibility.fastest_h:.2f} h: {sweep.steps} steps of a trial on "
        f"{feasibility.fastest_on}, the fastest here, and its start"
    )
    return lines
