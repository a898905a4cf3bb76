"""A timeline of which the oldest moments are dropped, and the others keep their numbers."""

from __future__ import annotations

from ebbtide.engine.timeline import Moment, Timeline


def test_what_is_dropped_changes_no_number() -> None:
    timeline = Timeline()
    for time_s in range(10):
        timeline.add(Moment(float(time_s), "saved", 0, 0, "", 0.0))
    timeline.drop_before(4)
    timeline.drop_before(3)
    timeline.add(Moment(10.0, "saved", 0, 0, "", 0.0))
    assert [moment.time_s for moment in timeline] == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert [moment.time_s for moment in timeline.since(8)] == [8.0, 9.0, 10.0]
    assert len(timeline.since(0)) == 7
    assert timeline.since(11) == []
    timeline.drop_before(99)
    assert len(timeline) == 0
    timeline.add(Moment(11.0, "saved", 0, 0, "", 0.0))
    assert [moment.time_s for moment in timeline.since(11)] == [11.0]
