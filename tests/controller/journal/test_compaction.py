"""A journal that has grown large drops old events, thins out old prices, and nothing else."""

from __future__ import annotations

import pytest
from tests.harness.deterministic import world
from tests.harness.deterministic.simulate import in_memory
from tests.postgres import Places

from ebbtide.controller import controller
from ebbtide.controller.journal import compaction, journal
from ebbtide.controller.journal.changes import Changes
from ebbtide.controller.journal.journal import Journal

pytestmark = pytest.mark.usefixtures("processes")


def test_old_events_go_and_old_prices_are_thinned_out(
    journal_place: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "EVERY_ROWS", 50)
    for name in ("MOST_MOMENTS", "MOST_PRICES"):
        monkeypatch.setattr(compaction, name, 100)
    kept, other = Journal(journal_place("journal")), Journal(journal_place("other"))
    other.keep({}, [(0.0, "start", 0, 0, "")], prices=[("a", 0.5, 9.0)])
    for number in range(500):
        time_s = float(number)
        kept.keep(
            {"phase": number},
            [(time_s, "saved", 0, 0, str(number))],
            Changes((), [(0, number, 0.5)]),
            [("a", time_s, 0.1 + number), ("b", 10.0 * (number // 100), 0.2)],
        )
    events = [int(moment[4]) for moment in kept.moments()]
    assert len(events) < 200
    assert events == list(range(500 - len(events), 500))
    prices = kept.prices()
    times = [time_s for time_s, _ in prices["a"]]
    assert len(times) < 200
    assert times[-50:] == [float(number) for number in range(450, 500)]
    # The oldest stays: a price holds from its time on.
    assert times[0] == 0.0
    assert [time_s for time_s, _ in prices["b"]] == [0.0, 10.0, 20.0, 30.0, 40.0]
    with kept._read() as session:
        assert session is not None
        assert len(session.rows(journal.METRICS)) == 500
    assert (kept.state("phase"), len(other.moments()), other.prices()) == (499, 1, {"a": [(0.5, 9.0)]})


def test_a_controller_keeps_the_newest_events_and_writes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(most: int) -> tuple[list[journal.Moment], int]:
        monkeypatch.setattr(controller, "_MOMENTS_KEPT", most)
        with in_memory() as place:
            simulated = world._World(3, place / "run", (), lambda scenario: scenario)
            assert simulated.run().violations == []
        return simulated.disk.moments, max(len(engine.timeline) for engine in simulated.engines.values())

    whole, short = written(10_000), written(4)
    assert short[0] == whole[0]
    assert short[1] <= 16 < whole[1]
