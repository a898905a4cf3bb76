"""Figures of a run for its page: curves and their forecasts, machines on price lines, spend over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ebbtide.base.json_values import finite
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.snapshots import RunSnapshot, RunSpending
from ebbtide.engine.snapshot import lease_of
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.calibration import default_calibration
from ebbtide.forecasts.learning_curves.curves import observed
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.job_list import Runnable, runnable
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease

# Lines with more points are thinned: a screen cannot show more.
_POINTS = 200
# Maximum number of trials whose ends are predicted, the best so far.
_PREDICTED = 30
# Maximum number of price changes shown for a market, the last ones.
_CHANGES = 2000


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run, from its journal at one moment.

    Attributes:
        work: The sweep or list of jobs.
        kept: The controller's snapshot; None: there is none yet.
        figures: The controller's last figures on open leases; None: there are none yet.
        prices: Price changes by market, pairs of time and USD per hour.
        catalogue: Instance types and list prices.
    """

    work: Runnable
    kept: RunSnapshot | None
    figures: RunSpending | None
    prices: Mapping[str, Sequence[tuple[float, float]]]
    catalogue: Catalogue

    @classmethod
    def of(cls, folder: RunFolder) -> RunFigures:
        """Read a run's figures.

        Raises:
            InputError: The journal cannot be read.
        """
        journal = journal_of(folder, read_only=True)
        with journal.connected():
            kept, figures, prices = journal.run(decisions=False), journal.figures(), journal.prices()
        return cls(runnable(folder.settings.sweep), kept, figures, prices, folder.catalogue)

    def curves(self) -> dict[str, Any]:
        """The metric of each trial by step, and predicted ends for the best trials so far."""
        if self.kept is None or self.work.metric is None:
            return {"metric": None, "trials": [], "max_steps": None}
        trials = []
        for number, (name, live) in enumerate(
            zip(self.work.setting_names, self.kept["provider"]["trials"], strict=True)
        ):
            points = _thinned([(float(step), float(value)) for step, value in live["metrics"]])
            trials.append(
                {
                    "number": number,
                    "setting": name,
                    "steps": [step for step, _ in points],
                    "values": [value for _, value in points],
                    "predicted": None,
                }
            )
        self._predict(trials)
        found: dict[str, Any] = finite(
            {"metric": self.work.metric, "trials": trials, "max_steps": self.work.steps}
        )
        return found

    def machines(self) -> dict[str, Any]:
        """Every machine with its times, price and cost, and the price lines of all markets."""
        used = {str(lease.market) for lease in self._leases}
        rows = [
            {
                "lease": lease.lease_id,
                "market": str(lease.market),
                "on_demand": lease.on_demand,
                "max_price_usd_per_hour": lease.max_price_usd_per_hour,
                "state": str(lease.state),
                "requested_s": lease.requested_s,
                "started_s": lease.started_s,
                "ended_s": lease.ended_s if not lease.is_open else math.nan,
                "usd": self._usd.get(lease.lease_id, 0.0),
                "refund_usd": self._refunds.get(lease.lease_id, 0.0),
                "steps": self._steps_on.get(lease.lease_id, 0.0),
                "line": self._line(lease),
            }
            for lease in self._leases
        ]
        lines = [
            {"market": market, "used": market in used, "points": [list(point) for point in points[-_CHANGES:]]}
            for market, points in self.prices.items()
        ]
        found: dict[str, Any] = finite({"now_s": self.now_s, "machines": rows, "markets": lines})
        return found

    def spend(self) -> dict[str, Any]:
        """USD spent over time, what the same machine time would have cost on demand, and the budget.

        A charge is spread evenly over the time that it pays for; a refund counts from its machine's end.
        """
        spans: list[tuple[float, float, float]] = []
        drops: list[tuple[float, float]] = []
        listed: list[tuple[float, float, float]] = []
        for lease in self._leases:
            if not lease.is_charged:
                continue
            until_s = lease.ended_s if not lease.is_open and not math.isnan(lease.ended_s) else self.now_s
            bill = self._bills.get(lease.lease_id)
            if bill is None:
                spans.append((lease.started_s, until_s, self._usd.get(lease.lease_id, 0.0)))
            else:
                spans += [(one["start_s"], one["end_s"], one["usd"]) for one in bill["charges"]]
                if bill["refund_usd"]:
                    drops.append((until_s, bill["refund_usd"]))
            price = self.catalogue.on_demand_usd_per_hour(lease.market, lease.requested_s)
            listed.append((lease.started_s, until_s, (price or 0.0) * (until_s - lease.started_s) / HOUR_S))
        times = self._times([*spans, *listed], drops)
        spent = _spread(times, spans) - sum((usd * (times >= at) for at, usd in drops), np.zeros(len(times)))
        found: dict[str, Any] = finite(
            {
                "times_s": times.tolist(),
                "spent_usd": spent.tolist(),
                "on_demand_usd": _spread(times, listed).tolist(),
                "budget_usd": self.work.budget_usd,
                "deadline_s": self._deadline_s,
            }
        )
        return found

    @property
    def now_s(self) -> float:
        """Time of the figures by the market's clock, seconds since 1970; NaN: nothing has begun."""
        return math.nan if self.figures is None else float(self.figures["time_s"])

    @cached_property
    def _leases(self) -> list[Lease]:
        return [] if self.kept is None else [lease_of(values) for values in self.kept["engine"]["leases"]]

    @cached_property
    def _bills(self) -> dict[int, dict[str, Any]]:
        return {} if self.kept is None else dict(self.kept["engine"]["bills"])

    @cached_property
    def _refunds(self) -> dict[int, float]:
        return {lease_id: float(bill["refund_usd"]) for lease_id, bill in self._bills.items()}

    @cached_property
    def _usd(self) -> dict[int, float]:
        """Cost of each lease, net of refunds, USD; open leases so far."""
        open_usd = {} if self.figures is None else dict(self.figures["open_usd"])
        paid = {
            lease_id: math.fsum(one["usd"] for one in bill["charges"]) - float(bill["refund_usd"])
            for lease_id, bill in self._bills.items()
        }
        return {**open_usd, **paid}

    @cached_property
    def _steps_on(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for job in self.kept["engine"]["jobs"] if self.kept is not None else ():
            for lease_id, steps in job["steps_on"]:
                found[lease_id] = found.get(lease_id, 0.0) + steps
        return found

    @property
    def _deadline_s(self) -> float | None:
        started_s = None if self.kept is None else self.kept["engine"]["started_s"]
        if started_s is None or self.work.deadline_h is None:
            return None
        return float(started_s) + self.work.deadline_h * HOUR_S

    def _line(self, lease: Lease) -> list[list[float]]:
        """Times and prices of a machine while it was rented; an on-demand machine has the list price."""
        if not lease.is_charged:
            return []
        until_s = self.now_s if lease.is_open or math.isnan(lease.ended_s) else lease.ended_s
        if lease.on_demand:
            price = self.catalogue.on_demand_usd_per_hour(lease.market, lease.requested_s)
            return [] if price is None else [[lease.started_s, price], [until_s, price]]
        points = self.prices.get(str(lease.market), ())
        before = [price for time_s, price in points if time_s <= lease.started_s]
        inside = [[time_s, price] for time_s, price in points if lease.started_s < time_s < until_s]
        first = [[lease.started_s, before[-1]]] if before else []
        found = [*first, *inside]
        return [*found, [until_s, found[-1][1]]] if found else []

    def _times(self, spans: Sequence[tuple[float, float, float]], drops: Sequence[tuple[float, float]]) -> Any:
        """Times at which to show a sum: those where its slope changes, thinned."""
        at = {time_s for start_s, end_s, _ in spans for time_s in (start_s, end_s)}
        for time_s, _ in drops:
            at |= {time_s, math.nextafter(time_s, -math.inf)}
        if not math.isnan(self.now_s):
            at.add(self.now_s)
        times = np.array(sorted(time_s for time_s in at if math.isfinite(time_s)))
        if len(times) <= 2 * _POINTS:
            return times
        return times[np.unique(np.linspace(0, len(times) - 1, 2 * _POINTS).round().astype(int))]

    def _predict(self, trials: list[dict[str, Any]]) -> None:
        """Add predicted ends to the best trials so far that have not been trained to their end."""
        assert self.kept is not None
        last, sign = self.work.steps, -1.0 if self.work.direction is Direction.MAXIMIZE else 1.0
        if last is None:
            return
        jobs = self.kept["engine"]["jobs"]
        is_open = [math.isnan(job["finished_s"]) or bool(job["stopped"]) for job in jobs]
        able = [trial for trial in trials if is_open[trial["number"]] and len(trial["steps"]) >= 3]
        able.sort(key=lambda trial: min(sign * value for value in trial["values"]))
        for trial in able[:_PREDICTED]:
            key = tuple(trial["steps"]), tuple(sign * value for value in trial["values"])
            end = _end(*key, float(last))
            if end is not None:
                value, *band = (sign * one for one in end)
                trial["predicted"] = {"step": last, "value": value, "lower": min(band), "upper": max(band)}


@lru_cache(maxsize=512)
def _end(steps: tuple[float, ...], metric: tuple[float, ...], last: float) -> tuple[float, float, float] | None:
    """Predict the end of a curve, lower is better, and its band; None: not possible."""
    try:
        (end,) = default_calibration().everywhere.ends([observed(steps, metric, last)])
    except InputError:
        return None
    return end.value, end.lower, end.upper


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `_POINTS` of a line's points, including the first and the last."""
    if len(points) <= _POINTS:
        return list(points)
    return [points[place] for place in np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))]


def _spread(times: Any, spans: Sequence[tuple[float, float, float]]) -> Any:
    """Return, for each time, the sum of amounts up to then, each spread evenly over its span."""
    total = np.zeros(len(times))
    for start_s, end_s, usd in spans:
        if end_s > start_s:
            total += usd * np.clip((times - start_s) / (end_s - start_s), 0.0, 1.0)
        else:
            total += usd * (times >= start_s)
    return total
