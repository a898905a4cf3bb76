"""The first lines of a report: what to rent, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.report_answers import answer_of
from ebbtide.backtesting.summary import METRICS

SPOT = {"market": "us-east-1a g6.2xlarge", "on_demand": False, "machines": 1, "max_price_usd_per_hour": 0.9}


def record(costs: dict[str, list[float]], rent: list[dict[str, Any]], **about: Any) -> BacktestRecord:
    """A record with these costs by policy; each run takes ten hours."""
    rows = [
        {"policy": name, "start": pd.Timestamp("2026-02-01", tz="UTC"), "finished": True}
        | dict.fromkeys(METRICS, 0.0)
        | {"cost_usd": usd, "makespan_h": 10.0}
        for name, each in costs.items()
        for usd in each
    ]
    settings = {"jobs": ["j"], "starts": 4, "seed": 0, "billing": "by-cloud", "policy": "ebbtide", "rent": rent}
    empty = pd.DataFrame()
    return BacktestRecord(settings | about, pd.DataFrame(rows), empty, empty, empty, empty)


def test_the_answer_has_the_machines_the_cost_its_error_and_the_saving() -> None:
    one = record({"ebbtide": [2.0, 4.0, 2.0, 4.0], "on-demand": [10.0] * 4}, [SPOT, SPOT])
    assert answer_of("train", one) == (
        "train: start with 2 spot g6.2xlarge (1 x L4) in us-east-1a. Policy ebbtide is expected to cost 3 USD "
        "(standard error 0.58, worst of 4 starts 4) and to take 10 h. On-demand machines cost 10 USD: "
        "70% is saved."
    )
    leases = pd.DataFrame({"policy": ["ebbtide", "on-demand"], "market": ["us-east-1a g6.2xlarge", "b unknown"]})
    told = answer_of("train", replace(one, leases=leases))
    assert "On-demand machines (unknown in b) cost 10 USD: 70% is saved." in told
    dear = record({"ebbtide": [15.0] * 4, "on-demand": [10.0] * 4}, [SPOT])
    assert answer_of("j", dear).endswith(
        " cost 10 USD: this costs 50% more. Policy on-demand cost 33.3% less here."
    )


def test_a_policy_that_is_in_time_more_often_is_told() -> None:
    one = record({"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4}, [SPOT], deadline_h=20.0)
    one.outcomes.loc[0, "makespan_h"] = 21.0
    assert answer_of("j", one).endswith(
        "from 1 of 4 starts. Policy on-demand met the deadline more often, for 10 USD."
    )
    late = record({"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4}, [SPOT])
    late.outcomes.loc[0, "finished"] = False
    assert answer_of("j", late).endswith("from 1 of 4 starts. Policy on-demand finished more often, for 10 USD.")


def test_costs_that_differ_by_rounding_are_the_same() -> None:
    told = answer_of("j", record({"ebbtide": [0.1, 0.1, 0.1 + 1e-17]}, [SPOT]))
    assert "0.1 USD (the same from each of 3 starts)" in told


def test_short_runs_are_told_in_minutes_and_equal_costs_as_such() -> None:
    one = record({"ebbtide": [2.0] * 4}, [SPOT])
    one.outcomes["makespan_h"] = 0.681
    assert answer_of("j", one).endswith(" to cost 2 USD (the same from each of 4 starts) and to take 41 min.")


def test_a_cheaper_policy_that_is_in_time_as_often_is_told() -> None:
    costs = {"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4, "cheapest-spot": [3.0] * 4}
    assert answer_of("j", record(costs, [SPOT])).endswith(". Policy cheapest-spot cost 25.0% less here.")
    late = record(costs, [SPOT], deadline_h=20.0)
    late.outcomes.loc[late.outcomes["policy"] == "cheapest-spot", "makespan_h"] = 21.0
    told = answer_of("j", late)
    assert told.endswith(" It met the deadline of 20 h from each start.")
    late.outcomes["makespan_h"] = [21.0, *[19.0] * 11]
    told = answer_of("j", late)
    assert " from 1 of 4 starts. Policy cheapest-spot met the deadline more often, for 3 USD." in told


@pytest.mark.parametrize(
    ("rent", "words"),
    [
        ([], "j: rent nothing now, and wait. Policy"),
        ([SPOT | {"on_demand": True}], "start with 1 on-demand g6.2xlarge (1 x L4) in us-east-1a. Policy"),
        (
            [SPOT, SPOT | {"market": "b t"}],
            "start with 1 spot g6.2xlarge (1 x L4) in us-east-1a and 1 spot t in b. ",
        ),
        (
            [SPOT | {"machines": 3}, SPOT | {"market": "b t"}, SPOT | {"market": "c t"}],
            "start with 3 spot g6.2xlarge (1 x L4) in us-east-1a, 1 spot t in b and machines in 1 other market. ",
        ),
    ],
)
def test_machines_are_told_by_market(rent: list[dict[str, Any]], words: str) -> None:
    assert words in answer_of("j", record({"ebbtide": [1.0] * 4}, rent))


def test_a_policy_that_never_finished_has_no_cost() -> None:
    one = record({"ebbtide": [1.0] * 4}, [SPOT])
    one.outcomes["finished"] = False
    assert answer_of("j", one) == (
        "j: start with 1 spot g6.2xlarge (1 x L4) in us-east-1a. Policy ebbtide finished from none of 4 starts."
    )


def test_a_record_of_a_backtest_has_no_answer() -> None:
    one = record({"ebbtide": [1.0] * 4}, [])
    assert answer_of("j", replace(one, about={"jobs": ["j"], "starts": 4})) == ""
