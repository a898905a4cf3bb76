"""Show offers, and ask for confirmation, before `ebbtide run` rents machines that cost money."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ebbtide.cli.options import table_console
from ebbtide.clouds.providers import machines_of
from ebbtide.clouds.settings import RENTED
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.market.catalogue import default_catalogue
from ebbtide.runs.offers import MarketOffer, offers_of, prices_now
from ebbtide.runs.run import RunOptions, local_market

# The same exit code as for a run that the user stopped.
_REFUSED = 130


def confirm(work: Runnable, provider: str, options: RunOptions, *, dry_run: bool, yes: bool) -> None:
    """Show what could be rented now; at a terminal, ask before machines are rented that cost money.

    Raises:
        InputError: No price is known of any market that the work allows.
        typer.Exit: This is a dry run, or the user declined.
    """
    rents = provider in RENTED
    asks = rents and not yes and sys.stdin.isatty() and sys.stdout.isatty()
    # Without a budget a later check refuses to rent, with its own message.
    if not dry_run and (not asks or work.budget_usd is None):
        return
    catalogue = options.get("catalogue") or default_catalogue()
    if rents:
        prices, time_s = prices_now(work, machines_of(provider, options.get("machines")), catalogue), time.time()
    else:
        market = local_market(work, options)
        prices, time_s = work.allowed(market.prices, catalogue), market.begins_s
    offers = offers_of(work, prices, time_s, catalogue)
    if not offers:
        raise InputError(f"{work.name} can run in no market now at or below the list price")
    table_console().print(_table(offers))
    budget = "" if work.budget_usd is None else f"; never more than its budget of {work.budget_usd:g} USD"
    typer.echo(f"provider {provider}{'' if rents else ' (simulated)'}: {_expected(offers)}{budget}")
    if dry_run:
        typer.echo("a dry run: nothing was begun or rented")
        raise typer.Exit
    if not typer.confirm("Rent?", default=False):
        typer.echo("nothing was begun or rented; --yes rents without asking")
        raise typer.Exit(_REFUSED)


def _expected(offers: Sequence[MarketOffer]) -> str:
    """Describe the expected cost of all jobs on their first offers."""
    firsts = list({offer.job: offer for offer in reversed(offers)}.values())
    usd = math.fsum(offer.expected_usd for offer in firsts)
    if math.isnan(usd):
        per_hour = math.fsum(offer.spot_usd_per_hour * offer.machines for offer in firsts)
        return (
            f"how much work it is is not known; on the first choice {per_hour:.4f} USD an hour for each training"
        )
    return f"about {usd:.2f} USD on the first choice, at prices of this moment, starts and interruptions aside"


def _table(offers: Sequence[MarketOffer]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("job", "market", "machines", "spot USD/h", "list USD/h", "work h", "USD"):
        table.add_column(heading, justify="left" if heading in ("job", "market") else "right", overflow="fold")
    for one in offers:
        listed = "-" if one.on_demand_usd_per_hour is None else f"{one.on_demand_usd_per_hour:.4f}"
        known = not math.isnan(one.work_h)
        table.add_row(
            Text(one.job),
            Text(str(one.market)),
            str(one.machines),
            f"{one.spot_usd_per_hour:.4f}",
            listed,
            f"{one.work_h:.2f}" if known else "-",
            f"{one.expected_usd:.2f}" if known else "-",
        )
    return table
