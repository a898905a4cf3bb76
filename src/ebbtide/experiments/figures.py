"""Figures of a record: prices with leases on them, cost by policy, progress over time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.experiments.record import Record
from ebbtide.market.prices import PriceHistory
from ebbtide.utc import HOUR_S

# Okabe and Ito's colours, told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")

# More points than this a line are thinned: no screen shows them.
_MAX_POINTS = 3000


def policy_colours(record: Record) -> dict[str, str]:
    """A colour for each policy, the same in every figure of the record."""
    names = list(dict.fromkeys(record.outcomes["policy"].astype(str)))
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def record_figure(record: Record) -> go.Figure:
    """Three panels: prices with the leases of one start, costs of all starts, progress of that start."""
    figure = make_subplots(
        rows=3,
        cols=1,
        row_heights=[0.45, 0.25, 0.3],
        vertical_spacing=0.1,
        subplot_titles=(
            f"Prices, and the leases on them, from {record.about['start_shown']}",
            f"Cost of all {record.about['starts']} starts",
            "Progress",
        ),
    )
    for trace in [*_price_lines(record), *_lease_bars(record)]:
        figure.add_trace(trace, row=1, col=1)
    for trace in _cost_boxes(record):
        figure.add_trace(trace, row=2, col=1)
    for trace in _progress_lines(record):
        figure.add_trace(trace, row=3, col=1)
    figure.update_yaxes(title="USD per hour", type="log", row=1, col=1)
    figure.update_xaxes(title="USD", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(title="steps done", rangemode="tozero", row=3, col=1)
    figure.update_xaxes(title="hours since the start", row=3, col=1)
    figure.update_layout(height=1000, template="plotly_white", margin={"t": 40, "b": 40})
    return figure


def _price_lines(record: Record) -> Iterator[go.Scatter]:
    if record.prices.empty:
        return
    end = record.leases["ended"].max()
    for market, series in PriceHistory.from_frame(record.prices).items():
        times, values = _thinned(series.times_s, series.prices)
        moments = [*pd.to_datetime(times, unit="s", utc=True), end]
        yield go.Scatter(
            x=moments,
            y=[*values, values[-1]],
            name=str(market),
            mode="lines",
            line={"shape": "hv", "width": 1, "color": "#999999"},
            legendgroup="prices",
            legendgrouptitle={"text": "prices"},
        )


def _lease_bars(record: Record) -> Iterator[go.Scatter]:
    """Each lease as a thick line at what it paid; a cross where it was revoked."""
    charges = record.ledger[record.ledger["entry"] == "charge"]
    for name, colour in policy_colours(record).items():
        leases = record.leases[record.leases["policy"] == name]
        for number, lease in enumerate(leases.to_dict("records")):
            own = charges[(charges["policy"] == name) & (charges["lease_id"] == lease["lease_id"])]
            begins = own["start"].clip(upper=lease["ended"])
            prices = own["price_usd_per_hour"].tolist()
            way = "on demand" if lease["on_demand"] else f"max price {lease['max_price_usd_per_hour']:.4g}"
            yield go.Scatter(
                x=[*begins, lease["ended"]],
                y=[*prices, *prices[-1:]],
                name=name,
                legendgroup=name,
                showlegend=number == 0,
                mode="lines",
                line={"shape": "hv", "width": 4, "color": colour},
                hovertext=f"{name}: {lease['market']}, {way}, {lease['ending']}, {lease['usd']:.4f} USD",
                opacity=0.7,
            )
            if lease["ending"] == "revoked":
                yield go.Scatter(
                    x=[lease["ended"]],
                    y=prices[-1:],
                    mode="markers",
                    legendgroup=name,
                    showlegend=False,
                    marker={"symbol": "x", "size": 9, "color": colour},
                    hovertext=f"{name}: revoked in {lease['market']}",
                )


def _cost_boxes(record: Record) -> Iterator[go.Box]:
    finished = record.outcomes[record.outcomes["finished"]]
    for name, colour in policy_colours(record).items():
        costs = finished.loc[finished["policy"] == name, "cost_usd"]
        yield go.Box(x=costs, name=name, marker_color=colour, showlegend=False, orientation="h")


def _progress_lines(record: Record) -> Iterator[go.Scatter]:
    start = pd.Timestamp(record.about["start_shown"])
    for name, colour in policy_colours(record).items():
        moments = record.timeline[record.timeline["policy"] == name]
        hours = (moments["time"] - start).dt.total_seconds() / HOUR_S
        yield go.Scatter(
            x=hours,
            y=moments["steps_done"],
            name=name,
            legendgroup=name,
            showlegend=False,
            line={"color": colour, "width": 2},
        )


def _thinned(times_s: np.ndarray, prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `_MAX_POINTS` points, each stretch's highest: a spike thinned away would be a lie."""
    if len(times_s) <= _MAX_POINTS:
        return times_s, prices
    stretches = np.array_split(np.arange(len(times_s)), _MAX_POINTS)
    keep = np.array([stretch[np.argmax(prices[stretch])] for stretch in stretches])
    return times_s[keep], prices[keep]
