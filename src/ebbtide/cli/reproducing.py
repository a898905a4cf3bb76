"""`ebbtide reproduce`: a paper's claims beside ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.cli.options import InstanceTypesOption, catalogue_with, terminal
from ebbtide.cli.progress import progress
from ebbtide.experiments.reproduction import Reproduction
from ebbtide.files import write_text
from ebbtide.market.prices import PriceHistory
from ebbtide.utc import DAY_S

if TYPE_CHECKING:
    import plotly.graph_objects as go

reproduce_app = typer.Typer(no_args_is_help=True, help="Reproduce a paper's evaluation on given prices.")

# With --quick.
_FEW_STARTS = 3
_FEW_MOVES = 20
_RARELY_S = 2 * DAY_S
_FEW_TRACES = 4_000


@reproduce_app.callback()
def reproduce() -> None:
    """Each claim with the paper's figure, ours, and whether it holds by a rule stated beside it."""


@reproduce_app.command("spottune")
def spottune_command(
    prices: Annotated[Path, typer.Option(help="A Parquet file of prices: its first 40 % train the forecasts.")],
    curves: Annotated[
        Path | None,
        typer.Option(help="A Parquet file of learning curves; else those of Table II."),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="How many start times.")] = 20,
    seed: Annotated[int, typer.Option(help="Of all chance.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_STARTS} starts.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the claims there.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Draw Figures 6 to 12 there.")] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """SpotTune's Figures 6 to 12: cost, completion time, refunds, forecasts, selection.

    ebbtide reproduce spottune --prices prices.parquet --json spottune.json
    """
    from ebbtide.experiments.reproduction import sha256_of
    from ebbtide.experiments.spottune_figures import spottune_figure
    from ebbtide.experiments.spottune_reproduction import reproduce_spottune
    from ebbtide.experiments.spottune_study import study
    from ebbtide.learning_curves.calibration import default_calibration
    from ebbtide.learning_curves.curves import read_curves
    from ebbtide.learning_curves.methods import evaluate_methods, table_two_curves

    catalogue = catalogue_with(instance_types)
    history = PriceHistory.read(prices, catalogue)
    whole = read_curves(curves) if curves else table_two_curves()
    with progress("preparing") as state:
        found = study(
            history,
            whole,
            starts=_FEW_STARTS if quick else starts,
            seed=seed,
            catalogue=catalogue,
            on_progress=state.say,
        )
        state.say("fitting learning curves")
        scores = evaluate_methods(whole, default_calibration(), ["earlycurve", "slaq"])["methods"]
    files = [prices, *([curves] if curves else [])]
    result = reproduce_spottune(found, scores, inputs=sha256_of(files), seed=seed)
    _tell(result, "SpotTune's claims", json_path, plot, lambda: spottune_figure(result.tables))


