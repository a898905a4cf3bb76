"""Dynamic Pricing's Figures 1 to 6, drawn from prices and from the tables of a reproduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.base.utc import HOUR_S
from ebbtide.market.lifetimes import Life
from ebbtide_papers.dynamic_pricing.study import STRATEGIES, GpuMarkets

_TITLES = (
    "Fig. 1: GPU-hour in us-east-1, USD",
    "Fig. 2: machines kept running, until they were taken",
    "Fig. 3: GPU-hour over all zones, least and most, USD",
    "Fig. 4: deviation over mean, by GPUs of a machine",
    "Fig. 5: cost reduction over 1xV100",
    "Fig. 6: dynamic over multi-cloud, by days",
)


def dynamic_pricing_figure(
    known: GpuMarkets | None, lives: Sequence[Life], tables: Mapping[str, Any]
) -> go.Figure:
    """A panel for each of the paper's figures.

    Args:
        known: Hourly prices of the GPU markets; None: there are none.
        lives: Lifetimes of probed machines; may be empty.
        tables: Tables of the result of `reproduce_dynamic_pricing`.
    """
    figure = make_subplots(rows=3, cols=2, subplot_titles=_TITLES, vertical_spacing=0.1)
    panels = [
        _prices(known) if known else [],
        _timelines(lives),
        _extremes(tables["extremes"]),
        _deviations(tables["variation"]),
        [
            go.Bar(x=list(STRATEGIES), y=[row[name] for name in STRATEGIES], name=model)
            for model, row in tables["cost_reduction_over_1xV100"].items()
        ],
        _by_days(tables["dynamic_over_multi_cloud_by_days"]),
    ]
    for place, panel in enumerate(panels):
        for trace in panel:
            trace.showlegend = place == 4
            figure.add_trace(trace, row=place // 2 + 1, col=place % 2 + 1)
    figure.update_layout(height=1400, barmode="group", template="plotly_white", margin={"t": 60, "b": 40})
    return figure


def _prices(known: GpuMarkets) -> list[go.Scatter]:
    hours = known.usd_per_gpu_hour.shape[1]
    times = [datetime.fromtimestamp(known.start_s + hour * HOUR_S, UTC) for hour in range(hours)]
    return [
        go.Scatter(x=times, y=known.usd_per_gpu_hour[row], name=str(market), mode="lines", line_shape="hv")
        for row, market in enumerate(known.markets)
        if (market.cloud, market.region) == ("aws", "us-east-1")
    ]


def _timelines(lives: Sequence[Life]) -> list[go.Scatter]:
    x: list[datetime | None] = []
    y: list[str | None] = []
    for life in lives:
        name = f"{life.cloud} {life.zone} {life.gpus} x {life.gpu}"
        x += [datetime.fromtimestamp(life.start_s, UTC), datetime.fromtimestamp(life.end_s, UTC), None]
        y += [name, name, None]
    return [go.Scatter(x=x, y=y, mode="lines+markers", marker_symbol="line-ns-open")]


def _extremes(table: Mapping[str, Mapping[str, float]]) -> list[go.Bar]:
    return [
        go.Bar(x=list(table), y=[row[f"{end}_usd_per_gpu_hour"] for row in table.values()], name=end)
        for end in ("least", "most")
    ]


def _deviations(table: Mapping[str, Mapping[str, float]]) -> list[go.Bar]:
    return [go.Bar(x=list(table), y=[row["deviation_over_mean"] for row in table.values()])]


def _by_days(table: Mapping[str, Mapping[str, float]]) -> list[go.Scatter]:
    models = list(next(iter(table.values()), {}))
    return [go.Scatter(x=list(table), y=[row[model] for row in table.values()], name=model) for model in models]
