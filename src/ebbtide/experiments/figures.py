"""Figures of runs: prices with leases on them, cost by policy, progress over time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.execution.engine import Outcome
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.utc import HOUR_S, from_epoch_s

# Okabe and Ito's colours, told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")

# More points than this a line are thinned: no screen shows them.
_MAX_POINTS = 3000


def outcome_figure(
    outcomes: Mapping[str, Outcome], costs: Mapping[str, np.ndarray], prices: PriceHistory
) -> go.Figure:
    """One picture of one start.

    Args:
        outcomes: By policy, with timelines.
        costs: By policy, the costs of all starts, USD.
        prices: The markets; those that were rented are drawn.
    """
    figure = make_subplots(
        rows=3,
        cols=1,
        row_heights=[0.5, 0.2, 0.3],
        vertical_spacing=0.09,
        subplot_titles=("Prices, and the leases on them", "Cost over all starts", "Progress"),
    )
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(outcomes)}
    start_s = min(outcome.start_s for outcome in outcomes.values())
    end_s = max(outcome.end_s for outcome in outcomes.values())
    rented = {lease.market for outcome in outcomes.values() for lease in outcome.leases if not lease.on_demand}
    for market in sorted(rented):
        figure.add_trace(_price_line(market, prices, start_s, end_s), row=1, col=1)
    for name, outcome in outcomes.items():
        for trace in _lease_bars(name, outcome, prices, colours[name]):
            figure.add_trace(trace, row=1, col=1)
        figure.add_trace(
            go.Box(x=costs[name], name=name, marker_color=colours[name], showlegend=False, orientation="h"),
            row=2,
            col=1,
        )
        figure.add_trace(_progress_line(name, outcome, colours[name]), row=3, col=1)
    figure.update_yaxes(title="USD per hour", type="log", row=1, col=1)
    figure.update_xaxes(title="USD", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(title="steps done", rangemode="tozero", row=3, col=1)
    figure.update_xaxes(title="hours since the start", row=3, col=1)
    figure.update_layout(height=950, template="plotly_white", legend={"groupclick": "togglegroup"},
                         margin={"t": 40, "b": 40})  # fmt: skip
    return figure


def _price_line(market: Market, prices: PriceHistory, start_s: float, end_s: float) -> go.Scatter:
    times, values = prices[market].between(start_s, end_s)
    if len(times) > _MAX_POINTS:
        # Keep each stretch's highest price: a spike thinned away would be a lie.
        stretches = np.array_split(np.arange(len(times)), _MAX_POINTS)
        keep = np.array([stretch[np.argmax(values[stretch])] for stretch in stretches])
        times, values = times[keep], values[keep]
    moments = [*_times(times), from_epoch_s(end_s)] if len(times) else []
    return go.Scatter(
        x=moments,
        y=[*values, values[-1]] if len(values) else [],
        name=str(market),
        mode="lines",
        line={"shape": "hv", "width": 1, "color": "#999999"},
        legendgroup="prices",
        legendgrouptitle={"text": "prices"},
    )


def _lease_bars(name: str, outcome: Outcome, prices: PriceHistory, colour: str) -> list[go.Scatter]:
    """Each lease as a thick line at what it paid; a cross where it was revoked."""
    traces = []
    revoked_at: list[datetime] = []
    revoked_price: list[float] = []
    for number, lease in enumerate(lease for lease in outcome.leases if lease.is_charged):
        if lease.on_demand:
            line = next(line for line in outcome.ledger.lines if line.lease_id == lease.lease_id)
            times, values = np.array([lease.started_s]), np.array([line.price_usd_per_hour])
        else:
            times, values = prices[lease.market].between(lease.started_s, max(lease.ended_s, lease.started_s + 1))
        if len(times) > _MAX_POINTS:
            keep = np.linspace(0, len(times) - 1, _MAX_POINTS).astype(int)
            times, values = times[keep], values[keep]
        way = "on demand" if lease.on_demand else f"max price {lease.max_price_usd_per_hour:.4g}"
        traces.append(
            go.Scatter(
                x=[*_times(times), from_epoch_s(lease.ended_s)],
                y=[*values, values[-1]],
                name=name,
                legendgroup=name,
                showlegend=number == 0,
                mode="lines",
                line={"shape": "hv", "width": 4, "color": colour},
                hovertext=f"{name}: {lease.market}, {way}, {lease.state}",
                opacity=0.7,
            )
        )
        if lease.state is LeaseState.REVOKED:
            revoked_at.append(from_epoch_s(lease.ended_s))
            revoked_price.append(float(values[-1]))
    if revoked_at:
        traces.append(
            go.Scatter(
                x=revoked_at, y=revoked_price, mode="markers", legendgroup=name, showlegend=False,
                marker={"symbol": "x", "size": 9, "color": colour}, hovertext=f"{name}: revoked",
            )
        )  # fmt: skip
    return traces


def _progress_line(name: str, outcome: Outcome, colour: str) -> go.Scatter:
    hours = [(moment.time_s - outcome.start_s) / HOUR_S for moment in outcome.timeline]
    steps = [moment.steps_done for moment in outcome.timeline]
    return go.Scatter(
        x=hours, y=steps, name=name, legendgroup=name, showlegend=False, line={"color": colour, "width": 2}
    )


def _times(times_s: np.ndarray) -> list[datetime]:
    return [from_epoch_s(time_s) for time_s in times_s.tolist()]
