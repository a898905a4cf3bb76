"""How many starts a cell of the benchmark takes: small cases worked out by hand, and random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.backtesting.benchmark_records import UnusedFile
from ebbtide.backtesting.benchmark_rounds import Rounds, Task
from ebbtide.backtesting.benchmark_starts import MOST_STARTS, CellRuns, cheapest, mean_costs_usd, more_starts


def runs(*costs_usd: float, misses: int = 0) -> CellRuns:
    return CellRuns(costs_usd, tuple(1.0 for _ in costs_usd), misses, 0)


def test_policies_whose_difference_is_known_need_no_more() -> None:
    assert more_starts({"good": runs(1.0, 2.0, 1.0, 2.0), "dear": runs(2.0, 3.0, 2.0, 3.0)}, "good") == {}
    # The same cost in every start: it makes no difference which is the cheapest.
    same = runs(1.0, 2.0, 1.0, 2.0)
    assert more_starts({"one": same, "twin": same}, "one") == {}


def test_what_is_promised_is_tried_a_few_times() -> None:
    """Costs leave nothing to doubt; whether a deadline is kept shows only from start to start."""
    assert more_starts({"good": runs(1.0), "dear": runs(9.0)}, "good") == {"good": 2}
    assert more_starts({"good": runs(1.0, 1.0), "dear": runs(9.0)}, "good") == {"good": 4}
    assert more_starts({"good": runs(1.0, 1.0), "dear": runs(9.0)}, "dear") == {"dear": 2}
    assert more_starts({"good": runs(*[1.0] * 4), "dear": runs(9.0)}, "good") == {}
    assert more_starts({"good": runs(1.0), "dear": runs(9.0)}, "good", most=1) == {}


def test_after_one_start_only_what_is_much_dearer_is_out() -> None:
    found = {"good": runs(1.0), "near": runs(1.2), "dear": runs(1.4)}
    assert more_starts(found, "good") == {"good": 2, "near": 2}
    assert more_starts(found, "dear") == {"dear": 2, "good": 2, "near": 2}


def test_after_one_start_what_costs_are_apart_counts_too() -> None:
    """The start that both have was a lucky one of the cheapest."""
    found = {"lucky": runs(1.0, 3.0, 3.0, 3.0), "rival": runs(1.4), "dear": runs(2.5)}
    assert more_starts(found, "lucky") == {"rival": 4}


def test_policies_that_may_be_the_cheapest_run_on_and_so_does_the_default() -> None:
    found = {"lucky": runs(1.0, 1.0), "rival": runs(0.5, 2.0), "dear": runs(9.0, 9.0), "default": runs(3.0, 3.0)}
    assert more_starts(found, "default") == {"default": 4, "lucky": 4, "rival": 4}
    # A policy that misses something is no measure; how much more the default costs is known.
    missed = {"rival": runs(0.5, 2.0, misses=1)}
    assert more_starts(found | missed, "default") == {"default": 4, "lucky": 4}
    longer = {"lucky": runs(*[1.0] * 4), "default": runs(*[3.0] * 4)}
    assert more_starts(found | missed | longer, "default") == {}
    assert more_starts({"good": runs(1.0, 1.0), "default": runs(2.0, 4.0)}, "default") == {"default": 4, "good": 4}


def test_who_stopped_because_of_one_that_broke_a_promise_since_goes_on() -> None:
    found = {"late": runs(1.0, 1.0, 1.0, 1.0, misses=1), "kept": runs(3.0, 3.0, 3.0, 3.0), "early": runs(2.0, 2.0)}
    assert cheapest(found) == "kept"
    assert more_starts(found, "kept") == {"early": 4}
    # It kept its promise in its two starts, where all with four broke one: whatever it costs.
    assert more_starts({"late": found["late"], "early": runs(9.0, 9.5)}, "late") == {"early": 4}
    assert more_starts({"late": found["late"], "early": runs(9.0, 9.5, misses=1)}, "late") == {}


def test_of_two_that_always_cost_the_same_one_runs_on() -> None:
    found = {"a": runs(1.0, 2.0), "b": runs(1.0, 2.0), "rival": runs(2.0, 1.0), "default": runs(1.0, 2.0)}
    assert more_starts(found, "default") == {"a": 4, "default": 4, "rival": 4}
    longer = {
        "a": runs(1.0, 2.0, 1.0, 1.5),
        "rival": runs(2.0, 1.0, 1.0, 2.0),
        "default": runs(1.0, 2.0, 1.0, 1.5),
    }
    # It is not behind because of its twin.
    assert "b" not in more_starts(found | longer, "default")
    assert more_starts({"a": runs(1.0), "b": runs(1.0)}, "a") == {"a": 2}


def test_there_is_an_end() -> None:
    random = np.random.default_rng(1)
    noisy = {name: runs(*random.uniform(1.0, 9.0, MOST_STARTS).tolist()) for name in "ab"}
    assert more_starts(noisy, "a") == {}
    assert more_starts({"a": runs(1.0), "b": runs(1.1)}, "a", most=1) == {}


def test_what_stopped_early_costs_its_ratio_to_what_was_cheaper() -> None:
    found = {"best": runs(2.0, 2.0, 6.0, 6.0), "other": runs(1.0, 5.0, 8.0, 8.0), "dear": runs(4.0, 4.0)}
    assert cheapest(found) == "best"
    # Over the first two starts "best" costs 2, half of "dear"; over all it costs 4.
    assert mean_costs_usd(found) == pytest.approx({"best": 4.0, "other": 5.5, "dear": 8.0})


@given(
    st.lists(st.lists(st.floats(0.1, 100.0), min_size=MOST_STARTS, max_size=MOST_STARTS), min_size=2, max_size=6),
    st.integers(0, 5),
    st.sampled_from([1, 2, 4]),
)
def test_rounds_end_and_none_that_stopped_seems_cheaper(
    costs: list[list[float]], default: int, first: int
) -> None:
    always = str(min(default, len(costs) - 1))
    rounds = Rounds((0, 0), [str(place) for place in range(len(costs))], always, first, MOST_STARTS)
    tasks = list(rounds.tasks)
    for _ in range(1_000):
        if not tasks:
            break
        task = tasks.pop()
        tasks += rounds.note(task, runs(*costs[int(task.policy)][task.first : task.end]))
    assert (tasks, list(rounds.tasks)) == ([], [])
    found = rounds.replays
    assert all(one.costs_usd == tuple(costs[int(name)][: one.starts]) for name, one in found.items())
    best = cheapest(found)
    assert {found[best].starts, found[always].starts} == {max(one.starts for one in found.values())}
    assert min(mean_costs_usd(found).values()) == pytest.approx(np.mean(found[best].costs_usd))


def test_a_policy_that_fails_in_a_part_of_its_starts_is_left_out_whole() -> None:
    rounds = Rounds((0, 0), ["good", "bad"], "good", 8, MOST_STARTS)
    assert [(task.first, task.end) for task in rounds.tasks if task.policy == "bad"] == [(0, 4), (4, 8)]
    why = UnusedFile("bad", "it fails")
    for task in list(rounds.tasks):
        rounds.note(task, why if task == Task(0, 0, "bad", 4, 8) else runs(1.0, 1.0, 1.0, 1.0))
    assert (set(rounds.replays), rounds.left_out, rounds.tasks) == ({"good"}, [why], [])
