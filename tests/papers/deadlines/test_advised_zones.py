"""Advice over several zones as rows: which zones are studied together, and what is compared with what."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.forecasts.capacity.records import ZoneRecord
from ebbtide_papers.deadlines import advised_zones_study
from ebbtide_papers.deadlines.advised_zones_study import (
    ADVISED,
    BOUND,
    FAILS_OVER,
    OPTIMUM,
    sets_together,
    study_advised_zones,
)
from ebbtide_papers.deadlines.advisor_rows import advised_zones_rows

DAYS = 6


def record(zone: str, seed: int, day: str = "2023-02-15", share: float = 0.5) -> ZoneRecord:
    """Hours with a machine and hours without, by chance, in ticks of ten minutes."""
    hours = np.random.default_rng(seed).random(DAYS * 24) < share
    return ZoneRecord(f"{zone} v100x1 {day}", np.repeat(hours, 6), 600.0)


def test_pairs_and_larger_sets_of_what_was_recorded_together() -> None:
    records = [record("a", 1), record("b", 2), record("c", 3), record("a", 4, day="2022-10-26")]
    found = [tuple(one.name[0] for one in chosen) for chosen in sets_together(records)]
    # All three together would leave no zone to learn from.
    assert found == [("a", "b"), ("a", "c"), ("b", "c")]
    assert len(sets_together(records, most_pairs=2)) == 2
    with_another = [*records, record("d", 5, day="2022-10-26")]
    found = [tuple(one.name[0] for one in chosen) for chosen in sets_together(with_another)]
    assert found == [("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c"), ("a", "d")]
    assert not sets_together([record("a", 1), record("a", 2, day="2022-10-26")])


def test_nobody_beats_the_optimum_and_all_are_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tables of long work take long to solve.
    monkeypatch.setattr(advised_zones_study, "WORK_H", 3.0)
    monkeypatch.setattr(advised_zones_study, "DEADLINES_H", (5.0, 6.0))
    records = [record("a", 1), record("b", 2), record("c", 3)]
    chosen = sets_together(records)[0]
    found = study_advised_zones(records, chosen, starts=2, seed=0)
    assert found.misses == 0
    assert found.zones == ("a", "b")
    # Two starts in four cells; those on advice and the bound are charged by whole ticks, the others by the second.
    assert {name: len(usd) for name, usd in found.usd.items()} == dict.fromkeys(
        (ADVISED, FAILS_OVER, OPTIMUM, BOUND), 8
    )
    for name in (ADVISED, FAILS_OVER, BOUND):
        assert (found.usd[name] >= found.usd[OPTIMUM] - 0.01).all()
    rows = {row.id: row for row in advised_zones_rows([found])}
    assert rows["zones_advisor_misses"].holds
    ratio = found.usd[ADVISED].mean() / found.usd[BOUND].mean()
    assert rows["zones_advisor_cost_vs_bound"].ours == pytest.approx(ratio)
    assert "optimum" in rows["zones_advisor_cost_vs_bound"].note
