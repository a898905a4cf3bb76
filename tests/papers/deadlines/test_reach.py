"""What is in reach without foresight: no policy is below the bound, and a row that fails says so."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.capacity.records import ZoneRecords
from ebbtide.market.markets import Place
from ebbtide.policies.deadline.costs import ZonesProblem
from ebbtide_papers.deadlines import reach_study, zone_rows
from ebbtide_papers.deadlines.reach_study import Reach, study_reach
from ebbtide_papers.deadlines.zone_rows import multi_rows
from ebbtide_papers.deadlines.zones import ZoneRuns, ZonesStudy

USD = {"a": 30.0, "b": 12.0, "c": 20.0, "d": 14.0}


def study() -> ZonesStudy:
    """Four zones of which the first cost most; six hours of work in nine."""
    model = default_spell_models().otherwise
    zones, ticks = tuple(USD), 3_000
    up = np.stack([model.drawn(ticks, 600.0, np.random.default_rng(zone)) for zone in range(len(zones))])
    usd = np.repeat(np.array([[1.3], [1.0], [1.2], [1.1]]), ticks, axis=1)
    places = tuple(Place("aws", region) for region in ("us-east-1", "us-east-2", "us-west-1", "us-west-2"))
    records = ZoneRecords("week", "h100", zones, places, 1, up, usd, 3.0, 600.0, 1.7e9)
    nowhere = np.zeros((1, 1))
    problem = ZonesProblem(6.0, 9.0, 0.2, 3.0, zones, (1.3, 1.0, 1.2, 1.1), (0,) * 4, nowhere, nowhere)

    def runs(usd: float) -> ZoneRuns:
        return ZoneRuns.of([(usd, 0.0, 0.0, 1, 1)] * 3)

    others = {"deadline": runs(11.9), "next-cheapest failover": runs(15.0), "optimum": runs(8.0)}
    alone = {f"uniform-progress {zone}": runs(cost) for zone, cost in USD.items()}
    return ZonesStudy(records, problem, 600.0, np.inf, others | alone)


@pytest.mark.long
def test_no_policy_is_below_the_bound_of_the_three_cheapest_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach_study, "RUNS", 300)
    reach = study_reach(study())
    assert reach.zones == ("b", "d", "c")
    assert reach.bound_usd < reach.ours_usd + 2 * reach.error_usd
    assert reach.ours_usd < 1.05 * reach.bound_usd
    assert reach.ours_usd < reach.failover_usd < reach.best_zone_usd < 6.2 * 3.0
    assert study_reach(study()) == reach


def test_a_row_that_fails_says_what_is_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    reach = Reach(("b", "d"), 9.0, 9.9, 11.0, 10.0, 0.1)
    monkeypatch.setattr(zone_rows, "study_reach", lambda _study: reach)
    rows = {row.id: row for row in multi_rows([], [study()])}
    # 11.9 of 12 USD in the best zone is too much, of 15 USD by failover it is not.
    failing = rows["multi_h100_whole_gang_cost_vs_best_zone"]
    assert not failing.holds
    assert "models of b, d: this ratio 0.990, that of the least without foresight 0.900" in failing.note
    assert rows["multi_h100_whole_gang_cost_vs_failover"].holds
    assert "drawn" not in rows["multi_h100_whole_gang_cost_vs_failover"].note
