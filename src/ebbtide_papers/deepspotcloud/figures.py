"""DeepSpotCloud's Figures 1, 2 and 6, and the savings of moves in whole regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.backtesting.policy_table import COLOURS
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.deepspotcloud.price_analysis import hourly_ratio

_TITLES = (
    "Fig. 1: interrupts a day, by type, over markets",
    "Fig. 2: what is paid of the list price, GPU markets by day",
    "Fig. 6(a): cost over interrupt's",
    "Fig. 6(b): running time over interrupt's",
    "Cost over interrupt's with generated regions",
    "Whole regions, by the second: cost over interrupt's, one week",
)


def deepspotcloud_figure(
    prices: PriceHistory | None, tables: Mapping[str, Any], catalogue: Catalogue
) -> go.Figure:
    """A panel for each figure.

    Args:
        prices: Price history of the GPU markets; None: there are none to move between.
        tables: Tables of the result of `reproduce_deepspotcloud`.
        catalogue: Instance types and their list prices.
    """
    figure = make_subplots(rows=3, cols=2, subplot_titles=_TITLES, vertical_spacing=0.1)
    for name, row in tables["by_type"].items():
        least, low, middle, high, most = row["interrupts_per_day"]
        box = {"lowerfence": [least], "q1": [low], "median": [middle], "q3": [high], "upperfence": [most]}
        figure.add_trace(go.Box(x=[name], name=name, showlegend=False, **box), row=1, col=1)
    if prices:
        figure.add_trace(_heat_map(prices, catalogue), row=1, col=2)
    panels = [(tables["replays"], "cost_usd", 2, 1), (tables["replays"], "makespan_h", 2, 2)]
    if tables["replays_with_generated_regions"]:
        panels.append((tables["replays_with_generated_regions"], "cost_usd", 3, 1))
    for table, key, at_row, at_column in panels:
        for trace in _over_interrupt(table["by_length"], key):
            figure.add_trace(trace, row=at_row, col=at_column)
    for trace in _regions(tables["regions"]):
        figure.add_trace(trace, row=3, col=2)
    figure.update_layout(height=1300, barmode="group", template="plotly_white", margin={"t": 60, "b": 40})
    return figure


def _heat_map(prices: PriceHistory, catalogue: Catalogue) -> go.Heatmap:
    rows, days = [], None
    for market in prices:
        listed = catalogue.on_demand_usd_per_hour(market, prices.start_s)
        if listed is not None:
            days, ratio = hourly_ratio(prices, market, listed)
            rows.append((str(market), ratio))
    return go.Heatmap(
        x=days,
        y=[name for name, _ in rows],
        z=[ratio for _, ratio in rows],
        zmin=0.0,
        zmax=1.0,
        colorscale="Blues",
        showscale=False,
    )


def _over_interrupt(by_length: Mapping[str, Any], key: str) -> list[go.Bar]:
    lengths = list(by_length)
    rules = list(by_length[lengths[0]]) if lengths else []
    return [
        go.Bar(
            x=lengths,
            y=[_ratio(by_length[length], rule, key) for length in lengths],
            name=rule,
            legendgroup=rule,
            showlegend=key == "makespan_h",
            marker_color=COLOURS[place % len(COLOURS)],
        )
        for place, rule in enumerate(rules)
    ]


def _regions(regions: Mapping[str, Any]) -> list[go.Bar]:
    cases = {
        f"{name} {kind}": list(table["by_length"].values())[-1]
        for name, kinds in regions.items()
        for kind, table in kinds.items()
        if table["by_length"]
    }
    rules = ("hourly", "best-price", "migrate")
    return [
        go.Bar(
            x=list(cases),
            y=[_ratio(rows, rule, "cost_usd") for rows in cases.values()],
            name=rule,
            legendgroup=rule,
            showlegend=False,
        )
        for rule in rules
    ]


def _ratio(rows: Mapping[str, Any], rule: str, key: str) -> float | None:
    ours, base = rows[rule][key], rows["interrupt"][key]
    return None if ours is None or not base else float(ours / base)
