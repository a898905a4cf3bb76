"""Figures: a backtest record, reliability curves of revocation models, and slices of cookbooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.backtesting.policy_table import COLOURS, Mark, policy_marks
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.report_pictures import thinned
from ebbtide.backtesting.summary import best_first
from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.revocation.scores import Bools, Floats, reliability
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.cookbook.cookbook import Cookbook

# Lines with more points are thinned: no screen shows them.
_MAX_POINTS = 3000

# Heights in pixels.
_PANEL_PX, _LINE_PX, _BETWEEN_PX, _LEGEND_LINE_PX = 340, 26, 80, 20


def record_marks(record: BacktestRecord) -> dict[str, Mark]:
    """The mark of each policy, the same in every figure and table of the record."""
    return policy_marks(record.outcomes["policy"].astype(str).tolist())


def record_figure(record: BacktestRecord) -> go.Figure:
    """Three panels: prices with the leases of one start, costs of all starts, progress of that start."""
    # Every policy has its own line in the cost panel.
    heights = (_PANEL_PX, max(_LINE_PX * len(record_marks(record)), 3 * _LINE_PX) + _LINE_PX, _PANEL_PX)
    total = sum(heights) + 2 * _BETWEEN_PX
    figure = make_subplots(
        rows=3,
        cols=1,
        row_heights=list(heights),
        vertical_spacing=_BETWEEN_PX / total,
        subplot_titles=(
            f"Prices, and the leases on them, from {record.about['start_shown']}",
            f"Cost of all {record.about['starts']} starts",
            "Progress",
        ),
    )
    for trace in [*_price_lines(record), *_lease_lines(record)]:
        figure.add_trace(trace, row=1, col=1)
    for trace in _cost_boxes(record):
        figure.add_trace(trace, row=2, col=1)
    for trace in _progress_lines(record):
        figure.add_trace(trace, row=3, col=1)
    figure.update_yaxes(title="USD per hour", type="log", row=1, col=1)
    figure.update_xaxes(title="USD", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(type="category", autorange="reversed", dtick=1, automargin=True, row=2, col=1)
    figure.update_yaxes(title="steps done", rangemode="tozero", row=3, col=1)
    figure.update_xaxes(title="hours since the start", row=3, col=1)
    # The legend is below: beside the panels it would take their width.
    figure.update_layout(
        height=total + _LEGEND_LINE_PX * (2 + len(record_marks(record)) // 3) + 80,
        template="plotly_white",
        margin={"t": 70, "b": 40, "r": 20},
        legend={"orientation": "h", "y": -60 / total, "yanchor": "top", "groupclick": "togglegroup"},
    )
    return figure


def _price_lines(record: BacktestRecord) -> Iterator[go.Scatter]:
    import pandas as pd

    if record.prices.empty:
        return
    end = record.leases["ended"].max()
    for number, (market, series) in enumerate(PriceHistory.from_frame(record.prices).items()):
        times, values = thinned(series.times_s, series.prices, _MAX_POINTS)
        moments = [*pd.to_datetime(times, unit="s", utc=True), end]
        yield go.Scatter(
            x=moments,
            y=[*values, values[-1]],
            name="prices",
            hovertext=str(market),
            mode="lines",
            line={"shape": "hv", "width": 1, "color": "#999999"},
            legendgroup="prices",
            showlegend=number == 0,
        )


def _lease_lines(record: BacktestRecord) -> Iterator[go.Scatter]:
    """Each policy's leases as a thick line at the price paid, with gaps between leases, a cross if revoked."""
    charges = record.ledger[record.ledger["entry"] == "charge"]
    for name, mark in record_marks(record).items():
        leases = record.leases[record.leases["policy"] == name].to_dict("records")
        by_lease = dict(list(charges[charges["policy"] == name].groupby("lease_id")))
        moments: list[Any] = []
        prices: list[float | None] = []
        texts: list[str] = []
        taken: list[tuple[Any, float, str]] = []
        for lease in leases:
            own = by_lease.get(lease["lease_id"])
            if own is None:
                continue
            paid = own["price_usd_per_hour"].tolist()
            way = "on demand" if lease["on_demand"] else f"max price {lease['max_price_usd_per_hour']:.4g}"
            text = f"{name}: {lease['market']}, {way}, {lease['ending']}, {lease['usd']:.4f} USD"
            moments += [*own["start"].clip(upper=lease["ended"]), lease["ended"], lease["ended"]]
            prices += [*paid, *paid[-1:], None]
            texts += [text] * (len(paid) + 2)
            if lease["ending"] == "revoked":
                taken.append((lease["ended"], paid[-1], f"{name}: revoked in {lease['market']}"))
        yield go.Scatter(
            x=moments,
            y=prices,
            name=name,
            legendgroup=name,
            mode="lines",
            line={"shape": "hv", "width": 4, "color": mark.colour, "dash": mark.dash},
            hovertext=texts,
            opacity=0.7,
        )
        if taken:
            times, last, revoked = zip(*taken, strict=True)
            yield go.Scatter(
                x=times,
                y=last,
                mode="markers",
                legendgroup=name,
                showlegend=False,
                marker={"symbol": "x", "size": 9, "color": mark.colour},
                hovertext=revoked,
            )


