"""`ebbtide watch` and `ebbtide recommend`: a record of prices and signals, and the best market for a job now."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.utc import HOUR_S, iso, to_epoch_s
from ebbtide.cli.live_sources import LiveSources
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import InstanceTypesOption, catalogue_with, terminal
from ebbtide.cli.progress import progress
from ebbtide.errors import CloudError, InputError
from ebbtide.forecasts.capacity.models import probes_of_store
from ebbtide.forecasts.hazard.chances import MarketChances, chance_text, evidence_of
from ebbtide.forecasts.hazard.evidence import Evidence
from ebbtide.forecasts.hazard.model import default_hazard
from ebbtide.forecasts.hazard.observations import MarketObservations, observations_of_probes
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_files import read_jobs, read_sweep
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.monitor import Monitor
from ebbtide.market.price_store import PriceStore
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.stored import is_price_store
from ebbtide.policies.api.quotes import KnownQuotes
from ebbtide.policies.deepspotcloud.policy import ranked, usd_per_step
from ebbtide.runs.other_launchers import ChosenMarket, Launcher, launcher_file


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
    --every. Read the stored prices with `ebbtide recommend`, or add them to a price file with `ebbtide ingest`;
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


def recommend_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job to run.")],
    prices: Annotated[Path, typer.Option(help="A price store (`ebbtide watch`) or a Parquet file of prices.")],
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time in a Parquet file; by default its end.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of markets to list.")] = 10,
    instance_types: InstanceTypesOption = None,
    launcher: Annotated[
        Launcher | None,
        typer.Option("--for", help="Print a file for this launcher that asks for these markets, not a table."),
    ] = None,
) -> None:
    """List the best markets for a job now, by cost per step, without those above the list price.

    The last columns are the chances to be granted a machine, to keep it for an hour, and to keep it until the job
    is done, as capacity and not the price has it. They are those of public records; of a price store they know the
    capacity that `ebbtide watch` has kept.

    With --for, print a file by which another launcher trains there, and on demand where no spot machine is left.

        ebbtide recommend examples/one-day.yaml --prices prices.db
        ebbtide recommend sweep.yaml --prices prices.db --for skypilot > task.yaml
    """
    catalogue = catalogue_with(instance_types)
    # All trials of a sweep have the same needs.
    work = read_jobs(job, catalogue)[0]
    sweep = None if launcher is None else read_sweep(job, catalogue, to_run=True)
    with progress(f"reading {prices.name}"):
        quotes = _quotes(prices, at, catalogue)
        best = ranked(quotes, work)
    if not best:
        raise InputError(f"job {work.name} can run in no market of these prices below the list price", file=prices)
    if launcher is not None and sweep is not None:
        best = [market for market in best if sweep.allows(market, catalogue)]
        if not best:
            raise InputError(
                f"none of these markets is one of those that {sweep.name} allows", file=job, field="markets"
            )
        choices = [ChosenMarket(market, catalogue.machine_of(market)) for market in best[:top]]
        typer.echo(launcher_file(launcher, sweep, [*choices, *_on_demand(quotes, work, best)]), nl=False)
        return
    table = Table(title=f"{work.name}, {iso(quotes.now_s)}", box=SIMPLE_HEAD)
    hazard, evidence = default_hazard(), _evidence(prices, quotes.now_s)
    for heading in ("market", "USD/h", "list price", "h", "USD", "granted", "kept 1 h", "kept"):
        table.add_column(heading, justify="left" if heading == "market" else "right", no_wrap=True)
    for market in best[:top]:
        listed = quotes.on_demand_price(market)
        hours = work.steps / quotes.steps_per_s(work, market) / HOUR_S
        usd = work.steps * usd_per_step(quotes, work, market)
        known = "?" if listed is None else f"{listed:.4g}"
        chances = MarketChances.of(hazard, evidence, market, quotes.now_s, hours * HOUR_S)
        cells = [
            f"{quotes.price(market):.4f}",
            known,
            f"{hours:.1f}",
            f"{usd:.2f}",
            *map(chance_text, astuple(chances)),
        ]
        table.add_row(str(market), *cells)
    terminal().print(table)


def _evidence(path: Path, now_s: float) -> Evidence:
    """Return what a price store has seen of capacity until now; of a file of prices, nothing."""
    observations: list[MarketObservations] = []
    if is_price_store(path):
        # Where no source of it tells capacity, there are none.
        with suppress(InputError):
            observations = observations_of_probes(probes_of_store(PriceStore(path)))
    return evidence_of(default_hazard(), observations, now_s)


def _on_demand(quotes: KnownQuotes, work: Job, markets: Sequence[Market]) -> list[ChosenMarket]:
    """Return the market with the lowest on-demand cost per step, if any list price is known."""
    listed = [
        (usd / quotes.steps_per_s(work, one), one) for one in markets if (usd := quotes.on_demand_price(one))
    ]
    return [ChosenMarket(one, quotes.catalogue.machine_of(one), is_spot=False) for _, one in sorted(listed)[:1]]


def _quotes(path: Path, at: str | None, catalogue: Catalogue) -> KnownQuotes:
    if is_price_store(path):
        if at is not None:
            raise InputError("--at goes with a Parquet file; a price store is read as it is now", file=path)
        store = PriceStore(path)
        return KnownQuotes(store.quotes(), catalogue, max(store.newest_s().values(), default=0.0))
    history = PriceHistory.read(path, catalogue)
    time_s = history.end_s if at is None else to_epoch_s(at)
    history.check_inside(time_s)
    found = {market: series.at(time_s) for market, series in history.items()}
    return KnownQuotes({m: price for m, price in found.items() if not math.isnan(price)}, catalogue, time_s)
