"""Figures of live runs for Prometheus, in its text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ebbtide.clouds.settings import UnreadableRun
from ebbtide.controller.run_state import State
from ebbtide.runs.status import RunStanding

# By name: help text and value; unknown values are None and not exported.
_GAUGES: dict[str, tuple[str, Callable[[RunStanding], float | None]]] = {
    "spent_usd": (
        "USD paid, net of refunds, open machines as if released now; simulated where ebbtide_run_info says so",
        lambda one: one.money.paid_usd,
    ),
    "refunded_usd": ("USD refunded of what was charged", lambda one: one.money.refund_usd),
    "rate_usd_per_hour": ("Present cost rate, USD per hour", lambda one: one.money.usd_per_hour),
    "on_demand_usd": (
        "List price of machine time whose work was kept, USD",
        lambda one: one.money.on_demand_usd,
    ),
    "lost_usd": ("Cost of machine time whose work was lost, USD", lambda one: one.money.lost_usd),
    "budget_usd": ("Budget, USD", lambda one: one.budget_usd),
    "machines": ("Machines rented now", lambda one: one.rented),
    "machines_rented": ("Machines ever charged", lambda one: one.rented_ever),
    "revocations": ("Machines that were revoked", lambda one: one.revoked),
    "elapsed_seconds": ("Real seconds for which its controllers ran", lambda one: one.elapsed_s),
    "late_seconds": ("Seconds past its deadline, by the market's clock", lambda one: one.late_s),
    "steps": ("Steps done, all trials together", lambda one: sum(trial.steps_done or 0 for trial in one.trials)),
    "best_metric": ("Best value of the metric", lambda one: None if one.best is None else one.best.best),
}


def exposition(standings: Sequence[RunStanding | UnreadableRun]) -> bytes:
    """Return the figures of runs in Prometheus's text format.

    Args:
        standings: Status of each run, or why it cannot be read.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Runs(standings))
    return generate_latest(registry)


class _Runs(Collector):
    """Collects the figures of readable runs."""

    def __init__(self, standings: Sequence[RunStanding | UnreadableRun]) -> None:
        readable = [one for one in standings if isinstance(one, RunStanding)]
        self._unreadable = len(standings) - len(readable)
        # A copied folder has the same run id, and Prometheus refuses two samples with the same labels.
        self._readable = list({one.run: one for one in readable}.values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, (about, value_of) in _GAUGES.items():
            family = GaugeMetricFamily(f"ebbtide_run_{name}", about, labels=["run"])
            for one in self._readable:
                value = value_of(one)
                if value is not None:
                    family.add_metric([one.run], float(value))
            yield family
        about = "1; who rents its machines out, and whether its costs are simulated"
        info = GaugeMetricFamily("ebbtide_run_info", about, labels=["run", "provider", "simulated"])
        state = GaugeMetricFamily("ebbtide_run_state", "1 for the state that a run is in", labels=["run", "state"])
        trials = GaugeMetricFamily("ebbtide_run_trials", "Trials by state", labels=["run", "state"])
        for one in self._readable:
            info.add_metric([one.run, one.provider, str(one.is_simulated).lower()], 1.0)
            for each in State:
                state.add_metric([one.run, str(each)], float(each is one.state))
            for words, count in sorted(Counter(trial.state for trial in one.trials).items()):
                trials.add_metric([one.run, words], count)
        yield info
        yield state
        yield trials
        unreadable = GaugeMetricFamily("ebbtide_runs_unreadable", "Runs that cannot be read", labels=[])
        unreadable.add_metric([], float(self._unreadable))
        yield unreadable
