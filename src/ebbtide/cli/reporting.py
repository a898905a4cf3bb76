"""`ebbtide report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.analysis.record import read_records
from ebbtide.analysis.report import write_report
from ebbtide.analysis.summary import summary_table
from ebbtide.cli.options import table_console


def report_command(
    record: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="A record written by `ebbtide backtest --record`, or the records of the pipeline.",
        ),
    ] = Path("data/record"),
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the report to.")] = Path(
        "reports/report.html"
    ),
) -> None:
    """Write the report of backtests: one HTML page with tables and plots that needs no network."""
    records = read_records(record)
    for name, tables in records.items():
        title = tables.title if len(records) == 1 else tables.title_under(name)
        table_console().print(summary_table(tables.summary(), title))
    typer.echo(f"wrote {write_report(records, out)}")
