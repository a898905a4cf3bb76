"""`ebbtide hazard fit`, `evaluate` and `intervals`: the chance that a machine is refused or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.backtesting.checkpoint_intervals import IntervalScore, score_interval
from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.utc import HOUR_S, MINUTE_S
from ebbtide.cli.options import InstanceTypesOption, catalogue_with, print_written, terminal, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.evaluation import ESTIMATES, LEARNT_SHARE, HazardScore, evaluate_hazard
from ebbtide.forecasts.hazard.fitting import fit_hazard
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.forecasts.hazard.observations import MarketObservations, has_observations, read_observations
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats

hazard_app = typer.Typer(
    no_args_is_help=True,
    help="The chance that a machine is refused or lost: fit models, score them against rivals.",
)

_NO_PRIOR = "none"

TracesOption = Annotated[
    list[Path],
    typer.Option("--traces", metavar="PATH", help="A folder of records, or one record; may be repeated."),
]

PriorOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Hazard to learn on top of; `none` for none. By default that of the package, but none for a record "
        "that it was fitted to.",
        show_default=False,
    ),
]


@hazard_app.command("evaluate")
def evaluate_command(
    traces: TracesOption,
    learnt_share: Annotated[float, typer.Option(help="Share of each record that is learnt from.")] = LEARNT_SHARE,
    prior: PriorOption = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write all scores to.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=to_be_written, help="File to write the reliability curves to.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Score the chance of losses and refusals on later days and on markets left out, against four rivals.

    The first part of each record is learnt from, and the rest scored. Records are launch probes, capacity rounds,
    ticks, lists of machines or launches, and prices, where a machine is lost above the on-demand price.

        ebbtide hazard evaluate --traces records/ --json hazard.json
    """
    rows: list[HazardScore] = []
    curves: dict[str, tuple[np.ndarray, Floats]] = {}

    def score(observations: list[MarketObservations], name: str, start: Hazard | None) -> None:
        found = evaluate_hazard(observations, name, start, learnt_share)
        rows.extend(found.rows)
        curves.update(
            {
                f"{name}: {event} {_time(horizon_s)}": (happened > 0.0, chances)
                for (event, horizon_s), (chances, happened) in found.chances.items()
                if len(happened)
            }
        )

    _each_record(traces, prior, instance_types, score)
    if json_path:
        write_text(json_path, json_text({"rows": [asdict(row) for row in rows]}))
    if plot:
        from ebbtide.backtesting.figures import reliability_figure

        write_text(plot, reliability_figure(curves).to_html(include_plotlyjs=True))
    _print(rows)
    print_written(json_path, plot)


