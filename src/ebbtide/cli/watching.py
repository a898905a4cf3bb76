"""`ebbtide watch`: a record of prices and of signals of capacity."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.base.utc import iso
from ebbtide.cli.live_sources import LiveSources
from ebbtide.cli.option_groups import grouped
from ebbtide.errors import CloudError
from ebbtide.market.monitor import Monitor
from ebbtide.market.price_store import PriceStore


@grouped
def watch_command(
    *,
    sources: LiveSources,
    into: Annotated[Path, typer.Option("--into", "-o", help="The price store to add to.")] = Path(
        "data/prices.db"
    ),
    every: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="Time between requests.")] = 60.0,
    looks: Annotated[
        int | None, typer.Option(min=1, help="Number of requests; by default until interrupted.")
    ] = None,
) -> None:
    """Request spot prices and signals of capacity regularly and store changes.

    A source that fails is reported and asked again later, after twice the time for each further failure; the
    others go on, and the next request fills the gap. Sources whose services want that are asked less often than
    --every. Read the stored prices with `ebbtide plan`, or add them to a price file with `ebbtide ingest`;
    adjust models of availability to the stored signals with `ebbtide availability adjust`.

        ebbtide watch --ec2 us-east-1 --ec2 eu-west-1 --instance-type p3.2xlarge --into prices.db
        ebbtide watch --source ec2-bands --source vast --into prices.db
    """
    monitor = Monitor(sources.chosen(), PriceStore(into), every_s=every)
    answered = False
    for number, look in enumerate(itertools.islice(monitor.watch(), looks), start=1):
        for problem in look.problems.values():
            typer.echo(f"{iso(look.time_s)}: {problem}", err=True)
        if len(look.asked) > len(look.problems):
            answered = True
            more = f", {look.signals} signals" if look.signals else ""
            typer.echo(f"{iso(look.time_s)}: {look.changes} changes{more}")
        if number == looks:
            break
    if not answered:
        raise CloudError("no request was answered")
