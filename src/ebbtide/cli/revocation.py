"""`ebbtide revocation train`, `evaluate` and `predict`.

Training code is imported inside the commands, since loading PyTorch takes seconds.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.utc import iso
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import InstanceTypesOption, Window, catalogue_with, print_written, terminal, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.market.prices import PriceHistory

if TYPE_CHECKING:
    from ebbtide.forecasts.revocation.evaluation import Protocol

revocation_app = typer.Typer(
    no_args_is_help=True,
    help="Models of revocation within the hour: train, evaluate against rivals, predict.",
)

PricesOption = Annotated[Path, typer.Option("--prices", help="A Parquet file of prices.")]


@dataclass(frozen=True)
class Splits:
    """The days to train and to score models on."""

    train_days: Annotated[float, typer.Option(help="Days to train on, the last fifth for validation.")] = 9.0
    test_days: Annotated[float, typer.Option(help="Days to score on, starting an hour later.")] = 3.0
    origins: Annotated[int, typer.Option(help="Number of such splits, evenly spread over the record.")] = 4
    stride: Annotated[
        int | None, typer.Option(help="Minutes between training samples; 5, or 20 for over 30 days.")
    ] = None
    test_stride: Annotated[
        int | None, typer.Option(help="Minutes between scored samples; 1, or 5 for over 10 days.")
    ] = None

    def protocol(self, seed: int) -> Protocol:
        """Make the protocol of the evaluation; samples of long periods are further apart."""
        from ebbtide.forecasts.revocation.evaluation import Protocol

        return Protocol(
            self.train_days,
            self.test_days,
            self.origins,
            self.stride or (5 if self.train_days <= 30 else 20),
            self.test_stride or (1 if self.test_days <= 10 else 5),
            seed,
        )


@revocation_app.command("evaluate")
@grouped
def evaluate_command(
    *,
    prices: PricesOption,
    splits: Splits,
    names: Annotated[
        str,
        typer.Option(
            "--models", help="Models to score: revpred, revpred-published, tributary, logistic, base-rate."
        ),
    ] = "revpred,tributary,logistic,base-rate",
    seed: Annotated[int, typer.Option(min=0, help="Seed of models and max prices.")] = 0,
    window: Window,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write all scores to.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            callback=to_be_written, help="File to write the reliability figure to, before and after correction."
        ),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Score models on later data, all on the same markets, minutes and max prices.

    Thresholds, early stopping and calibration are chosen on the last fifth of the training days. Scores are
    given for max prices with the published delta and for 0.1 %, 1 % and 10 % above the price.

        ebbtide revocation evaluate --prices prices.parquet --train-days 9 --test-days 3 --json out.json
    """
    from ebbtide.backtesting.figures import reliability_figure
    from ebbtide.forecasts.revocation.evaluation import DELTAS, evaluate

    history = window.of(PriceHistory.read(prices, catalogue_with(instance_types)))
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    with _quiet() as noted, progress("preparing", splits.origins * len(chosen)) as state:
        result = evaluate(history, splits.protocol(seed), chosen, on_progress=state.begin)
    _warn(noted)
    scores = result.to_dict()
    if json_path:
        write_text(json_path, json_text(scores))
    if plot:
        write_text(plot, reliability_figure(result.reliability_curves()).to_html(include_plotlyjs=True))
    days = f"{splits.train_days:g} days of training, {splits.test_days:g} of test"
    title = f"{len(result.starts)} x {days}; pooled over markets"
    _print_scores(title, {(name, d): _of(scores["models"][name], d) for d in DELTAS for name in chosen})
    if scores["correction"]:
        rows = {("Eq. 3 " + name, "published"): row for name, row in scores["correction"].items()}
        _print_scores("RevPred before calibration, by direction of Eq. 3", rows)
    print_written(json_path, plot)


