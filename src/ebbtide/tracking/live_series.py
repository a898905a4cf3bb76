"""MLflow metrics of a live run over time: costs, refunds and moves, from its controller's records.

A step is a second of the market since the run began.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from ebbtide.base.utc import iso
from ebbtide.controller.kinds.state import TrialRecord, leases_on, present_s
from ebbtide.controller.snapshots import RunSnapshot, RunSpending
from ebbtide.engine.snapshot import lease_of
from ebbtide.storage.checkpoints.manifest import Manifest

# The most metrics that MLflow accepts at once.
_BATCH = 1000


@dataclass(frozen=True)
class Point:
    """Value of a metric at a step.

    Attributes:
        name: Name of the metric in MLflow.
        step: Step of the value: seconds of the market since the run began, or the training's own step.
        value: The value at that step.
    """

    name: str
    step: int
    value: float


@dataclass(frozen=True)
class Clock:
    """Turns seconds of the market into times.

    Attributes:
        began_epoch_s: Time of step 0 in seconds since 1970.
        speed: Seconds of the market in a real second.
    """

    began_epoch_s: float
    speed: float

    def ms(self, step: int) -> int:
        """Time of a step in milliseconds since 1970."""
        return int(1000 * (self.began_epoch_s + step / self.speed))


class MetricLog:
    """Adds points to MLflow runs; what is logged already, by this process or by an earlier one, is left out.

    Args:
        client: Client of the tracking server or database.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._logged: dict[tuple[str, str], dict[int, float]] = {}

    def add(self, run: str, points: Iterable[Point], clock: Clock) -> None:
        """Log points of a series of which each comes after all before.

        Args:
            run: Id of the MLflow run.
            points: The series from its beginning, or a later part of it.
            clock: Gives the time of each point by its step.
        """
        new = []
        for point in points:
            known = self._known(run, point.name)
            if point.step > max(known, default=-1):
                known[point.step] = point.value
                new.append(Metric(point.name, point.value, clock.ms(point.step), point.step))
        self._log(run, new)

    def add_missing(self, run: str, points: Iterable[Point], at_ms: int) -> bool:
        """Log the points whose steps have no value yet; returns whether there were any."""
        new = []
        for point in points:
            known = self._known(run, point.name)
            if point.step not in known:
                known[point.step] = point.value
                new.append(Metric(point.name, point.value, at_ms, point.step))
        self._log(run, new)
        return bool(new)

    def end(self, run: str, points: Iterable[Point], at_ms: int) -> None:
        """Log final values: each is the last of its series, once, however often this is called."""
        new = []
        for point in points:
            known = self._known(run, point.name)
            last = max(known, default=-1)
            if last >= 0 and math.isclose(known[last], point.value, rel_tol=1e-12):
                continue
            step = max(point.step, last + 1)
            known[step] = point.value
            new.append(Metric(point.name, point.value, at_ms, step))
        self._log(run, new)

    def _known(self, run: str, name: str) -> dict[int, float]:
        if (run, name) not in self._logged:
            history = self._client.get_metric_history(run, name)
            self._logged[run, name] = {point.step: point.value for point in history}
        return self._logged[run, name]

    def _log(self, run: str, metrics: Sequence[Metric]) -> None:
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(run, metrics=metrics[first : first + _BATCH])


def run_points(kept: RunSnapshot, figures: RunSpending | None) -> list[Point]:
    """Cost and refunds of the whole run over time, USD; leases that are open count as if they ended now.

    Args:
        kept: The controller's snapshot, as the journal has it.
        figures: The controller's last figures on open leases; None: those are left out.
    """
    shares = dict.fromkeys(range(len(kept["engine"]["leases"])), 1.0)
    return _money(kept, figures, shares, ("cost_usd", "refund_usd"))


def trial_points(kept: RunSnapshot, figures: RunSpending | None, number: int) -> list[Point]:
    """Cost and refunds of one trial over time, USD, and how often it moved to another machine.

    A machine's cost is divided among the trials that trained on it, by time and by the share that each fills.

    Args:
        kept: The controller's snapshot, as the journal has it.
        figures: The controller's last figures on open leases; None: those are left out.
        number: Number of the trial, counted from 0.
    """
    now_s = math.nan if figures is None else float(figures["time_s"])
    trials = kept["provider"]["trials"]
    times = [
        {lease_id: trial["share"] * own_s for lease_id, own_s in times_of(trial, now_s).items()}
        for trial in trials
    ]
    shares = {}
    for lease_id, own_s in times[number].items():
        whole_s = math.fsum(each.get(lease_id, 0.0) for each in times)
        shares[lease_id] = own_s / whole_s if whole_s > 0 else 0.0
    found = _money(kept, figures, shares, ("ebbtide.cost_usd", "ebbtide.refund_usd"))
    started_s, trial = kept["engine"]["started_s"], trials[number]
    if started_s is not None and leases_on(trial) and not math.isnan(trial["began_s"]):
        moves = len({stretch["attempt"] for stretch in trial["stretches"]} - {trial["attempt"]})
        found.append(Point("ebbtide.moves", max(int(trial["began_s"] - started_s), 0), moves))
    return found


