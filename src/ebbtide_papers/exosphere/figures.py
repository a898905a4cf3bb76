"""ExoSphere's Figures 3, 4 and 7 to 12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ebbtide.backtesting.policy_table import COLOURS

_TITLES = (
    "Fig. 3: savings and risk of portfolios",
    "Fig. 4: markets of portfolios by aversion",
    "Fig. 7(a): beside greedy choices",
    "Fig. 7(b): where all markets are correlated",
    "Fig. 8: correlations of pairs of markets",
    "Fig. 9: Spark when one market is lost",
    "Fig. 10: bag of tasks and MPI",
    "Fig. 11: costs alone and shared",
    "Fig. 12: one market, or all",
    "Answers waited for, all markets lost",
)


def exosphere_figure(tables: Mapping[str, Any]) -> go.Figure:
    """A panel for each figure, from the reproduction's tables."""
    figure = make_subplots(rows=5, cols=2, subplot_titles=_TITLES, vertical_spacing=0.06)
    panels = (
        _frontier(tables),
        _mixes(tables["frontier"]),
        _greedy(tables),
        _correlated(tables["correlated_markets"]),
        _quantiles(tables),
        _bars(tables["losses"]["spark"]),
        _others(tables),
        _packing(tables["packing"]),
        _bars(tables["losses"]["black_swan"]),
        _queries(tables["losses"]["queries"]),
    )
    axes = (
        ("risk", "saving"),
        ("alpha", "share"),
        ("risk", "saving"),
        ("risk", "saving"),
        ("correlation", "share of pairs"),
        ("", "longer, share"),
        ("", "longer, share"),
        ("", "USD"),
        ("", "time over on demand"),
        ("answer, s", "time over on demand"),
    )
    for place, (traces, (x, y)) in enumerate(zip(panels, axes, strict=True)):
        row, column = divmod(place, 2)
        for trace in traces:
            figure.add_trace(trace, row=row + 1, col=column + 1)
        figure.update_xaxes(title_text=x, row=row + 1, col=column + 1)
        figure.update_yaxes(title_text=y, row=row + 1, col=column + 1)
    for row, column in ((1, 1), (2, 1), (2, 2)):
        figure.update_xaxes(type="log", row=row, col=column)
    figure.update_xaxes(type="log", row=5, col=2)
    figure.update_layout(
        height=2000, template="plotly_white", showlegend=False, barmode="group", margin={"t": 60, "b": 40}
    )
    return figure


def _line(name: str, points: Mapping[str, Any], colour: int, mode: str = "lines+markers") -> go.Scatter:
    """A line of savings over risk."""
    return go.Scatter(
        x=[row["risk"] for row in points.values()],
        y=[row["saving"] for row in points.values()],
        text=list(points),
        name=name,
        mode=mode,
        line={"color": COLOURS[colour]},
        hovertemplate=f"{name} %{{text}}: %{{y:.3f}}, risk %{{x:.2g}}<extra></extra>",
    )


def _frontier(tables: Mapping[str, Any]) -> list[go.Scatter]:
    """The frontier in and out of sample, and at the scale of regions."""
    frontier = tables["frontier"]
    later = {a: {"risk": row["later_risk"], "saving": row["later_saving"]} for a, row in frontier.items()}
    lines = [_line("fitted, alpha", frontier, 0), _line("later, alpha", later, 1)]
    for place, (name, found) in enumerate(tables["regions"].items(), start=2):
        lines.append(_line(f"{name}, alpha", found["frontier"], place % len(COLOURS)))
    return lines


def _mixes(frontier: Mapping[str, Any]) -> list[go.Bar]:
    markets = dict.fromkeys(market for row in frontier.values() for market in row["weights"])
    return [
        go.Bar(
            x=list(frontier),
            y=[row["weights"].get(market, 0.0) for row in frontier.values()],
            name=market,
            offsetgroup="mix",
            base=[_below(row["weights"], list(markets)[:place]) for row in frontier.values()],
            marker_color=COLOURS[place % len(COLOURS)],
            hovertemplate=f"{market}: %{{y:.2f}}<extra></extra>",
        )
        for place, market in enumerate(markets)
    ]


def _below(weights: Mapping[str, float], markets: list[str]) -> float:
    return sum(weights.get(market, 0.0) for market in markets)


def _greedy(tables: Mapping[str, Any]) -> list[go.Scatter]:
    return [_line("portfolio, alpha", tables["frontier"], 0), _line("greedy", tables["greedy"], 3, "markers")]


def _correlated(found: Mapping[str, Any]) -> list[go.Scatter]:
    return [_line("portfolio, alpha", found["portfolios"], 0), _line("greedy", found["greedy"], 3, "markers")]


def _quantiles(tables: Mapping[str, Any]) -> list[go.Scatter]:
    found = {"these markets": tables["correlations"]} | {
        name: region["correlations"] for name, region in tables["regions"].items()
    }
    return [
        go.Scatter(
            x=list(quantiles["quantiles_of_correlation"].values()),
            y=[float(share) for share in quantiles["quantiles_of_correlation"]],
            name=name,
            line={"color": COLOURS[place % len(COLOURS)]},
        )
        for place, (name, quantiles) in enumerate(found.items())
        if quantiles
    ]


def _bars(groups: Mapping[str, Mapping[str, float]]) -> list[go.Bar]:
    """Grouped bars, with a colour for each inner name."""
    kinds = dict.fromkeys(kind for group in groups.values() for kind in group)
    return [
        go.Bar(
            x=list(groups),
            y=[group.get(kind) for group in groups.values()],
            name=kind,
            marker_color=COLOURS[place % len(COLOURS)],
            hovertemplate=f"{kind}: %{{y:.3g}}<extra></extra>",
        )
        for place, kind in enumerate(kinds)
    ]


def _others(tables: Mapping[str, Any]) -> list[go.Bar]:
    mpi = {name: found["overhead"] for name, found in tables["mpi"].items() if name != "not_computed"}
    return _bars({"bag of tasks": tables["losses"]["bag"], "MPI": mpi})


def _packing(found: Mapping[str, Mapping[str, float]]) -> list[go.Bar]:
    kinds = ("private_usd", "shared_usd")
    return _bars({name: {kind: row[kind] for kind in kinds} for name, row in found.items()})


def _queries(found: Mapping[str, Mapping[str, float]]) -> list[go.Scatter]:
    return [
        go.Scatter(
            x=[float(length_s) for length_s in found],
            y=[row["all_markets"] for row in found.values()],
            name="all markets lost",
            line={"color": COLOURS[0]},
        )
    ]
