"""`ebbtide ingest` and `ebbtide describe`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.utc import iso
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import (
    InstanceTypesOption,
    Window,
    catalogue_with,
    print_written,
    terminal,
    to_be_written,
)
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.market.ingestion import FORMATS, ingest_ec2, ingest_files
from ebbtide.market.prices import PriceHistory


@dataclass(frozen=True)
class FetchOptions:
    """Options for fetching prices from EC2."""

    ec2: Annotated[
        list[str] | None,
        typer.Option("--ec2", metavar="REGION", help="Fetch from EC2 instead; may be given again."),
    ] = None
    instance_type: Annotated[
        list[str] | None,
        typer.Option("--instance-type", metavar="TYPE", help="With --ec2: only this type; may be given again."),
    ] = None
    product: Annotated[
        list[str] | None,
        typer.Option(
            "--product",
            help="With --ec2: product descriptions; Linux/UNIX by default. With files: that of rows without one.",
        ),
    ] = None


@dataclass(frozen=True)
class Exports:
    """Options for reading exported files."""

    file_format: Annotated[
        str | None,
        typer.Option("--format", help=f"Format of the files: {', '.join(FORMATS)}. Detected by default."),
    ] = None
    timezone: Annotated[
        str | None,
        typer.Option(help="Time zone of times without an offset, which are errors otherwise."),
    ] = None
    region: Annotated[str | None, typer.Option(help="Region of Azure sheets whose name does not contain it.")] = (
        None
    )


@grouped
def ingest_command(
    *,
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE|FOLDER]...", help="Exports to read.")
    ] = None,
    into: Annotated[Path, typer.Option("--into", "-o", help="The Parquet file to add prices to.")] = Path(
        "data/prices.parquet"
    ),
    fetched: FetchOptions,
    exports: Exports,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Add price records to one clean Parquet file.

    Reads every output of `aws ec2 describe-spot-price-history`, CSV by EC2's names or Kaggle's (datetime,
    instance_type, os, region, price), archives by month, SpotLake's files, Azure's price sheets (CSV) and its
    Retail Prices API (JSON, CSV), and what Ebbtide writes: compressed or not, in folders and archives. Or, with
    --ec2, fetches from EC2 what the file lacks, with credentials from the usual AWS chain. Nothing is written
    unless every row is valid; rows of unknown instance types are left out. A table of one's own, as Parquet, has
    the columns timestamp (UTC), cloud, region, zone, instance_type, product (Linux/UNIX) and price_usd_per_hour, a
    row for each change of a price.

        ebbtide ingest us-east-1.csv --into data/prices.parquet
        ebbtide ingest --ec2 us-east-1 --ec2 eu-west-1 --instance-type p3.2xlarge
    """
    regions = fetched.ec2
    if bool(sources) == bool(regions):
        raise InputError("give either files to ingest or --ec2 REGION")
    if sources and fetched.product and len(fetched.product) > 1:
        raise InputError("rows without a product are of one; give --product once with files")
    catalogue = catalogue_with(instance_types)
    with progress(f"fetching from {', '.join(regions)}" if regions else f"reading into {into.name}"):
        if regions:
            done = ingest_ec2(
                regions,
                into,
                instance_types=fetched.instance_type or (),
                products=fetched.product or ("Linux/UNIX",),
                catalogue=catalogue,
            )
        else:
            done = ingest_files(
                sources or [],
                into,
                file_format=exports.file_format,
                timezone=exports.timezone,
                region=exports.region,
                product=fetched.product[0] if fetched.product else None,
                catalogue=catalogue,
            )
    typer.echo(f"{into}: {len(done.history)} markets, {iso(done.history.start_s)} to {iso(done.history.end_s)}")
    typer.echo(str(done))


@grouped
def describe_command(
    *,
    path: Annotated[Path, typer.Argument(help="A Parquet file of prices, or a price store.")],
    window: Window,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with every column instead.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write every column to.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Describe a price history: each market's level, spread, changes and gaps.

    Prices are USD per hour, means and medians are weighted by time; "ratio" is the mean over on-demand, "above"
    the share of time above it, "gap" the longest time without a row. "?" means that the on-demand price is
    unknown.
    """
    catalogue = catalogue_with(instance_types)
    with progress(f"reading {path.name}"):
        history = window.of(PriceHistory.read(path, catalogue))
        frame = history.describe(catalogue)
    if json_path:
        rows = [
            {"market": str(market), **row.to_dict(), "first": iso(row["first"].timestamp())}
            for market, row in frame.iterrows()
        ]
        span = {"start": iso(history.start_s), "end": iso(history.end_s)}
        write_text(json_path, json_text(span | {"markets": rows}))
    if csv:
        typer.echo(frame.to_csv(), nl=False)
        return
    title = f"{path.name}: {len(history)} markets, {iso(history.start_s)} to {iso(history.end_s)}"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("market", no_wrap=True)
    for heading in ("mean", "median", "min", "max", "on-demand", "ratio", "above", "changes/day", "gap h"):
        table.add_column(heading, justify="right", no_wrap=True)
    for market, row in frame.iterrows():
        table.add_row(
            str(market),
            *(f"{row[f'{name}_usd_per_hour']:.4f}" for name in ("mean", "median", "min", "max")),
            _known(row["on_demand_usd_per_hour"], "{:.4g}"),
            _known(row["ratio_to_on_demand"], "{:.2f}"),
            _known(row["share_above_on_demand"], "{:.1%}"),
            f"{row['changes_per_day']:.1f}",
            f"{row['longest_gap_h']:.1f}",
        )
    terminal().print(table)
    print_written(json_path)


def _known(value: float, form: str) -> str:
    return "?" if math.isnan(value) else form.format(value)