@hazard_app.command("fit")
def fit_command(
    records: Annotated[list[Path], typer.Argument(help="Records; see `hazard evaluate`.")],
    out: Annotated[Path, typer.Option(help="File to write the hazard to.")],
    prior: PriorOption = None,
    pooled: Annotated[
        bool,
        typer.Option("--pooled", help="Keep levels of clouds, types and regions, and none of a single market."),
    ] = False,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Fit a hazard to records. A model bundle takes it as its part `hazard`.

    ebbtide hazard fit probes.parquet --out hazard.json
    """
    with progress("fitting", len(records)) as state:
        observations = []
        for record in records:
            state.begin(record.stem)
            observations += _read(record, instance_types)
        found = fit_hazard(observations, _prior(prior), [record.stem for record in records])
    (found.pooled() if pooled else found).write(out)
    print_written(out)


@hazard_app.command("intervals")
def intervals_command(
    traces: TracesOption,
    save: Annotated[float, typer.Option(metavar="SECONDS", help="Time that a save takes.")] = 60.0,
    restore: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time that a machine takes to restore.")
    ] = 90.0,
    learnt_share: Annotated[float, typer.Option(help="Share of each record that is learnt from.")] = LEARNT_SHARE,
    prior: PriorOption = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write all intervals to.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Compare the interval between checkpoints that each record implies with the best by search.

    The hazard of a record's first part gives the mean life of machines, and that the interval (Young 1974). The
    lives in the rest of the record say how much machine time a second of kept work costs with it, and with the
    interval that would have been best there.

        ebbtide hazard intervals --traces records/ --save 120 --json intervals.json
    """
    found: list[IntervalScore] = []

    def score(observations: list[MarketObservations], name: str, start: Hazard | None) -> None:
        found.append(score_interval(observations, name, start, learnt_share, save_s=save, restore_s=restore))

    _each_record(traces, prior, instance_types, score)
    if json_path:
        rows = [{**asdict(each), "ratio": each.ratio} for each in found]
        write_text(json_path, json_text({"save_s": save, "restore_s": restore, "rows": rows}))
    table = Table(title=f"saves of {save:g} s: machine time for a second of kept work", box=SIMPLE_HEAD)
    for heading in ("record", "lives", "lost", "mean life", "interval", "best", "cost", "best cost", "ratio"):
        table.add_column(heading, justify="left" if heading == "record" else "right", no_wrap=True)
    for each in found:
        spans = [_time(span_s) for span_s in (each.mean_life_s, each.interval_s, each.best_interval_s)]
        costs = [f"{cost:.4f}" for cost in (each.cost, each.best_cost, each.ratio)]
        table.add_row(each.data, str(each.lives), str(each.lost), *spans, *costs)
    terminal().print(table)
    print_written(json_path)


def _each_record(
    traces: list[Path],
    prior: str | None,
    instance_types: Path | None,
    score: Callable[[list[MarketObservations], str, Hazard | None], None],
) -> None:
    """Score each record, on top of the hazard that does not know it; those that cannot be are named.

    Raises:
        InputError: No record can be scored.
    """
    files = _records(traces)
    start = _prior(prior)
    scored = 0
    with progress("scoring", len(files)) as state:
        for file in files:
            state.begin(file.stem)
            try:
                # On what the package's hazard was fitted to, it would know the rest of the record.
                is_known = prior is None and start is not None and file.stem in start.learnt_from
                score(_read(file, instance_types), file.stem, None if is_known else start)
                scored += 1
            except InputError as error:
                if len(files) == 1:
                    raise
                typer.echo(f"{file.name} is left out: {error.problem}", err=True)
    if not scored:
        raise InputError("no record could be scored", file=traces[0])


def _records(traces: list[Path]) -> list[Path]:
    """The records among the files and in the folders; those without observations are left out."""
    files: list[Path] = []
    for path in traces:
        if not path.exists():
            raise InputError("does not exist", file=path)
        files += (
            [path] if path.is_file() else [file for file in sorted(path.rglob("*.parquet")) if _is_record(file)]
        )
    if not files:
        raise InputError(
            "holds no record of markets: no Parquet file of probes, rounds, machines or prices", file=traces[0]
        )
    return files


def _is_record(path: Path) -> bool:
    """Return whether a file of a folder is a record; one that cannot be read is told and left out."""
    try:
        return has_observations(path)
    except InputError as error:
        typer.echo(f"{path.name} is left out: {error.problem}", err=True)
        return False


def _read(path: Path, instance_types: Path | None) -> list[MarketObservations]:
    catalogue = catalogue_with(instance_types)

    def list_price(market: Market, time_s: float) -> float | None:
        return catalogue.on_demand_usd_per_hour(market, time_s)

    return read_observations(path, list_price)


def _prior(name: str | None) -> Hazard | None:
    if name is None:
        return default_hazard()
    return None if name == _NO_PRIOR else Hazard.read(Path(name))


def _time(horizon_s: float) -> str:
    return f"{horizon_s / HOUR_S:g} h" if horizon_s >= HOUR_S else f"{horizon_s / MINUTE_S:.3g} min"


def _print(rows: list[HazardScore]) -> None:
    """Print the log loss of each estimate, the best marked; a table for each record."""
    tables: dict[str, dict[tuple[str, float], dict[str, HazardScore]]] = {}
    for row in rows:
        by_event = tables.setdefault(row.data, {}).setdefault((row.event, row.horizon_s), {})
        by_event[row.estimate] = row
    for data, events in tables.items():
        table = Table(title=f"{data}: log loss; * is the least", box=SIMPLE_HEAD)
        for heading in ("event", "within", "moments", "share", *ESTIMATES):
            table.add_column(heading, justify="left" if heading == "event" else "right", no_wrap=True)
        for (event, horizon_s), by_name in events.items():
            one, best = by_name[ESTIMATES[0]], min(each.log_loss for each in by_name.values())
            cells = [
                f"{each.log_loss:.4f}{'*' if each.log_loss <= best else ' '}"
                for each in (by_name[name] for name in ESTIMATES)
            ]
            table.add_row(event, _time(horizon_s), str(one.n), f"{one.happened:.3g}", *cells)
        terminal().print(table)