@reproduce_app.command("deepspotcloud")
def deepspotcloud_command(
    prices: Annotated[Path, typer.Option(help="A Parquet file: two markets of a GPU type at least.")],
    region: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.parquet", help="Prices of a whole region, today's billing; again for another."),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="How many start times.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of all chance.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Threads.")] = 2,
    generated: Annotated[
        bool,
        typer.Option("--generated-regions/--real-only", help="A second table, generated regions beside the real."),
    ] = True,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_MOVES} starts.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the claims there.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Draw Figures 1, 2 and 6 there.")] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """DeepSpotCloud's Figures 1, 2 and 6: GPU prices; when to move a job, by its length.

    ebbtide reproduce deepspotcloud --prices prices.parquet --json deepspotcloud.json
    """
    from ebbtide.experiments.deepspotcloud_figures import deepspotcloud_figure
    from ebbtide.experiments.deepspotcloud_reproduction import reproduce_deepspotcloud
    from ebbtide.experiments.deepspotcloud_study import (
        gpu_markets,
        migration_study,
        one_type_job,
        with_generated_regions,
    )
    from ebbtide.experiments.price_analysis import standings
    from ebbtide.experiments.region_study import region_study
    from ebbtide.experiments.reproduction import sha256_of

    catalogue = catalogue_with(instance_types)
    whole = PriceHistory.read(prices, catalogue)
    history = gpu_markets(whole, catalogue)
    job_of = partial(one_type_job, history.markets[0].instance_type)
    number = _FEW_MOVES if quick else starts
    with progress("compiling") as state:
        study = partial(
            migration_study,
            job_of=job_of,
            starts=number,
            seed=seed,
            workers=workers,
            catalogue=catalogue,
            on_progress=state.say,
        )
        found = study(history)
        wider = study(with_generated_regions(history, catalogue, seed)) if generated else None
        regions = {
            path.stem: region_study(
                PriceHistory.read(path, catalogue), catalogue, starts=number, seed=seed, workers=workers,
                on_progress=state.say,
            )
            for path in region or []
        }
    files = sha256_of([prices, *(region or [])])
    result = reproduce_deepspotcloud(
        found, wider, standings(whole, catalogue), regions, inputs=files, seed=seed
    )
    figure = partial(deepspotcloud_figure, history, result.tables, catalogue)
    _tell(result, "DeepSpotCloud's claims", json_path, plot, figure)


@reproduce_app.command("dynamic-pricing")
def dynamic_pricing_command(
    prices: Annotated[list[Path], typer.Option(help="A Parquet file of prices; again for another cloud.")],
    throughputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help='Steps a second: {gpu: {model: {"null": rate}}}; else Table 1.'),
    ] = None,
    probes: Annotated[
        Path | None, typer.Option(help="A Parquet log of machines that were kept running: Fig. 2.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the claims there.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Draw Figures 1 to 6 there.")] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Dynamic Pricing's Tables 1 to 3 and Figures 1 to 6: what each source of price variation is worth.

    ebbtide reproduce dynamic-pricing --prices aws.parquet --prices azure.parquet --json dynamic-pricing.json
    """
    from ebbtide.experiments.dynamic_pricing_figures import dynamic_pricing_figure
    from ebbtide.experiments.dynamic_pricing_reproduction import reproduce_dynamic_pricing
    from ebbtide.experiments.dynamic_pricing_study import TABLE_ONE, gpu_markets, read_throughputs
    from ebbtide.experiments.reproduction import sha256_of
    from ebbtide.market.probe_log import read_probe_log

    catalogue = catalogue_with(instance_types)
    histories = [PriceHistory.read(path, catalogue) for path in prices]
    rates = read_throughputs(throughputs) if throughputs else TABLE_ONE
    lives = read_probe_log(probes) if probes else ()
    files = [*prices, *(path for path in (throughputs, probes) if path)]
    with progress("solving allocations on recorded prices"):
        result = reproduce_dynamic_pricing(histories, rates, catalogue, lives, inputs=sha256_of(files))
    figure = partial(dynamic_pricing_figure, gpu_markets(histories, catalogue), lives, result.tables)
    _tell(result, "Dynamic Pricing's claims", json_path, plot, figure)


