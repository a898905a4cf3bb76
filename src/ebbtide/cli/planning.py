"""`ebbtide plan`: where a job would train now, and what it would cost, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import (
    InstanceTypesOption,
    Models,
    Source,
    SpellsOption,
    catalogue_with,
    print_written,
    to_be_written,
)
from ebbtide.cli.plan_tables import (
    CHANCES,
    HEADINGS,
    PLACES_HEADINGS,
    estimate_lines,
    least_feasible,
    main_table,
    markets_table,
    print_whole,
)
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.models import SpellModels, probes_of_store
from ebbtide.forecasts.hazard.observations import MarketObservations, observations_of_probes
from ebbtide.jobs.common_fields import Decides
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_files import read_jobs, read_sweep
from ebbtide.jobs.job_list import OneJob
from ebbtide.market.availability import Availability
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.price_store import PriceStore
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.stored import is_price_store
from ebbtide.planning.markets_now import MarketNow, cheapest_on_demand, markets_now
from ebbtide.planning.plan_picture import KINDS, check_drawable, check_picture, plan_picture, write_plan_picture
from ebbtide.planning.planning import plan
from ebbtide.replay.generated_markets import MarketKind
from ebbtide.runs.other_launchers import ChosenMarket, Launcher, launcher_file

# Exit code: the budget or the deadline is not feasible.
INFEASIBLE = 3

# The search has no known total, so only the elapsed time is shown.
_SEARCHING = "the budget or the deadline is not feasible; searching for the lowest that is"

# Days of the market generated if no prices are given.
_GENERATED_DAYS = 30.0


@dataclass(frozen=True)
class RecentSource(Source):
    """Prices up to now, or generated ones."""

    prices: Annotated[
        Path | None, typer.Option(help="A Parquet file of prices up to now, or a price store (`ebbtide watch`).")
    ] = None
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that is now; by default the end of the prices.")
    ] = None

    def history(self, seed: int, catalogue: Catalogue) -> PriceHistory:
        found = super().history(seed, catalogue)
        return found if self.at is None else found.window(found.start_s, self.at)

    @property
    def observations(self) -> list[MarketObservations]:
        """Observations of capacity that a price store has; none for other prices."""
        if self.prices is not None and is_price_store(self.prices):
            # Where no source of the store tells capacity, there are none.
            with suppress(InputError):
                return observations_of_probes(probes_of_store(PriceStore(self.prices)))
        return []


@dataclass(frozen=True)
class Backtests:
    """The backtests that a plan is estimated from."""

    runs: Annotated[
        int, typer.Option(min=0, max=10_000, help="Number of backtests; 0: list the markets alone, at once.")
    ] = 30
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
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="A job, as examples/one-day.yaml, or a sweep.")],
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
    top: Annotated[int, typer.Option(min=1, help="Number of markets to list; the JSON file has all.")] = 12,
    launcher: Annotated[
        Launcher | None,
        typer.Option("--for", help="Print a file for this launcher that asks for these markets, not a table."),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Show where a job would train now and why, its estimated cost and its duration. Nothing is rented.

    Cost and time are ranges from backtests on the newest prices. A budget or deadline that is not kept in 95 % of
    them ends with exit code 3 and the lowest feasible one. If the speed of a trial is not measured, only prices
    per hour are shown. With --runs 0 the markets are listed by cost per step, without those above the list price.

    With --for, print a file by which another launcher trains there, and on demand where no spot machine is left.

        ebbtide plan examples/sweep.yaml --prices prices.parquet
        ebbtide plan examples/one-day.yaml --prices prices.db --runs 0
        ebbtide plan examples/sweep.yaml --prices prices.db --for skypilot > task.yaml
    """
    if picture:
        check_picture(picture)
    catalogue = catalogue_with(instance_types)
    if launcher is not None:
        sweep = read_sweep(job, catalogue, to_run=True)
        found_now = _markets(read_jobs(job, catalogue)[0], _named(source), backtests.seed, catalogue)
        typer.echo(_launcher_file(launcher, sweep, found_now, top, catalogue, job), nl=False)
        return
    if not backtests.runs:
        # All trials of a sweep have the same needs.
        work = read_jobs(job, catalogue)[0]
        found_now = _markets(work, _named(source), backtests.seed, catalogue)
        if json_path:
            write_text(json_path, json_text({"job": work.name, "markets": [_plain(one) for one in found_now]}))
        print_whole(markets_table(work, found_now[:top]))
        typer.echo(CHANCES)
        print_written(json_path)
        return
    wanted = read_sweep(job, catalogue)
    if picture:
        # Do not check the speed yet: learnt models may know it, and a plan without it is made at once.
        check_drawable(is_measured=True, by_capacity=wanted.decides is Decides.CAPACITY)
    source = _named(source)
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
        for line in least_feasible(found, wanted):
            typer.echo(line)
    print_whole(main_table(found, top))
    if found.places:
        typer.echo(PLACES_HEADINGS)
    if found.offers:
        typer.echo(HEADINGS)
    if found.estimate:
        for line in estimate_lines(found.estimate, wanted):
            typer.echo(line)
    for note in found.notes:
        typer.echo(f"note: {note}")
    if picture:
        drawn = plan_picture(found, budget_usd=wanted.budget_usd, deadline_h=wanted.deadline_h)
        write_plan_picture(drawn, picture)
    print_written(json_path, picture)
    if found.feasibility and not found.feasibility.feasible:
        raise typer.Exit(INFEASIBLE)


def _named(source: RecentSource) -> RecentSource:
    """The prices that are named, or else a generated market, which is told."""
    if source.prices is not None or source.generate is not None:
        return source
    market = "a market like today's" if source.kind is MarketKind.TODAY else f"a market of kind {source.kind}"
    made = f"{_GENERATED_DAYS:g} days of {market} are generated"
    typer.echo(f"no prices are named: {made}", err=True)
    return replace(source, generate=_GENERATED_DAYS)


def _markets(work: Job, source: RecentSource, seed: int, catalogue: Catalogue) -> list[MarketNow]:
    with progress("reading prices"):
        try:
            return markets_now(work, source.history(seed, catalogue), catalogue, source.observations)
        except InputError as error:
            raise error if error.file else InputError(error.problem, file=source.prices) from None


def _launcher_file(
    launcher: Launcher, sweep: OneJob, markets: Sequence[MarketNow], top: int, catalogue: Catalogue, file: Path
) -> str:
    """The file for another launcher: the best markets that the sweep allows, and the cheapest on demand.

    Raises:
        InputError: The sweep allows none of them.
    """
    allowed = [one for one in markets if sweep.allows(one.market, catalogue)]
    if not allowed:
        raise InputError(
            f"none of these markets is one of those that {sweep.name} allows", file=file, field="markets"
        )
    choices = [ChosenMarket(one.market, catalogue.machine_of(one.market)) for one in allowed[:top]]
    if (listed := cheapest_on_demand(allowed)) is not None:
        choices.append(ChosenMarket(listed, catalogue.machine_of(listed), is_spot=False))
    return launcher_file(launcher, sweep, choices)


def _plain(one: MarketNow) -> dict[str, object]:
    row = asdict(one)
    chances = row.pop("chances")
    return {**row, "market": str(one.market), **chances}


def _capacity(
    sweep: OneJob, source: RecentSource, backtests: Backtests, history: PriceHistory
) -> Availability | None:
    """Return recorded capacity or, if capacity decides, that of a generated market."""
    if backtests.availability is None and sweep.decides is not Decides.CAPACITY:
        return None
    return source.capacity(history, backtests.seed, backtests.availability)
