"""`ebbtide cookbook`: solve, show and apply cookbooks."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide._files import write_text
from ebbtide._utc import HOUR_S, iso, to_epoch_s
from ebbtide.cli.options import InstanceTypesOption, catalogue_with, terminal
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError, unknown_name
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

cookbook_app = typer.Typer(
    no_args_is_help=True,
    help="Cümülön-D: how many machines to hold at each time, so that a workflow meets its deadline.",
)

_SHOWN_PRICES = 8


class BidsChoice(StrEnum):
    """How to bid for machines."""

    SKYLINE = "skyline"
    INFINITY = "infinity"


@cookbook_app.command("solve")
def solve_command(
    workflow: Annotated[Path, typer.Argument(metavar="WORKFLOW.yaml", help="Jobs in order, with their speedups.")],
    prices: Annotated[Path, typer.Option(help="A Parquet file of prices: the market's past.")],
    market: Annotated[str, typer.Option(metavar="NAME", help="The market, such as 'us-east-1a c3.xlarge'.")],
    deadline: Annotated[int, typer.Option(min=1, metavar="HOURS", help="Hours from the start to the deadline.")],
    into: Annotated[Path, typer.Option("--into", "-o", help="File to write the cookbook to.")] = Path(
        "cookbook.safetensors"
    ),
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start of the workflow; by default the end of the record.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, max=65_000, help="Most machines at once.")] = 100,
    gamma: Annotated[float, typer.Option(min=0.0, help="Weight of the standard deviation of the cost.")] = 0.1,
    unit: Annotated[
        float, typer.Option(metavar="HOURS", help="Resolution of remaining work, machine-hours.")
    ] = 1.0,
    on_demand: Annotated[
        float | None,
        typer.Option(metavar="USD", help="On-demand price per hour; if given, on-demand machines are used, too."),
    ] = None,
    by_hour: Annotated[
        bool, typer.Option("--by-hour", help="Charge whole hours at the price at their start.")
    ] = False,
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Decide this long ahead; with --by-hour.")
    ] = 600.0,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Solve a cookbook for a workflow, a deadline and a market.

    ebbtide cookbook solve rsvd.yaml --prices prices.parquet --market 'us-east-1a c3.xlarge' --deadline 15
    """
    from ebbtide.forecasts.price_chain import PriceChain
    from ebbtide.jobs.workflow import Workflow
    from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
    from ebbtide.policies.cookbook.solving import solve
    from ebbtide.policies.cookbook.storage import save_cookbook

    work = Workflow.read(workflow)
    history = PriceHistory.read(prices, catalogue_with(instance_types))
    chosen = _market(history, market)
    start_s = to_epoch_s(start) if start is not None else history.end_s
    known_until_s = min(start_s, history.end_s)
    chain = PriceChain.fit(history[chosen], history.start_s, known_until_s)
    ahead = round(delay / chain.tick_s) if by_hour else None
    decided_s = start_s - (ahead or 0) * chain.tick_s
    charges = ChargeModel(chain.prices, *chain.steps(decided_s, deadline, HOUR_S, charged_at=ahead))
    if on_demand is not None:
        charges = charges.with_on_demand(on_demand)
    with progress(f"solving {charges.steps} steps backwards from the deadline"):
        book = solve(CookbookProblem(work, charges, most=most, work_unit_h=unit, risk_aversion=gamma))
        save_cookbook(book, into)
    now = history[chosen].at(known_until_s)
    typer.echo(f"{chosen} from {iso(start_s)}, {work.work_h:g} machine-hours in {deadline} h")
    typer.echo(f"at {now:.4g} USD/h: {book.summary(now)}")
    typer.echo(f"wrote {into}")