@reproduce_app.command("cumulon")
def cumulon_command(
    prices: Annotated[
        Path | None, typer.Option(help="A Parquet file with c3.xlarge: RSVD-1 on a real market, too.")
    ] = None,
    traces: Annotated[int, typer.Option(min=100, help="How many simulated ones.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of all chance.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_TRACES} traces.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the claims there.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw Figures 2 and 4 to 8 there.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Cümülön-D's Figures 2 and 4 to 8 and Table 2: what a cookbook costs beside its rivals.

    ebbtide reproduce cumulon --prices prices.parquet --json cumulon.json
    """
    from ebbtide.experiments.cumulon_figures import cumulon_figure
    from ebbtide.experiments.cumulon_real_market import real_market_study
    from ebbtide.experiments.cumulon_reproduction import reproduce_cumulon
    from ebbtide.experiments.cumulon_study import cumulon_study
    from ebbtide.experiments.reproduction import sha256_of

    real = None
    with progress("compiling") as state:
        found = cumulon_study(traces=_FEW_TRACES if quick else traces, seed=seed, on_progress=state.say)
        if prices:
            history = PriceHistory.read(prices, catalogue_with(instance_types))
            market = next((market for market in history if market.instance_type == "c3.xlarge"), None)
            real = real_market_study(history, market, on_progress=state.say) if market else None
    result = reproduce_cumulon(found, real, inputs=sha256_of([prices] if prices else []), seed=seed)
    _tell(result, "Cümülön-D's claims", json_path, plot, lambda: cumulon_figure(found))


@reproduce_app.command("exosphere")
def exosphere_command(
    prices: Annotated[Path, typer.Option(help="A Parquet file of auction prices.")],
    region: Annotated[
        list[Path] | None, typer.Option(help="A Parquet file of a whole region: portfolios at that scale, too.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all chance.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help=f"Few starts, and {_FEW_STARTS} losses.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the claims there.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw Figures 3, 4 and 7 to 12 there.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """ExoSphere's Figures 3, 4 and 7 to 12 and Table 1: what portfolios of markets save and risk beside rivals.

    ebbtide reproduce exosphere --prices prices.parquet --json exosphere.json
    """
    from ebbtide.experiments.exosphere_figures import exosphere_figure
    from ebbtide.experiments.exosphere_reproduction import reproduce_exosphere
    from ebbtide.experiments.mpi_study import EVERY_S
    from ebbtide.experiments.reproduction import sha256_of

    catalogue = catalogue_with(instance_types)
    with progress("reading prices") as state:
        history = PriceHistory.read(prices, catalogue)
        regions = {path.stem: PriceHistory.read(path, catalogue) for path in region or ()}
        result = reproduce_exosphere(
            history,
            regions,
            catalogue,
            inputs=sha256_of([prices, *(region or ())]),
            draws=_FEW_STARTS if quick else 20,
            starts_every_s=_RARELY_S if quick else EVERY_S,
            seed=seed,
            on_progress=state.say,
        )
    _tell(result, "ExoSphere's claims", json_path, plot, lambda: exosphere_figure(result.tables))


@reproduce_app.command("deadlines")
def deadlines_command(
    traces: Annotated[
        list[Path],
        typer.Option(help="A table of availability, probes or capacity; or a folder of them and of prices."),
    ],
    starts: Annotated[int, typer.Option(min=1, help="How many starts in each record.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the starts.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_STARTS} starts.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the claims there.")] = None,
) -> None:
    """Deadlines where capacity decides: in one zone, and in several at once, against rivals and the optimum.

    What a file tells of is seen by its columns. Prices that go with probes or capacity rounds are taken from what
    is given, and from the folder that the file lies in.

    ebbtide reproduce deadlines --traces traces/ --json deadlines.json
    """
    from ebbtide.experiments.deadline_inputs import read_inputs
    from ebbtide.experiments.deadline_reproduction import reproduce_deadlines
    from ebbtide.experiments.reproduction import sha256_of

    count = _FEW_STARTS if quick else starts
    with progress("reading records") as state:
        given = read_inputs(traces)
        result = reproduce_deadlines(
            given, starts=count, seed=seed, inputs=sha256_of(given.files), on_progress=state.at
        )
    _tell(result, "Deadlines", json_path)
    for why in dict.fromkeys(one.why for one in given.left_out):
        typer.echo(f"left out: {why}", err=True)


def _tell(
    result: Reproduction,
    title: str,
    json_path: Path | None,
    plot: Path | None = None,
    figure: Callable[[], go.Figure] | None = None,
) -> None:
    """Write what was asked for, print the claims, and tell what was written."""
    if json_path:
        result.write(json_path)
    if plot and figure:
        write_text(plot, figure().to_html(include_plotlyjs=True, full_html=True))
    _show(result, title)
    for path in (json_path, plot):
        if path:
            typer.echo(f"wrote {path}")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def _show(result: Reproduction, title: str) -> None:
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in ("claim", "paper", "ours", "unit", "holds"):
        table.add_column(heading, justify="right" if heading in ("paper", "ours") else "left")
    for row in result.rows:
        table.add_row(row.id, _number(row.paper), _number(row.ours), row.unit, "yes" if row.holds else "no")
    terminal().print(table)
