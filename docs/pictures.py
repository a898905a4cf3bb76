"""Pictures of the site, drawn by the library itself each time the site is built, from fixed seeds.

A page asks for one in a comment, `<!-- picture: NAME -->`, which GitHub's readers do not see.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates
import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sphinx.application import Sphinx

import ebbtide as eb
from ebbtide.backtesting.policy_table import COLOURS
from ebbtide.forecasts.learning_curves.curves import Curve, read_curves
from ebbtide.policies.baselines import CheapestSpot, OnDemand, Reactive

ROOT = Path(__file__).parents[1]
_COMMENT = re.compile(r"<!-- picture: ([\w-]+) -->")
_BLUE, _RED, _GREEN, _PURPLE = COLOURS[:4]
_GREY = "#64748b"


@dataclass(frozen=True)
class Picture:
    """A picture of the site.

    Attributes:
        draw: Draws it.
        alt: What it shows, for those who do not see it.
        caption: What stands below it, as Markdown.
    """

    draw: Callable[[], Figure]
    alt: str
    caption: str


@cache
def _on_auctions() -> eb.types.BacktestResult:
    job = eb.Job.read(ROOT / "examples" / "one-day.yaml")
    return eb.backtest(job, [Reactive()], eb.generate_prices(days=30, seed=1, kind="auction"), starts=20, seed=1)


def _today() -> eb.types.BacktestResult:
    job = eb.Job.read(ROOT / "examples" / "one-day.yaml")
    policies: list[eb.policies.Policy] = [eb.policy("ebbtide"), Reactive(), CheapestSpot(), OnDemand()]
    prices = eb.generate_prices(days=30, seed=1)
    capacity = eb.generate_capacity(prices, seed=1)
    return eb.backtest(job, policies, prices, availability=capacity, billing="by-cloud", starts=20, seed=1)


def _most_revoked() -> int:
    revocations = [outcome.revocations for outcome in _on_auctions().outcomes["reactive"]]
    return int(np.argmax(revocations))


def _lease() -> Figure:
    """One run of `reactive`: its leases on the prices of the markets that it rented."""
    record = _on_auctions().record(_most_revoked())
    leases = record.leases[record.leases["policy"] == "reactive"]
    begin, end = leases["started"].min(), leases["ended"].max()
    figure: Figure
    figure, axes = plt.subplots(figsize=(5.6, 4))
    markets = list(dict.fromkeys(leases["market"].astype(str)))
    for market, colour in zip(markets, (_BLUE, _GREEN, _PURPLE, *COLOURS[4:]), strict=False):
        times, prices = _steps_of(market, begin, end)
        axes.step(times, prices, where="post", color=colour, lw=1, alpha=0.8, label=f"price of {market}")
        for lease in leases[leases["market"].astype(str) == market].to_dict("records"):
            inside = [time for time in times if lease["started"] <= time <= lease["ended"]]
            moments = [lease["started"], *inside, lease["ended"]]
            axes.step(moments, _held(times, prices, moments), where="post", color=colour, lw=5, alpha=0.45)
            limit = lease["max_price_usd_per_hour"]
            axes.hlines(limit, lease["started"], lease["ended"], color=colour, ls="--", lw=1.2)
            if lease["ending"] == "revoked":
                axes.plot(lease["ended"], limit, "X", ms=11, color=_RED, mec="white", zorder=5)
    axes.plot([], [], color=_GREY, lw=5, alpha=0.45, label="leased")
    axes.plot([], [], color=_GREY, ls="--", lw=1.2, label="max price")
    axes.plot([], [], "X", ms=9, color=_RED, mec="white", ls="none", label="revoked")
    axes.set(yscale="log", ylabel="USD per hour")
    axes.yaxis.set_major_formatter(_plain)
    axes.xaxis.set_major_locator(matplotlib.dates.AutoDateLocator(maxticks=8))
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M"))
    axes.set_xlabel(f"time of day (UTC), {begin:%d %B %Y}")
    _legend(axes)
    return figure


def _steps_of(market: str, begin: pd.Timestamp, end: pd.Timestamp) -> tuple[list[pd.Timestamp], list[float]]:
    """Change points of a market from before `begin` to `end`, and its price there."""
    prices = _on_auctions().scenario.prices
    (series,) = (series for known, series in prices.items() if str(known) == market)
    low = max(int(np.searchsorted(series.times_s, begin.timestamp(), side="right")) - 1, 0)
    high = int(np.searchsorted(series.times_s, end.timestamp()))
    times = [pd.Timestamp(time, unit="s", tz="UTC") for time in series.times_s[low:high]]
    values = [float(price) for price in series.prices[low:high]]
    return [max(times[0], begin), *times[1:], end], [*values, values[-1]]


def _held(times: list[pd.Timestamp], prices: list[float], moments: list[pd.Timestamp]) -> list[float]:
    at = np.searchsorted(np.array([time.timestamp() for time in times]), [m.timestamp() for m in moments], "right")
    return [prices[max(int(index) - 1, 0)] for index in at]


def _cost() -> Figure:
    """What each policy paid at each start."""
    outcomes = _today().outcomes
    names = sorted(outcomes, key=lambda name: -np.mean([outcome.cost_usd for outcome in outcomes[name]]))
    figure: Figure
    figure, axes = plt.subplots(figsize=(5.6, 2.4))
    costs = [[outcome.cost_usd for outcome in outcomes[name] if outcome.finished] for name in names]
    boxes = axes.boxplot(costs, orientation="horizontal", tick_labels=names, widths=0.6, patch_artist=True)
    for box in boxes["boxes"]:
        box.set(facecolor="#cfe3f1", edgecolor=_BLUE)
    for line in boxes["medians"]:
        line.set(color=_RED, lw=2)
    axes.set_xlabel("USD for one day of training")
    axes.set_xlim(left=0)
    return figure


def _curve() -> Figure:
    """A recorded learning curve, what was known at theta, and the predicted end."""
    curve = _good_curve()
    theta = 0.7
    steps, metric = curve.until(theta)
    told = eb.fit_curve(curve.steps, curve.metric, curve.max_steps, theta)
    figure: Figure
    figure, axes = plt.subplots(figsize=(5.6, 3.4))
    axes.plot(steps, metric, color=_BLUE, lw=2, label="measured")
    later = curve.steps >= steps[-1]
    axes.plot(curve.steps[later], curve.metric[later], color=_BLUE, lw=1, alpha=0.5, label="what came later")
    axes.axvline(theta * curve.max_steps, color=_GREY, ls=":", lw=1.5, label="theta: trials are compared here")
    error = [[told.value - told.lower], [told.upper - told.value]]
    axes.errorbar(
        [curve.max_steps],
        [told.value],
        error,
        fmt="o",
        color=_RED,
        capsize=5,
        lw=2,
        label="predicted end, with its 90 % band",
    )
    axes.set(xlabel="step", ylabel="validation loss", xlim=(0, 1.04 * curve.max_steps))
    top = float(np.quantile(curve.metric, 0.97))
    axes.set_ylim(float(curve.metric.min()) * 0.9, top)
    _legend(axes)
    return figure


def _good_curve() -> Curve:
    """The first recorded training with as many measurements as a person would make."""
    recorded = files("ebbtide.forecasts.learning_curves") / "data" / "table-two.parquet"
    curves = read_curves(Path(str(recorded)))
    return next(curve for curve in curves if len(curve.steps) >= 40)


def _claims(paper: str) -> Figure:
    """Each claim's figure here as a share of the paper's, from the table of all claims."""
    rows = [row for row in _claim_rows() if row[0] == paper]
    figure: Figure
    figure, axes = plt.subplots(figsize=(5.6, 1.2 + 0.52 * len(rows)))
    behind = {"fc": "white", "ec": "none", "pad": 0.5, "alpha": 0.85}
    for place, (_, claim, theirs, ours, holds) in enumerate(reversed(rows)):
        colour = _GREEN if holds else _RED
        axes.plot([1, ours / theirs], [place, place], color=colour, lw=2, alpha=0.5)
        axes.plot(ours / theirs, place, "o" if holds else "X", color=colour, ms=8)
        text = textwrap.fill(claim, 62)
        across = axes.get_yaxis_transform()
        axes.text(0.01, place + 0.18, text, va="bottom", transform=across, fontsize=8.5, bbox=behind, zorder=3)
    axes.axvline(1, color=_GREY, lw=1.2)
    axes.plot([], [], "o", color=_GREEN, label="holds")
    axes.plot([], [], "X", color=_RED, label="does not hold")
    ratios = [ours / theirs for _, _, theirs, ours, _ in rows]
    if max(ratios) / min(ratios) > 4:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.set(xlabel="figure here / figure of the paper", yticks=[], ylim=(-0.5, len(rows)))
    _legend(axes)
    return figure


def _claim_rows() -> Iterator[tuple[str, str, float, float, bool]]:
    """System, claim, the paper's figure, ours, and whether it holds; only claims with both figures, above zero."""
    text = (ROOT / "docs" / "papers" / "claims.md").read_text(encoding="utf-8")
    table = text.partition("<!-- claims: begin -->")[2].partition("<!-- claims: end -->")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) != 6 or not all(re.fullmatch(r"[\d.e-]+", cell) and cell != "-" for cell in cells[2:4]):
            continue
        theirs, ours = float(cells[2]), float(cells[3])
        if theirs > 0 and ours > 0:
            yield cells[0], cells[1], theirs, ours, cells[5] == "yes"


