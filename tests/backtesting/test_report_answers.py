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
        "train: start with 2 spot g6.2xlarge (1 x L4 each) in us-east-1a. Under policy ebbtide, the job is expected "
        "to cost 3 USD (standard error 0.58 USD; at worst 4 USD in 4 starts) and to take 10 h. On-demand machines cost 10 USD: "
        "70% is saved."
    )
    leases = pd.DataFrame({"policy": ["ebbtide", "on-demand"], "market": ["us-east-1a g6.2xlarge", "b unknown"]})
    told = answer_of("train", replace(one, leases=leases))
    assert "On-demand machines (unknown in b) cost 10 USD: 70% is saved." in told
    dear = record({"ebbtide": [15.0] * 4, "on-demand": [10.0] * 4}, [SPOT])
    assert answer_of("j", dear).endswith(
        " cost 10 USD: this costs 50% more. Policy on-demand cost 33.3% less here (standard error 0.0%)."
    )


def test_a_policy_that_is_in_time_more_often_is_told() -> None:
    one = record({"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4}, [SPOT], deadline_h=20.0)
    one.outcomes.loc[0, "makespan_h"] = 21.0
    assert answer_of("j", one).endswith(
        "from 1 of 4 starts. On-demand machines cost 10 USD: 60% is saved. Policy on-demand met the deadline more "
        "often, for 10 USD."
    )
    late = record({"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4}, [SPOT])
    late.outcomes.loc[0, "finished"] = False
    assert answer_of("j", late).endswith(
        "It does not finish from 1 of 4 starts. On-demand machines cost 10 USD. Policy on-demand finished more often, "
        "for 10 USD."
    )


def test_costs_that_differ_by_rounding_are_the_same() -> None:
    told = answer_of("j", record({"ebbtide": [0.1, 0.1, 0.1 + 1e-17]}, [SPOT]))
    assert "0.1 USD (the same from each of 3 starts)" in told


def test_short_runs_are_told_in_minutes_and_equal_costs_as_such() -> None:
    one = record({"ebbtide": [2.0] * 4}, [SPOT])
    one.outcomes["makespan_h"] = 0.681
    assert answer_of("j", one).endswith(" to cost 2 USD (the same from each of 4 starts) and to take 41 min.")


def test_a_cheaper_policy_that_is_in_time_as_often_is_told() -> None:
    costs = {"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4, "cheapest-spot": [3.0] * 4}
    assert answer_of("j", record(costs, [SPOT])).endswith(
        ". Policy cheapest-spot cost 25.0% less here (standard error 0.0%)."
    )
    late = record(costs, [SPOT], deadline_h=20.0)
    late.outcomes.loc[late.outcomes["policy"] == "cheapest-spot", "makespan_h"] = 21.0
    told = answer_of("j", late)
    assert " It meets the deadline of 20 h from each start. " in told
    assert "cheapest-spot" not in told
    late.outcomes["makespan_h"] = [21.0, *[19.0] * 11]
    told = answer_of("j", late)
    assert " misses the deadline of 20 h from 1 of 4 starts. " in told
    assert told.endswith(" Policy cheapest-spot met the deadline more often, for 3 USD.")


@pytest.mark.parametrize(
    ("rent", "words"),
    [
        ([], "j: rent nothing now, and wait. Under"),
        ([SPOT | {"on_demand": True}], "start with 1 on-demand g6.2xlarge (1 x L4) in us-east-1a. Under"),
        (
            [SPOT, SPOT | {"market": "b t"}],
            "start with 1 spot g6.2xlarge (1 x L4) in us-east-1a and 1 spot t in b. ",
        ),
        (
            [SPOT | {"machines": 3}, SPOT | {"market": "b t"}, SPOT | {"market": "c t"}],
            "start with 3 spot g6.2xlarge (1 x L4 each) in us-east-1a, 1 spot t in b and machines in 1 other market. ",
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


def test_a_job_that_never_finishes_in_time_saves_nothing() -> None:
    one = record({"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4}, [SPOT], deadline_h=9.0)
    assert answer_of("j", one).endswith(
        "It misses the deadline of 9 h from 4 of 4 starts. On-demand machines cost 10 USD and miss the deadline from "
        "4 starts."
    )
    one.outcomes["finished"] = one.outcomes["policy"] == "on-demand"
    assert answer_of("j", replace(one, about={**one.about, "deadline_h": 12.0})).endswith(
        "Policy ebbtide finished from none of 4 starts. On-demand machines cost 10 USD. Policy on-demand met the "
        "deadline more often, for 10 USD."
    )


@pytest.mark.parametrize(
    ("usd", "words"),
    [
        ([3.0, 5.0], "to cost 4 USD (standard error 1 USD; at worst 5 USD in 2 starts)"),
        ([4.0], "to cost 4 USD (from one start only)"),
        ([0.0004], "to cost less than 0.001 USD"),
        ([9.97], "On-demand machines cost 10 USD, about the same."),
        ([0.03], "On-demand machines cost 10 USD: 99.7% is saved."),
        ([0.004], "On-demand machines cost 10 USD: more than 99.9% is saved."),
    ],
)
def test_amounts_say_no_more_than_is_known(usd: list[float], words: str) -> None:
    assert words in answer_of("j", record({"ebbtide": usd, "on-demand": [10.0] * len(usd)}, [SPOT]))


def test_the_error_of_a_rival_is_that_of_the_differences() -> None:
    costs = {"ebbtide": [10.0, 20.0, 30.0], "other": [9.0, 18.0, 27.0]}
    # Differences of 1, 2 and 3 USD: a deviation of 1, and an error of 0.577 of 20.
    told = answer_of("j", record(costs, [SPOT]))
    assert told.endswith(" Policy other cost 10.0% less here (standard error 2.9%).")


def test_a_record_of_a_backtest_has_no_answer() -> None:
    one = record({"ebbtide": [1.0] * 4}, [])
    assert answer_of("j", replace(one, about={"jobs": ["j"], "starts": 4})) == ""