def times_of(trial: TrialRecord, now_s: float = math.nan) -> dict[int, float]:
    """Seconds for which a trial trained on each machine, by lease id.

    Args:
        trial: The controller's state of the trial.
        now_s: Time by the market's clock, up to which its present machine counts; NaN: that is left out.
    """
    found: dict[int, float] = defaultdict(float)
    for stretch in trial.get("stretches", ()):
        found[int(stretch["lease_id"])] += float(stretch["duration_s"])
    for lease_id, duration_s in ({} if math.isnan(now_s) else present_s(trial, now_s)).items():
        found[lease_id] += duration_s
    return dict(found)


def _money(
    kept: RunSnapshot, figures: RunSpending | None, shares: Mapping[int, float], names: tuple[str, str]
) -> list[Point]:
    engine = kept["engine"]
    started_s = engine.get("started_s")
    if started_s is None:
        return []
    # By step: what was charged, and what was refunded of it.
    flows: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def enter(time_s: float, charged_usd: float, refund_usd: float) -> None:
        step = max(int(time_s - started_s), 0)
        before = flows[step]
        flows[step] = (before[0] + charged_usd, before[1] + refund_usd)

    enter(started_s, 0.0, 0.0)
    for lease_id, bill in engine["bills"]:
        share = shares.get(lease_id, 0.0)
        for charge in bill["charges"] if share > 0 else ():
            enter(charge["end_s"], share * charge["usd"], 0.0)
        if share > 0 and bill["refund_usd"]:
            enter(engine["leases"][lease_id]["ended_s"], 0.0, share * bill["refund_usd"])
    found, charged, refunded = [], 0.0, 0.0
    for step in sorted(flows):
        usd, refund = flows[step]
        charged, refunded = charged + usd, refunded + refund
        found.append(Point(names[0], step, charged - refunded))
        if refund or step == 0:
            found.append(Point(names[1], step, refunded))
    if figures is not None and figures.get("spent_usd") is not None:
        now = int(figures["time_s"] - started_s)
        open_usd = math.fsum(shares.get(lease_id, 0.0) * usd for lease_id, usd in figures.get("open_usd", ()))
        if now > max(flows):
            found.append(Point(names[0], now, charged - refunded + open_usd))
    return found


def trial_costs(kept: RunSnapshot, cost_usd: float) -> list[float]:
    """The cost of each trial, USD; the sum is the cost of the run.

    A machine's cost is divided among the trials that trained on it, by time. The cost of unused machines and of
    data transfer is divided among all trials, by their training time; where there is none, by their steps.

    Args:
        kept: The controller's snapshot at the end of the run.
        cost_usd: Cost of the run in USD, data transfer included.
    """
    times = [times_of(trial) for trial in kept["provider"]["trials"]]
    costs = [0.0] * len(times)
    for lease_id, bill in kept["engine"]["bills"]:
        shares = _shares([time_s.get(lease_id, 0.0) for time_s in times])
        if shares is not None:
            usd = math.fsum(charge["usd"] for charge in bill["charges"]) - bill["refund_usd"]
            costs = [cost + share * usd for cost, share in zip(costs, shares, strict=True)]
    left = cost_usd - math.fsum(costs)
    of_all = (
        _shares([math.fsum(time_s.values()) for time_s in times])
        or _shares([job["steps_run"] for job in kept["engine"]["jobs"]])
        or [1.0 / len(times) for _ in times]
    )
    return [cost + share * left for cost, share in zip(costs, of_all, strict=True)]


def _shares(weights: Sequence[float]) -> list[float] | None:
    whole = math.fsum(weights)
    return [weight / whole for weight in weights] if whole > 0 else None


def moves_table(kept: RunSnapshot, number: int) -> str:
    """The machines that a trial has left, in order, as CSV: which, from when to when, and from which step on.

    Args:
        kept: The controller's snapshot, as the journal has it.
        number: Number of the trial, counted from 0.
    """
    rows = []
    for stretch in kept["provider"]["trials"][number].get("stretches", ()):
        lease = lease_of(kept["engine"]["leases"][stretch["lease_id"]])
        has_ended = not lease.is_open and math.isfinite(lease.ended_s)
        rows.append(
            {
                "machine": lease.lease_id,
                "market": str(lease.market),
                "on_demand": lease.on_demand,
                "rented_at": iso(lease.started_s) if math.isfinite(lease.started_s) else "",
                "ended_at": iso(lease.ended_s) if has_ended else "",
                "ended_as": str(lease.state) if has_ended else "",
                "trained_s": round(stretch["duration_s"], 1),
                "from_step": stretch["step_from"],
                "to_step": stretch["step_done"],
                "kept_to_step": stretch["step_kept"],
            }
        )
    return _csv(rows)


def checkpoints_table(manifests: Iterable[Manifest], address: str) -> str:
    """Checkpoints of a trial as CSV, each with its address in storage.

    Args:
        manifests: Manifests of the checkpoints that storage holds, the newest first.
        address: Address of the trial's checkpoints.
    """
    return _csv(
        [
            {
                "step": manifest.step,
                "saved_at": iso(manifest.saved_at_s),
                "bytes": manifest.size_bytes,
                "address": f"{address}/manifests/{manifest.number:08d}",
            }
            for manifest in manifests
        ]
    )


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