def _legend(axes: Axes) -> None:
    # Below the label of the axis, where it hides no line: 45 points, as a share of the axes' height.
    below = 45 / 72 / (axes.get_window_extent().height / axes.figure.dpi)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -below), ncols=2, frameon=False, fontsize=9)


def _plain(value: float, _: object) -> str:
    """A tick's number as people write it, not as a power."""
    return f"{value:g}"


_ONE_DAY = "[examples/one-day.yaml](../examples/one-day.yaml)"
PICTURES = {
    "lease": Picture(
        _lease,
        "Prices of the rented markets over one run, with leases as thick lines, max prices as dashed lines and "
        "crosses where a machine was revoked",
        f"One run of the policy `reactive` with the job {_ONE_DAY}, on a simulated market like EC2's auctions of "
        "2015. It rents the market with the lowest cost per step. If the price rises above the max price, the "
        "machine is interrupted, and the policy rents the next one.",
    ),
    "cost": Picture(
        _cost,
        "Box plot of the cost of four policies over 20 starts",
        f"The cost of four policies for the job {_ONE_DAY}, on a simulated market of today's GPUs, where capacity "
        "comes and goes. Each box has the middle half of 20 starts, the line is the median.",
    ),
    "curve": Picture(
        _curve,
        "A validation loss over steps, known up to 70 percent of the steps, and its predicted end with a band",
        "A recorded training. At theta, 70 % of its steps, EarlyCurve has seen the thick line and predicts the "
        "end: the point with its band.",
    ),
} | {
    f"claims-{paper}": Picture(
        partial(_claims, paper),
        f"The figures of {paper}'s claims here as shares of the paper's",
        "Claims for which both the paper and this project have a figure, as shares of the paper's: 1 is the same. "
        "The tolerances in the [table of all claims](claims.md) decide whether a claim holds.",
    )
    for paper in ("cumulon", "deadlines", "deepspotcloud", "dynamic-pricing", "exosphere", "spottune")
}


