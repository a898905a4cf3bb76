"""`ebbtide demo`: the first command to try. It needs no input and writes files for the next commands."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.backtesting.backtest import backtest
from ebbtide.base.cores import usable_cores
from ebbtide.base.files import write_text
from ebbtide.cli.generating import capacity_path, refuse_other, write_generated
from ebbtide.cli.options import table_console
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.market.availability import Availability
from ebbtide.market.generator_today import generate_today, today_markets
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.registry import policies
from ebbtide.replay.generated_markets import generate_capacity

# The default policy, and others that are fast to replay; `ebbtide compare` has more.
_POLICIES = "ebbtide,on-demand,cheapest-spot,fastest-spot,reactive,deepspotcloud-best-price"
_STARTS = 10
_DAYS = 30.0


def demo_command(
    into: Annotated[Path, typer.Option("--into", "-o", help="Folder to write to.")] = Path("."),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the prices and the starts.")] = 0,
) -> None:
    """See what Ebbtide does: generated prices, a job, and an HTML report comparing policies.

    Writes prices.parquet, prices-capacity.parquet, job.yaml and report.html; other files with these names are not
    overwritten.

        ebbtide demo
    """
    from ebbtide.backtesting.report import write_report

    prices_file, job_file, report_file = (into / name for name in ("prices.parquet", "job.yaml", "report.html"))
    capacity_file = capacity_path(prices_file)
    example = files("ebbtide.jobs").joinpath("data/one-day.yaml").read_text(encoding="utf-8")
    for path in (prices_file, capacity_file, job_file, report_file):
        refuse_other(path)
    ours = _is(job_file, example) and prices_file.exists()
    if not ours:
        for path in (job_file, report_file):
            if path.exists() and not _is(path, example):
                raise InputError("exists already, with other content; try: ebbtide demo --into demo", file=path)
    chosen = policies(_POLICIES)
    with progress("generating prices", len(today_markets())) as state:
        made = generate_today(days=_DAYS, seed=seed, on_progress=state.of)
        write_generated(made, generate_capacity(made, seed=seed), prices_file)
        history = PriceHistory.read(prices_file)
        write_text(job_file, example)
        job = Job.read(job_file)
        state.step("replaying", _STARTS * len(chosen))
        result = backtest(
            job,
            chosen,
            history,
            billing="by-cloud",
            availability=Availability.read(capacity_file),
            starts=_STARTS,
            seed=seed,
            workers=usable_cores(),
            on_progress=state.done,
        )
        state.step("writing the report")
        write_report(result.record(), report_file)
    table_console().print(result.table())
    typer.echo(f"wrote {prices_file} and {capacity_file} (generated), {job_file} and {report_file}")
    job_name, prices_name, capacity_name = (
        shlex.quote(str(path)) for path in (job_file, prices_file, capacity_file)
    )
    typer.echo(f"open {report_file} in a browser; next:")
    typer.echo(f"  ebbtide describe {prices_name}")
    typer.echo(f"  ebbtide compare {job_name} --prices {prices_name} --availability {capacity_name}")
    typer.echo("  ebbtide run -- python train.py     # your own training, on spot machines")


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
