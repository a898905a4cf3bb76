"""`ebbtide report`: write a page of backtests, or print the spending of a month."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ebbtide.base.files import check_place, write_text
from ebbtide.base.json_values import finite
from ebbtide.base.terminal import visible
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import table_console
from ebbtide.cli.runs import JsonOption, RunsOption
from ebbtide.clouds.settings import RUNS
from ebbtide.controller.team.account_lines import checked_month
from ebbtide.controller.team.team import named_team
from ebbtide.errors import InputError

_OUT = Path("reports/report.html")


@dataclass(frozen=True)
class Spent:
    """Options for a report of the spending of live runs in a month."""

    month: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM", help="Instead of backtests: what live runs have spent in this month (UTC)."
        ),
    ] = None
    by: Annotated[
        str, typer.Option(metavar="GROUP", help="Sums by owner, run, policy, provider, market or tag:NAME.")
    ] = "owner"
    team: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The team, whose accounts are read, too; by default of EBBTIDE_TEAM."),
    ] = None
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write every amount, which together are the total.")
    ] = None
    runs: RunsOption = RUNS
    as_json: JsonOption = False


@grouped
def report_command(
    record: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="A record written by `ebbtide compare --record`, or the records of the pipeline.",
        ),
    ] = Path("data/record"),
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the report to.")] = _OUT,
    spent: Spent,
) -> None:
    """Write the report of backtests, an HTML page that needs no network; or, with --month, tell what was spent."""
    if spent.month is not None:
        _print_month(spent)
        return
    if spent.audit is not None:
        raise InputError("an audit is of a month; name it with --month", field="--audit")
    from ebbtide.backtesting.record import read_records
    from ebbtide.backtesting.report import write_report
    from ebbtide.backtesting.summary import summary_table

    records = read_records(record)
    for name, tables in records.items():
        title = tables.title if len(records) == 1 else tables.title_under(name)
        table_console().print(summary_table(tables.summary(), title))
    typer.echo(f"wrote {write_report(records, out)}")


def _print_month(spent: Spent) -> None:
    from ebbtide.tracking.month_report import month_report

    if spent.audit is not None:
        check_place(spent.audit)
    report = month_report(checked_month(spent.month or ""), spent.runs, named_team(spent.team))
    sums = report.by(spent.by)
    by_whom = " by the runs that can be read" if report.unreadable else ""
    if spent.as_json:
        found = {
            "month": report.month,
            "usd": report.total_usd,
            "by": spent.by,
            "rows": sums.to_dict("records"),
            "budgets": [{"of": of, "spent_usd": usd, "budget_usd": most} for of, usd, most in report.budgets()],
            "unreadable": dict(report.unreadable),
        }
        typer.echo(json.dumps(finite(found), indent=2))
    elif report.lines.empty:
        typer.echo(f"nothing was spent in {report.month}{by_whom}")
    else:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for heading in (spent.by, "runs", "machine-hours", "charged USD", "refunded", "egress", "USD"):
            table.add_column(Text(heading), justify="left" if heading == spent.by else "right", overflow="fold")
        for _, row in sums.iterrows():
            money = [f"{row[name]:.4f}" for name in ("charged_usd", "refunded_usd", "egress_usd", "usd")]
            table.add_row(Text(str(row[spent.by])), str(row["runs"]), f"{row['machine_hours']:.2f}", *money)
        table_console().print(table)
        simulated = report.simulated_usd
        of_it = f", of it {simulated:.4f} USD simulated by provider local" if simulated else ""
        typer.echo(f"{report.total_usd:.4f} USD in {report.month}{by_whom}{of_it}")
        for of, usd, most in report.budgets():
            typer.echo(f"{of}: {usd:.4f} of {most:g} USD, {usd / most:.0%}")
        if report.outside & set(report.lines["run"]):
            typer.echo("runs without this team are in the sum, and not in its budgets")
    for run, why in report.unreadable.items():
        typer.echo(visible(f"{run} cannot be read whole: {why}"), err=True)
    if spent.audit is not None:
        write_text(spent.audit, report.audit().to_csv(index=False, float_format="%.12g"))
        typer.echo(f"wrote {len(report.lines)} amounts to {spent.audit}", err=spent.as_json)
