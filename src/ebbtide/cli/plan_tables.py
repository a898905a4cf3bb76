"""Tables and lines of a plan in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.terminal import PlainConsole
from ebbtide.base.utc import HOUR_S, iso
from ebbtide.cli.options import terminal
from ebbtide.forecasts.hazard.chances import chance_text
from ebbtide.jobs.common_fields import Decides
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import OneJob
from ebbtide.planning.markets_now import MarketNow
from ebbtide.planning.plan import KEPT_SHARE, Estimate, Plan
from ebbtide.policies.spottune.offers import BestBid

# Wider than any table.
_ANY_WIDTH = 10_000

HEADINGS = (
    "expected $/1000 steps: refunds, work lost with a machine, restarts and waiting counted, an hour of waiting "
    f"counts as {BestBid().time_share:.0%} of an hour on the market that is cheapest per step; if kept: at the "
    "current price, on a machine that is never revoked"
)

CHANCES = (
    "granted, kept 1 h, kept: chance to be granted a machine now, and to keep it for an hour and for the work, as "
    "capacity and not the price has it"
)
PLACES_HEADINGS = (
    f"available: share of time with a machine; lasts: mean hours once rented; {CHANCES}; expected USD: of a trial "
    "there alone, within the deadline, on demand where that needs it; of backtests: share of their machine hours"
)


def print_whole(table: Table) -> None:
    """Print a table, at full width into a file or a pipe, so that nothing is cut off."""
    out = terminal()
    if not out.is_terminal:
        out = PlainConsole(width=max(out.width, PlainConsole(width=_ANY_WIDTH).measure(table).maximum))
    out.print(table)


def main_table(found: Plan, top: int) -> Table:
    """The table of a plan's markets: offers, places or, without measured speeds, prices."""
    if found.offers:
        return _offers_table(found, top)
    return _places_table(found, top) if found.places else _quotes_table(found, top)


def markets_table(work: Job, markets: Sequence[MarketNow]) -> Table:
    """The table of markets for a job, in the order given."""
    table = Table(title=f"{work.name}: the best markets now, by cost per step", box=SIMPLE_HEAD)
    for heading in ("market", "USD/h", "list price", "h", "USD", "granted", "kept 1 h", "kept"):
        table.add_column(heading, justify="left" if heading == "market" else "right", no_wrap=True)
    for one in markets:
        listed = one.on_demand_usd_per_hour
        table.add_row(
            str(one.market),
            f"{one.usd_per_hour:.4f}",
            "?" if listed is None else f"{listed:.4g}",
            f"{one.work_h:.1f}",
            f"{one.usd:.2f}",
            *map(chance_text, astuple(one.chances)),
        )
    return table


def _places_table(found: Plan, top: int) -> Table:
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
    for place in found.places[:top]:
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


def _offers_table(found: Plan, top: int) -> Table:
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
    for offer in found.offers[:top]:
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


def _quotes_table(found: Plan, top: int) -> Table:
    title = f"{found.sweep}: {found.trials} trials; prices at {iso(found.as_of_s)}"
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in ("market", "USD/h now", "mean of last hour", "list USD/h"):
        table.add_column(heading, justify="left" if heading == "market" else "right", no_wrap=True)
    for quote in found.quotes[:top]:
        listed = quote.on_demand_usd_per_hour
        table.add_row(
            str(quote.market),
            f"{quote.usd_per_hour:.4f}",
            f"{quote.mean_usd_per_hour:.4f}",
            "-" if listed is None else f"{listed:.4f}",
        )
    return table


def estimate_lines(estimate: Estimate, sweep: OneJob) -> list[str]:
    """Describe the cost and the time that backtests found."""
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


def least_feasible(found: Plan, sweep: OneJob) -> list[str]:
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
