"""The reliability figure: predicted against observed, before and after undoing the class weights."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from ebbtide.analysis.figures import COLOURS
from ebbtide.forecasts.revocation.scores import Bools, Floats, reliability


def reliability_figure(curves: Mapping[str, tuple[Bools, Floats]]) -> go.Figure:
    """Reliability curves, one a name, over the diagonal of perfect calibration.

    Args:
        curves: Labels and probabilities by name.
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
