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
        "train: rent 2 g6.2xlarge in us-east-1a, spot, by policy ebbtide; expected 3 ± 0.58 USD and 10 h; "
        "70% less than on demand (10 USD)."
    )


def test_a_cheaper_policy_that_is_in_time_as_often_is_told() -> None:
    costs = {"ebbtide": [4.0] * 4, "on-demand": [10.0] * 4, "cheapest-spot": [3.0] * 4}
    assert answer_of("j", record(costs, [SPOT])).endswith(". Policy cheapest-spot cost 25.0% less here.")
    late = record(costs, [SPOT], deadline_h=20.0)
    late.outcomes.loc[late.outcomes["policy"] == "cheapest-spot", "makespan_h"] = 21.0
    told = answer_of("j", late)
    assert told.endswith("; the deadline of 20 h kept in 4 of 4 starts.")


@pytest.mark.parametrize(
    ("rent", "words"),
    [
        ([], "j: rent nothing now and wait, by policy"),
        ([SPOT | {"on_demand": True}], "rent 1 g6.2xlarge in us-east-1a, on demand, by"),
        (
            [SPOT | {"machines": 3}, SPOT | {"market": "b t"}, SPOT | {"market": "c t"}],
            "rent 3 g6.2xlarge in us-east-1a, spot and 1 t in b, spot and in 1 more markets, by",
        ),
    ],
)
def test_machines_are_told_by_market(rent: list[dict[str, Any]], words: str) -> None:
    assert words in answer_of("j", record({"ebbtide": [1.0] * 4}, rent))


def test_a_policy_that_never_finished_has_no_cost() -> None:
    one = record({"ebbtide": [1.0] * 4}, [SPOT])
    one.outcomes["finished"] = False
    assert answer_of("j", one) == "j: rent 1 g6.2xlarge in us-east-1a, spot; none of 4 starts finished."


def test_a_record_of_a_backtest_has_no_answer() -> None:
    one = record({"ebbtide": [1.0] * 4}, [])
    assert answer_of("j", replace(one, about={"jobs": ["j"], "starts": 4})) == ""
