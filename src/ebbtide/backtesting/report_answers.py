"""The first lines of a report: what to rent for each job, and what that is expected to cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.summary import Summary, best_first
from ebbtide.market.catalogue import default_catalogue

ANSWERS_NOTE = (
    "Costs are simulated: the job is begun at several times, the starts, all after the days that the models "
    "learned from. A cost is that of all machines of the job, the mean over its starts. The machines to start "
    "with are those that the policy requests at the latest recorded prices. It decides again as prices and "
    "capacity change: it may move, or switch to on-demand machines."
)

# Costs that differ by a smaller share are the same but for rounding.
_SAME = 1e-9
# A smaller share of the cost is not told as a difference.
_LEAST_SHARE = 0.005


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
        cost = f"Policy {policy} finished from none of {_starts(len(runs))}."
    else:
        costs = runs.loc[runs["finished"].astype(bool), "cost_usd"]
        finished = " that finished" if len(costs) < len(runs) else ""
        if len(costs) < 2:
            spread = f"from one start{finished} only"
        elif costs.max() - costs.min() > _SAME * costs.max():
            error_usd = row["cost_usd"]["std"] / math.sqrt(len(costs))
            worst = f"at worst {_usd(costs.max())} USD in {len(costs)} starts{finished}"
            spread = f"standard error {_usd(error_usd)} USD; {worst}"
        else:
            spread = f"the same from each of {len(costs)} starts{finished}"
        expected = f"{_usd(mean)} USD ({spread}) and to take {_time(row)}"
        cost = f"Under policy {policy}, the job is expected to cost {expected}."
    late = _late(record, row, policy) if mean is not None else []
    return " ".join(
        [first, cost, *late, *_against_on_demand(record, summary, policy), *_rival(policy, record, summary)]
    )


def _against_on_demand(record: BacktestRecord, summary: Summary, policy: str) -> list[str]:
    """A sentence on the saving against on-demand machines, and which those are."""
    row, listed = summary[policy], summary.get("on-demand")
    on_demand = listed["cost_usd"]["mean"] if listed and listed["unfinished"] == 0 else None
    if not on_demand or policy == "on-demand":
        return []
    runs, share = len(record.outcomes[record.outcomes["policy"] == policy]), ""
    # A job that is late from every start saves nothing of worth.
    if row["unfinished"] == 0 and row.get("missed", 0) < runs:
        saved = 1.0 - row["cost_usd"]["mean"] / on_demand
        share = f": {_share(saved)} is saved" if saved > 0.0 else f": this costs {_share(-saved)} more"
        share = ", about the same" if abs(saved) < _LEAST_SHARE else share
    leases = record.leases[record.leases["policy"] == "on-demand"] if len(record.leases) else record.leases
    markets = sorted(set(leases["market"])) if len(leases) else []
    where = f" ({' in '.join(reversed(markets[0].split(' ', 1)))})" if len(markets) == 1 else ""
    late = f" and miss the deadline from {_starts(listed['missed'])}" if listed and listed.get("missed") else ""
    return [f"On-demand machines{where} cost {_usd(on_demand)} USD{late}{share}."]


def _late(record: BacktestRecord, row: Mapping[str, Any], policy: str) -> list[str]:
    """A sentence on the deadline, or on starts that did not finish."""
    runs = len(record.outcomes[record.outcomes["policy"] == policy])
    if "missed" not in row:
        return [f"It does not finish from {row['unfinished']} of {runs} starts."] if row["unfinished"] else []
    deadline = f"deadline of {record.about['deadline_h']:g} h"
    if row["missed"]:
        return [f"It misses the {deadline} from {row['missed']} of {_starts(runs)}."]
    return [f"It meets the {deadline} from each start."]


def _rival(policy: str, record: BacktestRecord, summary: Summary) -> list[str]:
    """A sentence on another policy that was in time more often, or as often and cheaper, if there is one."""
    best, row = best_first(summary)[0]
    mean, own_mean = row["cost_usd"]["mean"], summary[policy]["cost_usd"]["mean"]
    bad, own = (int(each.get("missed", each["unfinished"])) for each in (row, summary[policy]))
    if best == policy or mean is None:
        return []
    if bad < own:
        done = "met the deadline" if "missed" in row else "finished"
        return [f"Policy {best} {done} more often, for {_usd(mean)} USD."]
    less = 1.0 - mean / own_mean if own_mean else 0.0
    if less < _LEAST_SHARE:
        return []
    costs, error = record.outcomes.groupby("policy", observed=True)["cost_usd"], ""
    own_usd, best_usd = costs.get_group(policy).to_numpy(), costs.get_group(best).to_numpy()
    # All policies run from the same starts, in one order; costs of runs that did not finish say little.
    if len(own_usd) == len(best_usd) > 1 and row["unfinished"] == summary[policy]["unfinished"] == 0:
        deviation_usd = (own_usd - best_usd).std(ddof=1)
        error = f" (standard error {deviation_usd / math.sqrt(len(own_usd)) / own_mean:.1%})"
    return [f"Policy {best} cost {less:.1%} less here{error}."]


def _rented(requests: Sequence[Mapping[str, Any]]) -> str:
    """The requests of the policy in words: machines of the same market counted together."""
    if not requests:
        return "rent nothing now, and wait"
    machines: dict[tuple[str, bool], int] = {}
    for each in requests:
        key = str(each["market"]), bool(each["on_demand"])
        machines[key] = machines.get(key, 0) + int(each["machines"])
    listed = [
        f"{count} {'on-demand' if on_demand else 'spot'} {_machine(market, ' each' if count > 1 else '')}"
        for (market, on_demand), count in sorted(machines.items(), key=lambda pair: -pair[1])
    ]
    rest = len(listed) - 2
    more = f" and machines in {rest} other market{'s' if rest > 1 else ''}" if rest > 0 else ""
    return f"start with {' and '.join(listed[:2]) if not more else ', '.join(listed[:2])}{more}"


def _machine(market: str, each: str) -> str:
    """A market in words: the instance type, its accelerators and the zone."""
    zone, _, name = market.partition(" ")
    known = next((one for one in default_catalogue().instance_types if one.name == name), None)
    accelerators = ""
    if known is not None and known.accelerator is not None:
        accelerators = f" ({known.accelerator_count} x {known.accelerator.removeprefix('NVIDIA ')}{each})"
    return f"{name}{accelerators} in {zone}"


def _time(row: Mapping[str, Any]) -> str:
    hours = row["makespan_h"]["mean"]
    if hours >= 100.0:
        return f"{hours:,.0f} h"
    return f"{hours:.3g} h" if hours >= 1.0 else f"{hours * 60.0:.0f} min"


def _starts(number: int) -> str:
    return f"{number} start{'s' if number != 1 else ''}"


def _share(value: float) -> str:
    # 99.7% must not become 100%.
    if 0.9995 <= value < 1.0:
        return "more than 99.9%"
    return f"{value:.1%}" if 0.995 <= value < 1.0 else f"{value:.0%}"


def _usd(value: float) -> str:
    if 0.0 < value < 0.001:
        return "less than 0.001"
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}" if value >= 1.0 else f"{value:.2g}"
