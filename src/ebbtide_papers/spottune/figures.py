"""SpotTune's Figures 6 to 12, drawn from the tables of a reproduction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.backtesting.policy_table import COLOURS
from ebbtide_papers.reproduction import ratio

_FOUR = ("cheapest-spot", "fastest-spot", "spottune-full", "spottune")
_FORECASTS = ("spottune", "spottune-tributary", "spottune-past-frequency", "spottune-foresight", "spottune-bid")

_TITLES = (
    "Fig. 6: seconds per step by machine",
    "Fig. 7(a): cost, USD",
    "Fig. 7(b): completion time, h",
    "Fig. 7(c): performance-cost rate, spottune = 1",
    "Fig. 8(a): cost by theta, USD",
    "Fig. 8(b): completion time by theta, h",
    "Fig. 8(c): accuracy by theta",
    "Fig. 9: share of steps run free of charge",
    "Fig. 10(c): cost by forecast, USD",
    "Fig. 11(b): error of predicted ends by theta",
    "Fig. 12: saving and restoring beside training",
)


def spottune_figure(tables: Mapping[str, Any]) -> go.Figure:
    """A panel for each of the paper's figures.

    Args:
        tables: Tables of the result of `reproduce_spottune`.
    """
    figure = make_subplots(rows=6, cols=2, subplot_titles=_TITLES, vertical_spacing=0.06)
    by_policy, by_theta, ends = tables["by_policy"], tables["by_theta"], tables["curve_ends"]
    panels: list[Iterable[go.Bar | go.Scatter]] = [
        _bars(tables["seconds_per_step"]),
        _bars({name: by_policy[name]["cost_usd"] for name in _FOUR}),
        _bars({name: by_policy[name]["makespan_h"] for name in _FOUR}),
        _bars({name: _rates(by_policy, name) for name in _FOUR}),
        _lines(_by_workload(by_theta, "cost_usd")),
        _lines(_by_workload(by_theta, "makespan_h")),
        _lines({key: _column(ends["earlycurve"], key) for key in ("top1", "top3")}),
        _bars({"spottune": by_policy["spottune"]["refunded_step_share"]}),
        _bars({name: by_policy[name]["cost_usd"] for name in _FORECASTS}),
        _lines({name: _column(rows, "relative_error_mean") for name, rows in ends.items()}),
        _bars({name: by_policy[name]["moving_share"] for name in ("spottune-full", "spottune")}),
    ]
    for place, panel in enumerate(panels):
        for trace in panel:
            figure.add_trace(trace, row=place // 2 + 1, col=place % 2 + 1)
    # Fig. 6, 7(a) and 10(c): prices of machines differ by up to a factor of a hundred.
    for row, column in ((1, 1), (1, 2), (2, 2), (5, 1)):
        figure.update_yaxes(type="log", row=row, col=column)
    figure.update_layout(height=2400, barmode="group", template="plotly_white", margin={"t": 60, "b": 40})
    return figure


def _bars(rows: Mapping[str, Mapping[str, float]]) -> Iterator[go.Bar]:
    for number, (name, values) in enumerate(rows.items()):
        colour = COLOURS[number % len(COLOURS)]
        yield go.Bar(
            x=list(values),
            y=list(values.values()),
            name=name,
            marker_color=colour,
            showlegend=False,
            hovertemplate=f"{name}, %{{x}}: %{{y:.4g}}<extra></extra>",
        )


def _lines(rows: Mapping[str, Mapping[str, float]]) -> Iterator[go.Scatter]:
    for number, (name, values) in enumerate(rows.items()):
        colour = COLOURS[number % len(COLOURS)]
        yield go.Scatter(
            x=[float(at) for at in values],
            y=list(values.values()),
            name=name,
            mode="lines+markers",
            line={"color": colour},
            showlegend=False,
            hovertemplate=f"{name}, theta %{{x}}: %{{y:.4g}}<extra></extra>",
        )


def _column(by_theta: Mapping[str, Any], key: str) -> dict[str, float]:
    return {theta: scores[key] for theta, scores in by_theta.items()}


def _by_workload(by_theta: Mapping[str, Any], key: str) -> dict[str, dict[str, float]]:
    workloads = next(iter(by_theta.values()))[key]
    return {name: {theta: rows[key][name] for theta, rows in by_theta.items()} for name in workloads}


def _rates(by_policy: Mapping[str, Any], name: str) -> dict[str, float]:
    """1 / (time x cost) by workload, relative to SpotTune at theta 0.7 (IV-B)."""
    ours, own = by_policy["spottune"], by_policy[name]
    return {
        workload: ratio(
            ours["cost_usd"][workload] * ours["makespan_h"][workload], usd * own["makespan_h"][workload]
        )
        for workload, usd in own["cost_usd"].items()
    }