def _cost_boxes(record: BacktestRecord) -> Iterator[go.Box]:
    finished = record.outcomes[record.outcomes["finished"]]
    marks = record_marks(record)
    # The best first, as in the tables.
    for name, _ in best_first(record.summary()):
        mark = marks[name]
        costs = finished.loc[finished["policy"] == name, "cost_usd"]
        # A policy that never finished still gets its label.
        at = [name] * max(len(costs), 1)
        yield go.Box(
            x=costs if len(costs) else [None],
            y=at,
            name=name,
            legendgroup=name,
            marker_color=mark.colour,
            showlegend=False,
            orientation="h",
        )


def _progress_lines(record: BacktestRecord) -> Iterator[go.Scatter]:
    import pandas as pd

    start = pd.Timestamp(record.about["start_shown"])
    marks = record_marks(record)
    for number, (name, mark) in enumerate(marks.items()):
        # The first lines are widest, so that later lines do not hide them.
        width = 2 + 3 * min(len(marks) - 1 - number, 2)
        moments = record.timeline[record.timeline["policy"] == name]
        hours = (moments["time"] - start).dt.total_seconds() / HOUR_S
        yield go.Scatter(
            x=hours,
            y=moments["steps_done"],
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=False,
            line={"color": mark.colour, "width": width, "dash": mark.dash},
        )


def reliability_figure(curves: Mapping[str, tuple[Bools, Floats]]) -> go.Figure:
    """Reliability curves, one per name, with the diagonal of perfect calibration.

    Args:
        curves: Labels and predicted probabilities, by name.
    """
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(x=[0, 1], y=[0, 1], name="perfect", mode="lines", line={"dash": "dot", "color": "#999999"})
    )
    for number, (name, (labels, probabilities)) in enumerate(curves.items()):
        predicted, observed, share = reliability(labels, probabilities)
        figure.add_trace(
            go.Scatter(
                x=predicted,
                y=observed,
                name=name,
                mode="lines+markers",
                line={"color": COLOURS[number % len(COLOURS)]},
                hovertext=[f"{part:.1%} of samples" for part in share],
            )
        )
    figure.update_layout(
        template="plotly_white",
        xaxis_title="predicted probability",
        yaxis_title="share revoked",
        width=720,
        height=600,
    )
    return figure


def cookbook_figure(book: Cookbook, *, step: int, price: float, left_h: float) -> go.Figure:
    """Three slices of a cookbook, as in Cümülön-D's Figure 1: machines to hold and expected cost.

    Each slice is for the state in which no machine is held.

    Args:
        book: The cookbook to draw.
        step: Time step of the first slice, over price and work left.
        price: Price of the second slice, USD per hour, over time and work left.
        left_h: Work left in the third slice, machine-hours, over time and price.
    """
    problem = book.problem
    prices, levels_h = problem.market.prices, problem.levels_h
    at_price = int(np.abs(prices - price).argmin())
    at_level = int(np.abs(levels_h - left_h).argmin())
    hours = np.arange(problem.market.steps) * problem.step_h
    feasible = np.isfinite(book.mean_usd[:, :, 0, :])
    sizes = np.where(feasible, book.actions[:, :, 0, :], np.nan)
    usd = np.where(feasible, book.mean_usd[:, :, 0, :], np.nan)
    work, every = "work left, h", slice(None)
    slices: list[tuple[str, Any, Any, tuple[Any, ...], str, str, bool]] = [
        (f"t = {hours[step]:g} h", prices, levels_h, (step, every, every), "price", work, False),
        (f"price {prices[at_price]:.3g}", hours, levels_h, (every, every, at_price), "h", work, True),
        (f"{levels_h[at_level]:g} h left", hours, prices, (every, at_level, every), "h", "price", True),
    ]
    titles = [f"{what}, {one[0]}" for one in slices for what in ("machines", "expected cost, USD")]
    figure = make_subplots(rows=3, cols=2, subplot_titles=titles, vertical_spacing=0.09)
    for row, (_, x, y, place, x_name, y_name, turned) in enumerate(slices, start=1):
        for column, values in enumerate((sizes, usd), start=1):
            shown = values[place].T if turned else values[place]
            trace = go.Heatmap(x=x, y=y, z=shown, showscale=False, colorscale="Blues")
            figure.add_trace(trace, row=row, col=column)
            figure.update_xaxes(title_text=x_name, row=row, col=column)
            figure.update_yaxes(title_text=y_name, row=row, col=column)
    figure.update_layout(height=1300, template="plotly_white", margin={"t": 60, "b": 40})
    return figure
