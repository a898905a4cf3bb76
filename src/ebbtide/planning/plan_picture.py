"""The picture of a plan: expected cost by market, and cost and duration of the plan's backtests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.backtesting.policy_table import COLOURS
from ebbtide.base.files import replacing
from ebbtide.base.utc import iso
from ebbtide.errors import InputError
from ebbtide.planning.plan import Plan
from ebbtide.planning.plan_places import PlanPlace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".svg", ".png", ".pdf")

_SHOWN = 14
_LIMIT = "#D55E00"


def check_picture(path: Path) -> None:
    """Raise `InputError` for a file whose ending is not one of `KINDS`."""
    if path.suffix.lower() not in KINDS:
        ends = f"ends in {path.suffix!r}" if path.suffix else "has no ending"
        raise InputError(f"{ends}; a picture is one of {', '.join(KINDS)}", file=path)


def check_drawable(*, is_measured: bool, by_capacity: bool) -> None:
    """Raise `InputError` for a plan without measured speed, or in which prices decide."""
    if not is_measured or not by_capacity:
        raise InputError(
            "there is no picture of this plan: it shows where capacity decides (`decides: capacity`), for a job "
            "whose steps_per_hour are known"
        )


def plan_picture(plan: Plan, *, budget_usd: float | None, deadline_h: float | None) -> Figure:
    """Draw a plan.

    Args:
        plan: The plan, with places and an estimate.
        budget_usd: The budget, drawn as a line; None: there is none.
        deadline_h: Hours until the deadline, drawn as a line; None: there is none.

    Raises:
        InputError: The plan has no places or no estimate: its speed is not measured, or prices decide.
    """
    check_drawable(is_measured=plan.estimate is not None, by_capacity=bool(plan.places))
    assert plan.estimate is not None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 6.2), layout="constrained")
    figure.suptitle(f"{plan.sweep}: where it would train, at {iso(plan.as_of_s)}", fontsize=12)
    axes: dict[str, Axes] = figure.subplot_mosaic([["places", "usd"], ["places", "hours"]], width_ratios=[3, 2])
    _places(axes["places"], plan.places[:_SHOWN], budget_usd)
    _spread(axes["usd"], plan.estimate.each_usd, budget_usd, "USD a run", "budget")
    _spread(axes["hours"], plan.estimate.each_h, deadline_h, "hours a run", "deadline")
    axes["usd"].set_title(f"{plan.estimate.runs} backtests on the last days", fontsize=10)
    return figure


def write_plan_picture(figure: Figure, path: Path) -> None:
    """Write a picture as SVG, PNG or PDF, by the ending of its name; atomic."""
    check_picture(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)


def _places(axes: Axes, places: tuple[PlanPlace, ...], budget_usd: float | None) -> None:
    """Draw bars of the expected cost by market, darker the larger its share of the backtests' machine hours."""
    rows = range(len(places))
    costs = [place.usd_per_hour * place.work_h if place.alone_usd is None else place.alone_usd for place in places]
    most = max((place.share for place in places), default=0.0) or 1.0
    for row, place, usd in zip(rows, places, costs, strict=True):
        axes.barh(row, usd, color=COLOURS[0], alpha=0.3 + 0.7 * place.share / most, height=0.7)
        told = f"{place.usd_per_hour:.2f} USD/h, available {place.available:.0%}, lasts {place.lasts_h:.1f} h"
        around = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.annotate(
            told, (usd, row), (4, 0), textcoords="offset points", va="center", fontsize=7.5, bbox=around, zorder=3
        )
    axes.set_yticks(list(rows), [f"{one.market.zone}\n{one.market.instance_type}" for one in places], fontsize=7.5)
    axes.invert_yaxis()
    axes.set_xlim(0.0, max([*costs, budget_usd or 0.0]) * 1.45)
    axes.set_xlabel("expected USD there alone; the darker, the more of the backtests trained there")
    if budget_usd is not None:
        axes.axvline(budget_usd, color=_LIMIT, linestyle="--", linewidth=1.2)
        axes.text(budget_usd, -0.62, f"budget {budget_usd:g} ", color=_LIMIT, fontsize=8, ha="right")
    _plain(axes)


def _spread(axes: Axes, values: tuple[float, ...], limit: float | None, name: str, limit_name: str) -> None:
    """Draw a histogram of the runs, and the limit."""
    from matplotlib.ticker import MaxNLocator

    axes.hist(values, bins=min(max(len(values) // 2, 5), 20), color=COLOURS[2], alpha=0.8)
    axes.set_xlabel(name)
    axes.set_ylabel("runs")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.0, 1.08 * max([*values, limit or 0.0]))
    if limit is not None:
        axes.axvline(limit, color=_LIMIT, linestyle="--", linewidth=1.2, label=f"{limit_name} {limit:g}")
        axes.legend(fontsize=8, frameon=False)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