@revocation_app.command("train")
def train_command(
    prices: PricesOption,
    into: Annotated[Path, typer.Option("--into", "-o", help="Folder to write the model to.")] = Path(
        "models/revpred"
    ),
    train_days: Annotated[float, typer.Option(help="Days to train on, the last fifth for validation.")] = 30.0,
    test_days: Annotated[float, typer.Option(help="The latest days, to score on.")] = 3.0,
    stride: Annotated[int, typer.Option(help="Minutes between training samples.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, batches and max prices.")] = 0,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Train RevPred on the latest data and write it with a card for each market.

    ebbtide revocation train --prices prices.parquet --into models/revpred
    """
    from ebbtide.forecasts.revocation.evaluation import fit_latest
    from ebbtide.forecasts.revocation.storage import model_card, save_model

    history = PriceHistory.read(prices, catalogue_with(instance_types))
    with _quiet() as noted, progress(f"training on {train_days:g} days of {len(history)} markets"):
        fitted = fit_latest(history, train_days=train_days, test_days=test_days, stride=stride, seed=seed)
    save_model(fitted.model, into)
    for row, market in enumerate(fitted.model.markets):
        if fitted.markets[str(market)]:
            card = model_card(fitted.model, market, fitted.trained, fitted.markets[str(market)])
            write_text(into / "cards" / f"market-{row:04}.md", card)
    _warn(noted)
    _print_scores(f"later data: {test_days:g} days", {("revpred", d): s for d, s in fitted.pooled.items()})
    typer.echo(f"wrote {into}")


@revocation_app.command("predict")
def predict_command(
    prices: PricesOption,
    model: Annotated[Path, typer.Option(help="A folder written by `train`.")] = Path("models/revpred"),
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time to predict for; by default the end of the prices.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Max price above the current price, percent.")] = 10.0,
    max_price: Annotated[
        float | None, typer.Option(help="One max price for all markets instead, USD per hour.")
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the answers to.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Predict with a model: the probability that each market revokes within the hour.

    ebbtide revocation predict --prices prices.parquet --delta 5
    """
    from ebbtide.base.utc import to_epoch_s
    from ebbtide.forecasts.revocation.serving import PricesAt, Served
    from ebbtide.forecasts.revocation.storage import load_model

    if delta < 0 and max_price is None:
        raise InputError(f"delta is {delta:g} %; a max price below the price is refused at once")
    if max_price is not None and not max_price > 0:
        raise InputError(f"max price is {max_price:g}; it must be positive")
    history = PriceHistory.read(prices, catalogue_with(instance_types))
    served = Served(load_model(model), every_min=1)
    time_s = to_epoch_s(at) if at else history.end_s
    history.check_inside(time_s)
    view = PricesAt(history, time_s)
    markets = list(served.answers(view, list(history)))
    if not markets:
        raise InputError(f"no market of the model has prices for the hour before {iso(time_s)}", file=prices)
    now = [view.price(market) for market in markets]
    asked = [max_price if max_price is not None else price * (1 + delta / 100) for price in now]
    answers = served.probabilities(view, markets, np.array(asked))
    table = Table(title=f"revoked within the hour after {iso(time_s)}", box=SIMPLE_HEAD)
    for heading in ("market", "price", "max price", "probability"):
        table.add_column(heading, justify="left" if heading == "market" else "right", no_wrap=True)
    rows = [
        {"market": str(market), "price": price, "max_price": limit, "probability": float(answer)}
        for market, price, limit, answer in zip(markets, now, asked, answers, strict=True)
    ]
    for row in rows:
        table.add_row(
            str(row["market"]), f"{row['price']:.4f}", f"{row['max_price']:.4f}", f"{row['probability']:.3f}"
        )
    if json_path:
        write_text(json_path, json_text({"time": iso(time_s), "markets": rows}))
    terminal().print(table)


def _quiet() -> warnings.catch_warnings[list[warnings.WarningMessage]]:
    """Collect warnings instead of printing them at once."""
    return warnings.catch_warnings(record=True)


def _warn(noted: list[warnings.WarningMessage] | None) -> None:
    """Print each warning once."""
    for message in dict.fromkeys(str(warning.message) for warning in noted or []):
        sys.stderr.write(f"warning: {message}\n")


def _of(model: dict[str, Any], delta: str) -> dict[str, Any]:
    scores: dict[str, Any] = model["pooled"] if delta == "published" else model[delta]
    return scores


def _print_scores(title: str, rows: dict[tuple[str, str], Any]) -> None:
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("delta", no_wrap=True)
    table.add_column("model", no_wrap=True)
    shown = ("accuracy", "f1", "precision", "recall", "auc", "brier", "ece", "base_rate")
    for heading in shown:
        table.add_column(heading, justify="right")
    for (name, delta), scores in rows.items():
        cells = ["-" if scores[key] is None else f"{scores[key]:.4f}" for key in shown]
        table.add_row(delta, name, *cells)
    terminal().print(table)
