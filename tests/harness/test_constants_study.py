"""Choosing constants of the default policy without the records they are judged on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import TRACES
from tests.harness import constants_study
from tests.harness.constants_study import AS_IS, CellCosts, alternatives, changed, choose, parts_of, studied

from ebbtide.backtesting.benchmark_records import read_benchmark_records
from ebbtide.policies.ebbtide import moves, options, slack

MARGIN, LOOKS = (("moves._MARGIN", 2.0),), (("slack._LOOKS", 0.5),)


def cell(usd: dict[tuple[tuple[str, float], ...], float], missed: int = 0) -> CellCosts:
    """A cell in which the policy costs 2 USD, and the cheapest rule 1 USD, but for some changes."""
    costs = dict.fromkeys(alternatives(), 2.0) | usd
    return CellCosts(1.0, costs, {changes: missed * (changes == LOOKS) for changes in costs})


def test_each_constant_gets_the_value_of_least_regret_that_is_late_least_often() -> None:
    cells = [cell({MARGIN: 1.5, LOOKS: 1.9}), cell({MARGIN: 2.4, LOOKS: 1.0})]
    assert choose(cells) == (*MARGIN, *LOOKS)
    assert choose(cells[1:]) == LOOKS
    assert choose([*cells, cell({}, missed=1)]) == MARGIN
    assert choose([cell({})]) == AS_IS
    assert cells[0].regret(MARGIN) == pytest.approx(0.5)
    # Where the policy is cheaper than every rule, it is the measure.
    assert cell({AS_IS: 0.8, MARGIN: 1.0}).regret(MARGIN) == pytest.approx(0.25)


def test_constants_are_changed_for_a_while_only() -> None:
    before = (moves._MARGIN, slack._WORKING_SHARE, options._DEAR)
    with changed((("moves._MARGIN", 2.0), ("slack._WORKING_SHARE", 2.0), ("options._DEAR", 0.5))):
        assert 2.0 * before[0] == moves._MARGIN
        assert pytest.approx(2.0 * before[1] / (1.0 + before[1])) == slack._WORKING_SHARE
        assert pytest.approx((before[2] - 1.0) / 2.0) == options._DEAR - 1.0
    assert before == (moves._MARGIN, slack._WORKING_SHARE, options._DEAR)


@pytest.mark.real_traces
def test_what_is_left_out_is_in_no_part_that_is_chosen_by() -> None:
    records = [one for one in read_benchmark_records(TRACES)[0] if one.name.startswith("ec2-auction-2015")]
    parts = list(parts_of(records, 2))
    of = {part.of for part in parts}
    assert {"ec2-auction-2015", "c3.xlarge", "us-east-1a"} <= of
    for part in parts:
        places = {place for market in part.record.prices for place in (market.instance_type, market.zone)}
        assert part.holds == places | {"ec2-auction-2015"}
        assert set(part.record.steps_per_hour) == {market.instance_type for market in part.record.prices}
        assert part.of == "ec2-auction-2015" or all(
            part.of in (market.instance_type, market.zone) for market in part.record.prices
        )


@pytest.mark.real_traces
@pytest.mark.long
def test_the_study_of_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = tmp_path / "records"
    records.mkdir()
    (records / "ec2-auction-2013-01.parquet").symlink_to(TRACES / "ec2-auction-2013-01.parquet")
    monkeypatch.setattr(constants_study, "TRACES", records)
    monkeypatch.setattr(constants_study, "KINDS", constants_study.KINDS[:1])
    # Processes of their own would not know of these.
    monkeypatch.setattr(constants_study, "in_processes", lambda function, items: list(map(function, items)))
    rows = studied(tmp_path, starts=1, auctions=1, records=1, seed=0)
    # One record of each: machines of a single type.
    assert [row.name for row in rows] == ["ec2-auction-2013-01", "generated"]
    for row in rows:
        assert row.cells > 0
        assert set(row.chosen.values()) <= {0.5, 2.0}
        assert row.worst_regret >= row.mean_regret >= 0.0
