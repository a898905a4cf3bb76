"""The first lines of a report: what to rent for each job, and what that is expected to cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.summary import Summary, best_first
from ebbtide.market.catalogue import default_catalogue

ANSWERS_NOTE = (
    "Costs are simulated: means over starts after the days that the models learned from. The machines to start "
    "with are those that the policy requests at the latest recorded prices. It decides again as prices and "
    "capacity change: it may move, or switch to on-demand machines."
)

# Costs that differ by a smaller share are the same but for rounding.
_SAME = 1e-9


def answer_of(name: str, record: BacktestRecord) -> str:
    """Say what to rent for a job and what it costs; empty: the record does not tell.

    Args:
        name: Name of the job in the report.
        record: Its record; `policy` and `rent` of its settings name the policy that is asked and its requests.
    """
    policy = record.about.get("policy")
    summary = record.summary()
    if policy not in summary:
        return ""
    row, runs = summary[policy], record.outcomes[record.outcomes["policy"] == policy]
    first, mean = f"{name}: {_rented(record.about['rent'])}.", row["cost_usd"]["mean"]
    if mean is None:
        return f"{first} Policy {policy} finished from none of {len(runs)} starts."
    costs = runs.loc[runs["finished"].astype(bool), "cost_usd"]
    spread = ""
    if len(costs) > 1 and costs.max() - costs.min() > _SAME * costs.max():
        error_usd = row["cost_usd"]["std"] / math.sqrt(len(costs))
        spread = f" (standard error {_usd(error_usd)}, worst of {len(costs)} starts {_usd(costs.max())})"
    elif len(costs) > 1:
        spread = f" (the same from each of {len(costs)} starts)"
    cost = f"Policy {policy} is expected to cost {_usd(mean)} USD{spread} and to take {_time(row)}."
    rest = [*_against_on_demand(record, summary, policy), *_in_time(record, row, policy), *_rival(policy, summary)]
    return " ".join([first, cost, *rest])


def _against_on_demand(record: BacktestRecord, summary: Summary, policy: str) -> list[str]:
    """A sentence on the saving against on-demand machines, and which those are."""
    row, listed = summary[policy], summary.get("on-demand")
    on_demand = listed["cost_usd"]["mean"] if listed and listed["unfinished"] == row["unfinished"] == 0 else None
    if not on_demand or policy == "on-demand":
        return []
    saved = 1.0 - row["cost_usd"]["mean"] / on_demand
    share = f"{saved:.0%} is saved" if saved >= 0.0 else f"this costs {-saved:.0%} more"
    leases = record.leases[record.leases["policy"] == "on-demand"] if len(record.leases) else record.leases
    markets = sorted(set(leases["market"])) if len(leases) else []
    where = f" ({' in '.join(reversed(markets[0].split(' ', 1)))})" if len(markets) == 1 else ""
    late = f" and miss the deadline from {listed['missed']} starts" if listed and listed.get("missed") else ""
    return [f"On-demand machines{where} cost {_usd(on_demand)} USD{late}: {share}."]


def _in_time(record: BacktestRecord, row: Mapping[str, Any], policy: str) -> list[str]:
    """A sentence on the deadline, or on starts that did not finish."""
    runs = len(record.outcomes[record.outcomes["policy"] == policy])
    if "missed" not in row:
        return [f"It did not finish from {row['unfinished']} of {runs} starts."] if row["unfinished"] else []
    deadline = f"deadline of {record.about['deadline_h']:g} h"
    if row["missed"]:
        return [f"It missed the {deadline} from {row['missed']} of {runs} starts."]
    return [f"It met the {deadline} from each start."]


def _rival(policy: str, summary: Summary) -> list[str]:
    """A sentence on another policy that was in time more often, or as often and cheaper, if there is one."""
    best, row = best_first(summary)[0]
    mean = row["cost_usd"]["mean"]
    bad, own = (int(each.get("missed", each["unfinished"])) for each in (row, summary[policy]))
    if best == policy or mean is None:
        return []
    if bad < own:
        done = "met the deadline" if "missed" in row else "finished"
        return [f"Policy {best} {done} more often, for {_usd(mean)} USD."]
    less = 1.0 - mean / summary[policy]["cost_usd"]["mean"] if summary[policy]["cost_usd"]["mean"] else 0.0
    return [f"Policy {best} cost {less:.1%} less here."] if less >= 0.005 else []


def _rented(requests: Sequence[Mapping[str, Any]]) -> str:
    """The requests of the policy in words: machines of the same market counted together."""
    if not requests:
        return "rent nothing now, and wait"
    machines: dict[tuple[str, bool], int] = {}
    for each in requests:
        key = str(each["market"]), bool(each["on_demand"])
        machines[key] = machines.get(key, 0) + int(each["machines"])
    listed = [
        f"{count} {'on-demand' if on_demand else 'spot'} {_machine(market)}"
        for (market, on_demand), count in sorted(machines.items(), key=lambda pair: -pair[1])
    ]
    rest = len(listed) - 2
    more = f" and machines in {rest} other market{'s' if rest > 1 else ''}" if rest > 0 else ""
    return f"start with {' and '.join(listed[:2]) if not more else ', '.join(listed[:2])}{more}"


def _machine(market: str) -> str:
    """A market in words: the instance type, its accelerators and the zone."""
    zone, _, name = market.partition(" ")
    known = next((each for each in default_catalogue().instance_types if each.name == name), None)
    accelerators = ""
    if known is not None and known.accelerator is not None:
        accelerators = f" ({known.accelerator_count} x {known.accelerator.removeprefix('NVIDIA ')})"
    return f"{name}{accelerators} in {zone}"


def _time(row: Mapping[str, Any]) -> str:
    hours = row["makespan_h"]["mean"]
    if hours >= 100.0:
        return f"{hours:,.0f} h"
    return f"{hours:.3g} h" if hours >= 1.0 else f"{hours * 60.0:.0f} min"


def _usd(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}" if value >= 1.0 else f"{value:.2g}"
