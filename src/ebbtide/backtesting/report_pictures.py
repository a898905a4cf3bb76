"""Pictures of a backtest's report: static SVG, which takes the page's colours and needs no script."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.backtesting.policy_table import Mark, policy_marks
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.summary import best_first
from ebbtide.base.utc import HOUR_S
from ebbtide.market.prices import PriceHistory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Lines with more points are thinned: no page shows them.
_MAX_POINTS = 400

# Text, axes and prices are drawn in these colours, for which the page's own are put.
_INK, _FAINT = "#010203", "#040506"
_LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}

# Inches.
_WIDTH, _PANEL, _LINE = 9.0, 3.0, 0.28


def record_picture(record: BacktestRecord, name: str = "picture") -> str:
    """Draw costs of all starts, then prices with the leases of one start, and its progress.

    Args:
        record: The record to draw.
        name: Prefix of the ids in the picture, which must differ between pictures of one page.

    Returns:
        The picture as an SVG element.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    marks = policy_marks(record.outcomes["policy"].astype(str).tolist())
    inks = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK)
    heights = (_LINE * len(marks) + 1.0, _PANEL, _PANEL)
    with rc_context({**inks, "svg.fonttype": "none", "font.size": 10.0}):
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        costs, prices, progress = figure.subplots(3, 1, height_ratios=heights)
        _draw_costs(costs, record, marks)
        _draw_prices(prices, record, marks)
        _draw_progress(progress, record, marks)
        for axes in (costs, prices, progress):
            axes.patch.set_alpha(0.0)
            axes.spines[["top", "right"]].set_visible(False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    _, _, drawn = buffer.getvalue().partition("<svg ")
    drawn = drawn.replace(_INK, "currentColor").replace(_FAINT, "var(--faint)")
    # Matplotlib's ids differ each time, and those that nothing refers to are the same in all pictures.
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)
    for number, old in enumerate(dict.fromkeys(re.findall(r'\bid="(\w+)"', drawn))):
        drawn = re.sub(rf"\b{old}\b", f"{name}-{number}", drawn)
    return "<svg " + drawn


def _draw_costs(axes: Axes, record: BacktestRecord, marks: dict[str, Mark]) -> None:
    finished = record.outcomes[record.outcomes["finished"].astype(bool)]
    # The best first, as in the tables.
    names = [name for name, _ in best_first(record.summary())]
    for place, name in enumerate(names):
        costs = finished.loc[finished["policy"] == name, "cost_usd"].to_numpy(dtype=float)
        axes.plot(costs, np.full(len(costs), place), "|", color=marks[name].colour, markersize=9, alpha=0.6)
        if len(costs):
            axes.plot(costs.mean(), place, "o", color=marks[name].colour, markersize=6)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel("USD: each start, and the mean")


def _draw_prices(axes: Axes, record: BacktestRecord, marks: dict[str, Mark]) -> None:
    start = _start_of(record)
    if not record.prices.empty:
        end_h = (record.leases["ended"].max() - start).total_seconds() / HOUR_S
        for series in PriceHistory.from_frame(record.prices).values():
            times_s, values = thinned(series.times_s, series.prices, _MAX_POINTS)
            hours = [*((times_s - start.timestamp()) / HOUR_S), end_h]
            axes.step(hours, [*values, values[-1]], where="post", color=_FAINT, linewidth=0.8)
    charges = record.ledger[record.ledger["entry"] == "charge"]
    # What is drawn last lies above the others: the policy that is listed first.
    for name, mark in reversed(marks.items()):
        of_policy = charges[charges["policy"] == name]
        for lease in record.leases[record.leases["policy"] == name].to_dict("records"):
            own = of_policy[of_policy["lease_id"] == lease["lease_id"]]
            if own.empty:
                continue
            paid = own["price_usd_per_hour"].to_numpy(dtype=float)
            moments = [*own["start"].clip(upper=lease["ended"]), lease["ended"]]
            hours = [(moment - start).total_seconds() / HOUR_S for moment in moments]
            axes.step(hours, [*paid, paid[-1]], where="post", alpha=0.7, linewidth=3, **_line(mark))
            if lease["ending"] == "revoked":
                axes.plot(hours[-1], paid[-1], "x", color=mark.colour)
    axes.set_yscale("log")
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks("{x:g}")
    axes.set_ylabel("USD per hour")
    axes.set_title("Prices, and machines rented from one start (x: revoked)", fontsize=10)


def _draw_progress(axes: Axes, record: BacktestRecord, marks: dict[str, Mark]) -> None:
    start = _start_of(record)
    for name, mark in reversed(marks.items()):
        moments = record.timeline[record.timeline["policy"] == name]
        hours = ((moments["time"] - start).dt.total_seconds() / HOUR_S).to_numpy(dtype=float)
        shown = _spread_out(len(hours))
        axes.plot(hours[shown], moments["steps_done"].to_numpy(dtype=float)[shown], linewidth=2, **_line(mark))
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel("steps done")
    axes.set_xlabel("hours since the start")


def _line(mark: Mark) -> dict[str, Any]:
    return {"color": mark.colour, "linestyle": _LINE_STYLES[mark.dash]}


def _start_of(record: BacktestRecord) -> pd.Timestamp:
    import pandas as pd

    return pd.Timestamp(record.about["start_shown"])


def _spread_out(points: int) -> np.ndarray:
    """Indices of at most `_MAX_POINTS` of some points, the first and the last among them."""
    return np.unique(np.linspace(0, max(points - 1, 0), _MAX_POINTS).astype(int)) if points else np.arange(0)


def thinned(times_s: np.ndarray, prices: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Keep at most so many points of a price, each the highest of its stretch, so that no spike is lost."""
    if len(times_s) <= most:
        return times_s, prices
    stretches = np.array_split(np.arange(len(times_s)), most)
    keep = np.array([stretch[np.argmax(prices[stretch])] for stretch in stretches])
    return times_s[keep], prices[keep]
