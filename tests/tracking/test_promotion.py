"""The rule of promotion: exact cases, and that two versions never replace each other by the same runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ebbtide.tracking.promotion import Interval, PolicyRuns, Verdict, VersionComparison, compared, judged

NAN = math.nan


def runs(*costs: float, late: tuple[int, ...] = ()) -> PolicyRuns:
    return PolicyRuns(tuple(costs), tuple(place in late for place in range(len(costs))))


def verdict(champion: PolicyRuns, challenger: PolicyRuns) -> Verdict:
    return judged(compared(champion, challenger))[0]


CHAMPION = (100.0, 110.0, 90.0, 105.0, 95.0)


@pytest.mark.parametrize(
    ("challenger", "expected"),
    [
        # Cheaper by 1 to 3 from every start: the interval is -3.24 to -0.76.
        (runs(99.0, 107.0, 88.0, 102.0, 94.0), Verdict.CHEAPER),
        # As much cheaper in the mean, but for one start alone.
        (runs(90.0, 110.0, 90.0, 105.0, 95.0), Verdict.CHALLENGER),
        # More expensive from every start.
        (runs(101.0, 113.0, 92.0, 108.0, 96.0), Verdict.CHALLENGER),
        # Within a percent, and the most expensive run costs less.
        (runs(100.1, 109.8, 90.1, 105.0, 94.9), Verdict.LESS_RISKY),
        # Within a percent, and the most expensive run costs more.
        (runs(99.9, 110.2, 89.9, 105.0, 95.1), Verdict.CHALLENGER),
        # The same in every run.
        (runs(*CHAMPION), Verdict.NOT_ASKED),
        # Cheaper, but a run is late now.
        (runs(99.0, 107.0, 88.0, 102.0, 94.0, late=(1,)), Verdict.CHALLENGER),
        # Cheaper, but a run does not finish now.
        (runs(99.0, 107.0, 88.0, 102.0, NAN), Verdict.CHALLENGER),
    ],
)
def test_a_challenger_has_to_be_cheaper_or_as_cheap_and_less_risky(
    challenger: PolicyRuns, expected: Verdict
) -> None:
    assert verdict(runs(*CHAMPION), challenger) is expected


def test_as_cheap_with_fewer_misses_is_less_risky_whatever_the_highest_cost() -> None:
    champion, challenger = runs(*CHAMPION, late=(0,)), runs(99.9, 110.2, 89.9, 105.0, 95.1)
    found, told = judged(compared(champion, challenger))
    assert found is Verdict.LESS_RISKY
    assert "0 runs miss, 1 with the champion" in told
    # A run that does not finish counts as a miss, and has no cost to compare.
    assert verdict(runs(*CHAMPION, NAN), runs(100.1, 109.8, 90.1, 105.0, 94.9, 500.0)) is Verdict.LESS_RISKY
    assert verdict(runs(*CHAMPION, 500.0), runs(100.1, 109.8, 90.1, 105.0, 94.9, NAN)) is Verdict.CHALLENGER


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1.0, 1.0, Verdict.LESS_RISKY),
        (-1.0, 1.001, Verdict.CHALLENGER),
        (-1.001, 1.0, Verdict.CHALLENGER),
        (-1.0, 0.0, Verdict.LESS_RISKY),
        (-1.0, -1e-9, Verdict.CHEAPER),
        (0.0, 1.0, Verdict.LESS_RISKY),
        (1e-9, 1.0, Verdict.CHALLENGER),
    ],
)
def test_the_edges_of_the_rule(low: float, high: float, expected: Verdict) -> None:
    interval = Interval((low + high) / 2, low, high)
    found = VersionComparison(20, (100.0, 100.0), (120.0, 119.0), (0, 0), interval, decides=True)
    assert judged(found)[0] is expected


def test_too_few_runs_decide_nothing_and_the_reason_says_so() -> None:
    found, told = judged(compared(runs(2.0, NAN), runs(1.0, 1.0)))
    assert found is Verdict.CHALLENGER
    assert told == "remains a challenger: both finished from 1 starts, too few to compare"
    with pytest.raises(ValueError):
        compared(runs(1.0), runs(1.0, 2.0))


def test_the_interval_is_students() -> None:
    champion, challenger = runs(*CHAMPION), runs(99.0, 107.0, 88.0, 102.0, 94.0)
    found = compared(champion, challenger, 0.9).difference
    assert found is not None
    differences = [new - old for new, old in zip(challenger.cost_usd, champion.cost_usd, strict=True)]
    low, high = stats.t.interval(0.9, 4, loc=sum(differences) / 5, scale=stats.sem(differences))
    assert (found.mean, found.low, found.high) == pytest.approx((-2.0, low, high))


def test_a_report_has_plain_values() -> None:
    told = compared(runs(1.0, 2.0, NAN), runs(NAN, NAN, 3.0)).to_dict()
    assert told["cost_usd"] == {"champion": None, "challenger": None}
    assert told["misses"] == {"champion": 1, "challenger": 2}
    assert told["difference_usd"] is None


COST = st.floats(0.01, 1000.0) | st.just(NAN)
RUN = st.tuples(COST, COST, st.booleans(), st.booleans())


@given(st.lists(RUN, min_size=1, max_size=12), st.floats(0.5, 0.99))
def test_two_versions_are_never_both_promoted_by_the_same_runs(
    pairs: list[tuple[float, float, bool, bool]], confidence: float
) -> None:
    one = PolicyRuns(tuple(row[0] for row in pairs), tuple(row[2] for row in pairs))
    other = PolicyRuns(tuple(row[1] for row in pairs), tuple(row[3] for row in pairs))
    there = judged(compared(one, other, confidence))[0]
    back = judged(compared(other, one, confidence))[0]
    assert not (there.is_promotion and back.is_promotion)


@given(
    st.lists(st.floats(1.0, 1.02), min_size=2, max_size=12),
    st.lists(st.floats(1.0, 1.02), min_size=12, max_size=12),
)
def test_nor_where_costs_are_nearly_the_same(some: list[float], others: list[float]) -> None:
    one, other = runs(*some), runs(*others[: len(some)])
    assert not (verdict(one, other).is_promotion and verdict(other, one).is_promotion)


def test_verdicts_that_promote() -> None:
    promoting = {each for each in Verdict if each.is_promotion}
    assert promoting == {
        Verdict.FIRST,
        Verdict.REPLACES,
        Verdict.CHEAPER,
        Verdict.LESS_RISKY,
        Verdict.MEASURED,
    }