def folder_of(app: Sphinx) -> Path:
    """Where pictures are drawn: beside what Sphinx keeps of this build."""
    return Path(app.doctreedir) / "pictures"


def draw(app: Sphinx) -> None:
    """Draw all pictures; called by Sphinx before it reads the pages."""
    folder = folder_of(app)
    folder.mkdir(parents=True, exist_ok=True)
    style = {
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e2e8f0",
        "axes.axisbelow": True,
    }
    for name, picture in PICTURES.items():
        with plt.rc_context(style | {"svg.hashsalt": name}):
            figure = picture.draw()
            figure.savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
            plt.close(figure)


def put_in(app: Sphinx, page: str, text: list[str]) -> None:
    """Put the pictures in the places that a page has for them; called by Sphinx with each page's text."""
    up = "/".join([".."] * page.count("/")) or "."

    def picture(found: re.Match[str]) -> str:
        known = PICTURES[found[1]]
        path = folder_of(app) / f"{found[1]}.svg"
        caption = known.caption.replace("](../", f"]({up}/../")
        place = os.path.relpath(path, Path(app.srcdir) / Path(page).parent)
        return f"```{{figure}} {place}\n:alt: {known.alt}\n\n{caption}\n```"

    text[0] = _COMMENT.sub(picture, text[0])
