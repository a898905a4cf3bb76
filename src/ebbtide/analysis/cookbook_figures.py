"""Cookbooks drawn as Cümülön-D's Figure 1 has them: slices of what to do, and of what it is expected to cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.policies.cookbook.cookbook import Cookbook


def cookbook_figure(book: Cookbook, *, step: int, price: float, left_h: float) -> go.Figure:
    """Three slices, each through the state in which no machine is held.

    Args:
        book: What is drawn.
        step: Of the first slice, over price and work left.
        price: Of the second, over time and work left, USD per hour.
        left_h: Of the third, over time and price, machine-hours.
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