@cookbook_app.command("show")
def show_command(
    path: Annotated[Path, typer.Argument(metavar="COOKBOOK", help="A file that `solve` wrote.")],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="File to write a figure of slices to.")
    ] = None,
    at_hour: Annotated[int, typer.Option(min=0, help="Hour of the slice over price and work.")] = 0,
    price: Annotated[
        float | None, typer.Option(help="Price of the slice over time and work; by default the middle one.")
    ] = None,
) -> None:
    """Show a cookbook's action and expected cost at the start, by price."""
    from ebbtide.analysis.figures import cookbook_figure
    from ebbtide.policies.cookbook.storage import load_cookbook

    book = load_cookbook(path)
    problem = book.problem
    levels = problem.market.prices
    if at_hour >= problem.market.steps:
        raise InputError(f"--at-hour is {at_hour}; the cookbook has {problem.market.steps} steps", file=path)
    every = max(len(levels) // _SHOWN_PRICES, 1)
    title = f"{problem.workflow.name}: {problem.market.steps} steps of {problem.step_h:g} h"
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in ("USD/h", "machines", "expected USD", "deviation", "bid"):
        table.add_column(heading, justify="right")
    bids = book.skyline()
    for place in range(0, len(levels), every):
        bid = bids[0, -1]
        table.add_row(
            f"{levels[place]:.4g}",
            str(int(book.actions[0, -1, 0, place])),
            f"{book.mean_usd[0, -1, 0, place]:.2f}",
            f"{book.deviation_usd[0, -1, 0, place]:.2f}",
            f"{bid:.4g}" if bid < float("inf") else "any",
        )
    terminal().print(table)
    if plot:
        middle = float(levels[len(levels) // 2]) if price is None else price
        figure = cookbook_figure(book, step=at_hour, price=middle, left_h=problem.workflow.work_h)
        write_text(plot, figure.to_html(include_plotlyjs=True, full_html=True))
        typer.echo(f"wrote {plot}")


@cookbook_app.command("apply")
def apply_command(
    path: Annotated[Path, typer.Argument(metavar="COOKBOOK", help="A file that `solve` wrote.")],
    prices: Annotated[Path, typer.Option(help="A Parquet file of prices to run it on.")],
    market: Annotated[str, typer.Option(metavar="NAME", help="The market, such as 'us-east-1a c3.xlarge'.")],
    start: Annotated[str, typer.Option(metavar="TIME", help="Start of the run.")],
    billing: Annotated[str, typer.Option(help="Billing rule of the machines.")] = "per-second",
    strict: Annotated[
        bool, typer.Option("--strict", help="Ask the cookbook only at the beginning of each step.")
    ] = False,
    delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Time from the request for a machine to its start.")
    ] = 0.0,
    bids: Annotated[
        BidsChoice, typer.Option(help="How to bid where whole periods are charged.")
    ] = BidsChoice.SKYLINE,
    on_demand: Annotated[
        bool, typer.Option("--on-demand", help="Also rent on-demand machines while spot costs more.")
    ] = False,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Run a cookbook as a policy on the engine, on recorded prices.

    With billing by the second, bids are infinite. With billing by whole hours, bids follow the skyline, decisions
    are made ahead by the delay, and machines are kept to the end of a paid hour.

    ebbtide cookbook apply cookbook.safetensors --prices prices.parquet --market 'us-east-1a c3.xlarge' --start ...
    """
    from ebbtide.live.run import run
    from ebbtide.market.billing import ON_DEMAND_HOURLY, billing_preset
    from ebbtide.policies.api.protocol import Policy
    from ebbtide.policies.cookbook.bids import Bids
    from ebbtide.policies.cookbook.cluster import RunCluster
    from ebbtide.policies.cookbook.policy import FollowCookbook, elastic_job
    from ebbtide.policies.cookbook.storage import load_cookbook
    from ebbtide.simulation.start_delay import StartDelay

    book = load_cookbook(path)
    catalogue = catalogue_with(instance_types)
    history = PriceHistory.read(prices, catalogue)
    chosen = _market(history, market)
    job = elastic_job(book.problem.workflow, chosen.instance_type)
    rule = billing_preset(billing)
    policy: Policy
    if rule.period_s < HOUR_S:
        if on_demand or delay:
            raise InputError(f"--on-demand and --delay need billing by whole hours; {billing} is by the second")
        policy = FollowCookbook(book, chosen, dynamic=not strict)
    else:
        rule = replace(rule, on_demand=ON_DEMAND_HOURLY)
        offered = Bids.skyline(book) if bids is BidsChoice.SKYLINE else Bids.infinite(book)
        policy = RunCluster(book, chosen, offered, delay, on_demand=on_demand)
    with progress("replaying the cookbook"):
        outcome = run(
            job,
            policy,
            "replay",
            prices=history.select([chosen]),
            start=to_epoch_s(start),
            billing=rule,
            delay=StartDelay(delay, 0.0),
            catalogue=catalogue,
        )
    typer.echo(str(outcome))
    deadline_h = book.problem.market.steps * book.problem.step_h
    late = not outcome.finished or outcome.makespan_s > deadline_h * HOUR_S + 1.0
    typer.echo(f"deadline of {deadline_h:g} h {'missed' if late else 'met'}")


@cookbook_app.command("run")
def run_command(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM.yaml", help="A tiled program: rsvd or gnmf.")],
    prices: Annotated[Path, typer.Option(help="A Parquet file of prices.")],
    market: Annotated[str, typer.Option(metavar="NAME", help="The market, such as 'us-east-1a c3.xlarge'.")],
    deadline: Annotated[
        int, typer.Option(min=1, metavar="HOURS", help="Hours from the start to the deadline, in market time.")
    ],
    store: Annotated[str, typer.Option(metavar="URL", help="Storage of tiles: a folder or s3://bucket/prefix.")],
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start of the run; by default the middle of the prices.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, max=64, help="Most workers at once.")] = 4,
    task: Annotated[
        float, typer.Option(min=1e-6, metavar="HOURS", help="Minimum market time of a task on one machine.")
    ] = 0.1,
    initialise: Annotated[
        float, typer.Option(min=0.0, metavar="HOURS", help="Market time that a new worker needs to initialise.")
    ] = 0.2,
    speed: Annotated[float, typer.Option(min=1.0, help="Market seconds per real second.")] = 360.0,
    gamma: Annotated[float, typer.Option(min=0.0, help="Weight of the standard deviation of the cost.")] = 0.1,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Run a tiled program on local worker processes; a cookbook decides their number while prices replay.

    A second run with the same store continues where the first ended.

    ebbtide cookbook run rsvd-small.yaml --prices prices.parquet --market NAME --deadline 6 --store tiles
    """
    from ebbtide.forecasts.price_chain import PriceChain
    from ebbtide.live.tiled.program import workflow_of
    from ebbtide.live.tiled.provider import run_program
    from ebbtide.live.tiled.reading import read_program
    from ebbtide.market.billing import billing_preset
    from ebbtide.policies.cookbook.policy import FollowCookbook, elastic_job
    from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
    from ebbtide.policies.cookbook.solving import solve
    from ebbtide.simulation.scenario import Scenario
    from ebbtide.simulation.start_delay import StartDelay

    what = read_program(program)
    catalogue = catalogue_with(instance_types)
    history = PriceHistory.read(prices, catalogue)
    chosen = _market(history, market)
    start_s = to_epoch_s(start) if start is not None else (history.start_s + history.end_s) / 2
    chain = PriceChain.fit(history[chosen], history.start_s, start_s)
    workflow = workflow_of(what, task, most, start_work_h=initialise)
    charges = ChargeModel(chain.prices, *chain.steps(start_s, deadline, HOUR_S))
    book = solve(CookbookProblem(workflow, charges, most=most, work_unit_h=task / 2, risk_aversion=gamma))
    tasks = sum(len(job.tasks) for job in what.jobs)
    typer.echo(f"{what.name}: {tasks} tasks of {task:g} h; {book.summary(history[chosen].at(start_s))}")
    outcome = run_program(
        what,
        FollowCookbook(book, chosen),
        Scenario(
            (elastic_job(workflow, chosen.instance_type),),
            history.select([chosen]),
            billing_preset("per-second"),
            delay=StartDelay(0.0, 0.0),
            catalogue=catalogue,
        ),
        start_s,
        store,
        speed=speed,
        task_h=task,
    )
    typer.echo(str(outcome))
    late = not outcome.finished or outcome.makespan_s > deadline * HOUR_S
    typer.echo(f"deadline of {deadline} h {'missed' if late else 'met'}; the result's tiles are in {store}")


def _market(history: PriceHistory, name: str) -> Market:
    for market in history:
        if str(market) == name:
            return market
    raise unknown_name("market", name, [str(market) for market in history])
