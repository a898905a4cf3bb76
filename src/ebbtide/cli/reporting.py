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
        Path, typer.Argument(metavar="[FOLDER]", help="What `ebbtide backtest --record` or the pipeline wrote.")
    ] = Path("data/record"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path(
        "reports/report.html"
    ),
) -> None:
    """Write the report of a backtest: one HTML page with tables and plots, readable without a network."""
    tables = Record.read(record)
    table_console().print(summary_table(tables.summary(), tables.title))
    typer.echo(f"wrote {write_report(tables, out)}")
