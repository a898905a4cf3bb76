"""`ebbtide reproduce dynamic-pricing`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.options import InstanceTypesOption, catalogue_with, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.market.lifetimes import read_probe_log
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.dynamic_pricing.claims import reproduce_dynamic_pricing
from ebbtide_papers.dynamic_pricing.figures import dynamic_pricing_figure
from ebbtide_papers.dynamic_pricing.study import TABLE_ONE, markets_or_none, read_throughputs
from ebbtide_papers.printing import show_reproduction
from ebbtide_papers.reproduction import sha256_of


def command(
    prices: Annotated[
        list[Path], typer.Option(help="A Parquet file of prices; may be given again for another cloud.")
    ],
    throughputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help='Steps per second: {gpu: {model: {"null": rate}}}; by default Table 1.'
        ),
    ] = None,
    probes: Annotated[
        Path | None, typer.Option(help="A Parquet log of machines that were kept running: Fig. 2.")
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the claims to.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(callback=to_be_written, metavar="FILE.html", help="File to draw Figures 1 to 6 in."),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Dynamic Pricing's Tables 1 to 3 and Figures 1 to 6: the value of each source of price variation.

    ebbtide reproduce dynamic-pricing --prices aws.parquet --prices azure.parquet --json dynamic-pricing.json
    """
    catalogue = catalogue_with(instance_types)
    histories = [PriceHistory.read(path, catalogue) for path in prices]
    rates = read_throughputs(throughputs) if throughputs else TABLE_ONE
    lives = read_probe_log(probes) if probes else ()
    files = [*prices, *(path for path in (throughputs, probes) if path)]
    with progress("solving allocations on recorded prices"):
        result = reproduce_dynamic_pricing(histories, rates, catalogue, lives, inputs=sha256_of(files))
    figure = partial(dynamic_pricing_figure, markets_or_none(histories, catalogue), lives, result.tables)
    show_reproduction(result, "Dynamic Pricing's claims", json_path, plot, figure)
