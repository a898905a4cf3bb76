"""`ebbtide report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.analysis.record import Record
from ebbtide.analysis.report import write_report
from ebbtide.analysis.summary import summary_table
from ebbtide.cli.options import table_console


def report_command(
    record: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]", help="A record written by `ebbtide backtest --record` or the pipeline."
        ),
    ] = Path("data/record"),
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the report to.")] = Path(
        "reports/report.html"
    ),
) -> None:
    """Write the report of a backtest: one HTML page with tables and plots that needs no network."""
    tables = Record.read(record)
    table_console().print(summary_table(tables.summary(), tables.title))
    typer.echo(f"wrote {write_report(tables, out)}")
