"""The first lines of a report: what to rent for each job, and what that is expected to cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ebbtide.backtesting.record import BacktestRecord

ANSWERS_NOTE = (
    "Costs are simulated: the mean over the starts on later days, with its standard error. What to rent is what "
    "the policy would request at the newest price of the record."
)


def answer_of(name: str, record: BacktestRecord) -> str:
    """Say in a sentence what to rent for a job and what it costs; empty: the record does not tell.

    Args:
        name: Name of the job in the report.
        record: Its record; `policy` and `rent` of its settings name the policy that is asked and its requests.
    """
    policy = record.about.get("policy")
    summary = record.summary()
    if policy not in summary:
        return ""
    row = summary[policy]
    mean, runs = row["cost_usd"]["mean"], len(record.outcomes[record.outcomes["policy"] == policy])
    if mean is None:
        return f"{name}: {_rented(record.about['rent'])}; none of {runs} starts finished."
    finished = runs - row["unfinished"]
    error_usd = (row["cost_usd"]["std"] or 0.0) / math.sqrt(finished)
    spread = f" ± {_usd(error_usd)}" if finished > 1 else ""
    parts = [f"{name}: {_rented(record.about['rent'])}, by policy {policy}"]
    parts.append(f"expected {_usd(mean)}{spread} USD and {row['makespan_h']['mean']:.3g} h")
    listed = summary.get("on-demand")
    on_demand = listed["cost_usd"]["mean"] if listed and listed["unfinished"] == row["unfinished"] == 0 else None
    if on_demand:
        saved = 1.0 - mean / on_demand
        more = f"{saved:.0%} less" if saved >= 0.0 else f"{-saved:.0%} more"
        parts.append(f"{more} than on demand ({_usd(on_demand)} USD)")
    if "missed" in row:
        late = row["missed"]
        kept = f"missed in {late} of {runs}" if late else f"kept in {runs} of {runs}"
        parts.append(f"the deadline of {record.about['deadline_h']:g} h {kept} starts")
    elif row["unfinished"]:
        parts.append(f"{row['unfinished']} of {runs} starts did not finish")
    return "; ".join(parts) + _rival(policy, summary)


def _rival(policy: str, summary: Mapping[str, Mapping[str, Any]]) -> str:
    """The end of the sentence: another policy that was cheaper and in time as often, if there is one."""
    bad = {name: int(row.get("missed", row["unfinished"])) for name, row in summary.items()}
    costs = {
        name: row["cost_usd"]["mean"]
        for name, row in summary.items()
        if row["cost_usd"]["mean"] is not None and bad[name] <= bad[policy] and not row["unfinished"]
    }
    best = min(costs, key=lambda name: costs[name], default=policy)
    if policy not in costs:
        return "."
    less = 1.0 - costs[best] / costs[policy] if costs[policy] > 0.0 else 0.0
    return f". Policy {best} cost {less:.1%} less here." if less >= 0.005 else "."


def _rented(requests: list[Mapping[str, Any]]) -> str:
    """The requests of the policy in words: machines of the same market counted together."""
    if not requests:
        return "rent nothing now and wait"
    machines: dict[tuple[str, bool], int] = {}
    for each in requests:
        key = str(each["market"]), bool(each["on_demand"])
        machines[key] = machines.get(key, 0) + int(each["machines"])
    listed = [
        f"{count} {market.split(' ', 1)[1]} in {market.split(' ', 1)[0]}, {'on demand' if on_demand else 'spot'}"
        for (market, on_demand), count in sorted(machines.items(), key=lambda pair: -pair[1])
    ]
    return f"rent {' and '.join(listed[:2])}{f' and in {len(listed) - 2} more markets' if len(listed) > 2 else ''}"


def _usd(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}" if value >= 1.0 else f"{value:.2g}"
