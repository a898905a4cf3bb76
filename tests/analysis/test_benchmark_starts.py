"""How many starts a cell of the benchmark takes: small cases worked out by hand, and random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.analysis.benchmark_starts import MOST_STARTS, Replays, cheapest, mean_costs_usd, need_more


def runs(*costs_usd: float, misses: int = 0) -> Replays:
    return Replays(costs_usd, tuple(1.0 for _ in costs_usd), misses, 0)


def test_policies_that_two_starts_tell_apart_need_no_more() -> None:
    assert need_more({"good": runs(1.0, 2.0), "dear": runs(2.0, 3.0)}, "good") == ()
    # The same cost in every start: it makes no difference which is the cheapest.
    assert need_more({"one": runs(1.0, 2.0), "twin": runs(1.0, 2.0)}, "one") == ()


def test_policies_that_may_be_the_cheapest_run_on_and_so_does_the_default() -> None:
    found = {"lucky": runs(1.0, 1.0), "rival": runs(0.5, 2.0), "dear": runs(9.0, 9.0), "default": runs(3.0, 3.0)}
    assert need_more(found, "default") == ("default", "lucky", "rival")
    # A policy that misses something is no measure.
    assert need_more(found | {"rival": runs(0.5, 2.0, misses=1)}, "default") == ()


def test_there_is_an_end_and_one_start_tells_nothing() -> None:
    random = np.random.default_rng(1)
    noisy = {name: runs(*random.uniform(1.0, 9.0, MOST_STARTS).tolist()) for name in "ab"}
    assert need_more(noisy, "a") == ()
    assert need_more({"a": runs(1.0), "b": runs(9.0)}, "a") == ()


def test_what_stopped_early_costs_its_ratio_to_what_was_cheaper() -> None:
    found = {"best": runs(2.0, 2.0, 6.0, 6.0), "other": runs(1.0, 5.0, 8.0, 8.0), "dear": runs(4.0, 4.0)}
    assert cheapest(found) == "best"
    # Over the first two starts "best" costs 2, half of "dear"; over all it costs 4.
    assert mean_costs_usd(found) == pytest.approx({"best": 4.0, "other": 5.5, "dear": 8.0})


@given(
    st.lists(st.lists(st.floats(0.1, 100.0), min_size=4, max_size=4), min_size=2, max_size=6),
    st.integers(0, 5),
)
def test_the_cheapest_and_the_default_are_always_among_them(costs: list[list[float]], default: int) -> None:
    found = {str(place): runs(*one) for place, one in enumerate(costs)}
    name = str(min(default, len(costs) - 1))
    more = need_more(found, name)
    assert not more or {cheapest(found), name} <= set(more)
    assert min(mean_costs_usd(found).values()) == pytest.approx(np.mean(found[cheapest(found)].costs_usd))
