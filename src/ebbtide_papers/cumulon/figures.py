"""Cümülön-D's Figures 2 and 4 to 8."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.backtesting.policy_table import COLOURS
from ebbtide_papers.cumulon.study import CumulonStudy, RunCounts, Table

_TITLES = (
    "Fig. 2(a): dynamic, runs by end and cost",
    "Fig. 2(b): strict",
    "Fig. 4: GNMF by deadline, from 0.02 USD",
    "Fig. 5: GNMF by risk aversion, from 0.20 USD",
    "Fig. 6: RSVD-1 by delay, whole hours",
    "Fig. 7: RSVD-1 by bid, from 0.02 USD",
    "Fig. 8: fixed sizes and bids, DBA",
    "Fig. 5, right: when GNMF ends",
)


def cumulon_figure(found: CumulonStudy) -> go.Figure:
    """A panel for each figure, from the study's tables."""
    figure = make_subplots(rows=4, cols=2, subplot_titles=_TITLES, vertical_spacing=0.07)
    tables = found.tables
    for column, mode in enumerate(("dynamic", "strict"), start=1):
        figure.add_trace(_heat_map(found.counts[mode]), row=1, col=column)
        _name_axes(figure, 1, column, "h", "USD")
    for column, (name, axis) in enumerate((("fig4", "deadline, h"), ("fig5", "gamma")), start=1):
        for trace in _spread(tables[name], "mean_usd", "deviation_usd", COLOURS[0]):
            figure.add_trace(trace, row=2, col=column)
        _name_axes(figure, 2, column, axis, "USD")
    for number, name in enumerate(("skyline", "infinity")):
        figure.add_trace(_line(tables["fig6"], name, f"{name} bids", COLOURS[number]), row=3, col=1)
    _name_axes(figure, 3, 1, "delay, min", "USD")
    bids = {usd: row for usd, row in tables["fig7"].items() if usd != "skyline"}
    figure.add_trace(_line(bids, "mean_usd", "fixed bids", COLOURS[2]), row=3, col=2)
    for number, name in enumerate(("skyline", "infinity_bid")):
        usd = found.figures[f"{name}_mean_cost_s002"]
        figure.add_hline(y=usd, line={"color": COLOURS[number], "dash": "dash"}, row=3, col=2)
    _name_axes(figure, 3, 2, "bid, USD/h", "USD")
    for trace in _rivals(tables["fig8"], tables["fig7_s020"]["skyline"]["mean_usd"]):
        figure.add_trace(trace, row=4, col=1)
    _name_axes(figure, 4, 1, "mean cost, USD", "deadlines missed, share")
    figure.add_trace(_line(tables["fig5"], "mean_h", "GNMF", COLOURS[0]), row=4, col=2)
    _name_axes(figure, 4, 2, "gamma", "h")
    figure.update_layout(height=1700, template="plotly_white", showlegend=False, margin={"t": 60, "b": 40})
    return figure


def _name_axes(figure: go.Figure, row: int, column: int, x: str, y: str) -> None:
    figure.update_xaxes(title_text=x, row=row, col=column)
    figure.update_yaxes(title_text=y, row=row, col=column)


def _heat_map(counts: RunCounts) -> go.Heatmap:
    runs = np.where(counts.runs > 0, np.log10(np.maximum(counts.runs, 1.0)), np.nan)
    return go.Heatmap(x=counts.hours, y=counts.usd, z=runs, colorscale="Blues", showscale=False)


def _line(table: Table, key: str, name: str, colour: str) -> go.Scatter:
    xs = [float(place) for place in table]
    ys = [row[key] for row in table.values()]
    return go.Scatter(x=xs, y=ys, name=name, mode="lines+markers", line={"color": colour})


def _spread(table: Table, mean: str, deviation: str, colour: str) -> Sequence[go.Scatter]:
    line = _line(table, mean, "mean", colour)
    return [line, _line(table, deviation, "standard deviation", COLOURS[1])]


def _rivals(table: Table, skyline_usd: float) -> Sequence[go.Scatter]:
    fixed = {name: row for name, row in table.items() if name != "dba"}
    groups = [
        ("fixed", list(fixed), list(fixed.values())),
        ("dba", ["DBA"], [table["dba"]]),
        ("cumulon", ["cookbook, skyline bids"], [{"mean_usd": skyline_usd, "missed": 0.0}]),
    ]
    return [
        go.Scatter(
            x=[row["mean_usd"] for row in rows],
            y=[row["missed"] for row in rows],
            text=names,
            name=name,
            mode="markers",
            marker={"color": colour, "size": 9},
        )
        for (name, names, rows), colour in zip(groups, COLOURS, strict=False)
    ]
