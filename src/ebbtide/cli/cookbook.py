"""`ebbtide cookbook`: solve, show and apply cookbooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.files import write_text
from ebbtide.base.utc import HOUR_S, iso, to_epoch_s
from ebbtide.cli.cookbook_options import (
    Charging,
    PastMarket,
    RecordedMarket,
    Renting,
    Solving,
)
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import InstanceTypesOption, catalogue_with, terminal
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError

cookbook_app = typer.Typer(
    no_args_is_help=True,
    help="Cümülön-D: how many machines to hold at each time, so that a workflow meets its deadline.",
)

_SHOWN_PRICES = 8


@cookbook_app.command("solve")
@grouped
def solve_command(
    *,
    workflow: Annotated[Path, typer.Argument(metavar="WORKFLOW.yaml", help="Jobs in order, with their speedups.")],
    market: PastMarket,
    deadline: Annotated[int, typer.Option(min=1, metavar="HOURS", help="Hours from the start to the deadline.")],
    into: Annotated[Path, typer.Option("--into", "-o", help="File to write the cookbook to.")] = Path(
        "cookbook.safetensors"
    ),
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start of the workflow; by default the end of the record.")
    ] = None,
    solving: Solving,
    charging: Charging,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Solve a cookbook for a workflow, a deadline and a market.

    ebbtide cookbook solve rsvd.yaml --prices prices.parquet --market 'us-east-1a c3.xlarge' --deadline 15
    """
    from ebbtide.forecasts.price_chain import PriceChain
    from ebbtide.jobs.workflow import Workflow
    from ebbtide.policies.cookbook.problem import CookbookProblem
    from ebbtide.policies.cookbook.solving import solve
    from ebbtide.policies.cookbook.storage import save_cookbook

    work = Workflow.read(workflow)
    history, chosen = market.read(catalogue_with(instance_types))
    start_s = to_epoch_s(start) if start is not None else history.end_s
    known_until_s = min(start_s, history.end_s)
    chain = PriceChain.fit(history[chosen], history.start_s, known_until_s)
    charges = charging.charges(chain, start_s, deadline)
    with progress(f"solving {charges.steps} steps backwards from the deadline"):
        book = solve(
            CookbookProblem(
                work, charges, most=solving.most, work_unit_h=solving.unit, risk_aversion=solving.gamma
            )
        )
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
    from ebbtide.backtesting.figures import cookbook_figure
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
@grouped
def apply_command(
    *,
    path: Annotated[Path, typer.Argument(metavar="COOKBOOK", help="A file that `solve` wrote.")],
    market: RecordedMarket,
    start: Annotated[str, typer.Option(metavar="TIME", help="Start of the run.")],
    renting: Renting,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Run a cookbook as a policy on the engine, on recorded prices.

    With billing by the second, bids are infinite. With billing by whole hours, bids follow the skyline, decisions
    are made ahead by the delay, and machines are kept to the end of a paid hour.

    ebbtide cookbook apply cookbook.safetensors --prices prices.parquet --market 'us-east-1a c3.xlarge' --start ...
    """
    from ebbtide.policies.cookbook.policy import elastic_job
    from ebbtide.policies.cookbook.storage import load_cookbook
    from ebbtide.replay.start_delay import StartDelay
    from ebbtide.runs.run import run

    book = load_cookbook(path)
    catalogue = catalogue_with(instance_types)
    history, chosen = market.read(catalogue)
    job = elastic_job(book.problem.workflow, chosen.instance_type)
    policy = renting.policy(book, chosen)
    with progress("replaying the cookbook"):
        outcome = run(
            job,
            policy,
            "replay",
            prices=history.select([chosen]),
            start=to_epoch_s(start),
            billing=renting.rule,
            delay=StartDelay(renting.delay, 0.0),
            catalogue=catalogue,
        )
    typer.echo(str(outcome))
    deadline_h = book.problem.market.steps * book.problem.step_h
    late = not outcome.finished or outcome.makespan_s > deadline_h * HOUR_S + 1.0
    typer.echo(f"deadline of {deadline_h:g} h {'missed' if late else 'met'}")
