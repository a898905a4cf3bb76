"""What of a training's machine time was kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.controller.kinds.state import Stretch, decode_stretches, encode_stretches, resumed


def stretch(**options: object) -> Stretch:
    given_values = {
        "lease_id": 0,
        "duration_s": 100.0,
        "number_from": 0,
        "step_from": 0.0,
        "step_done": 80.0,
        "step_kept": 60.0,
        "has_saved": True,
    }
    return Stretch(**{**given_values, **options})  # type: ignore[arg-type]


def test_what_was_saved_is_kept_and_the_rest_is_lost() -> None:
    assert stretch().kept_share == pytest.approx(0.75)
    assert stretch().lost_s == pytest.approx(25.0)
    assert stretch(is_final=True).kept_share == 1.0


def test_a_program_that_reports_no_steps_keeps_all_or_nothing() -> None:
    silent = {"step_done": 0.0, "step_kept": 0.0}
    assert stretch(**silent, has_saved=True).kept_share == 1.0
    assert stretch(**silent, has_saved=False).kept_share == 0.0


def test_what_begins_from_nothing_has_lost_all_before() -> None:
    before = [stretch(), stretch(step_from=60.0, step_done=90.0, step_kept=90.0)]
    assert [one.kept_share for one in resumed(before, 0, 0)] == [0.0, 0.0]


def test_a_checkpoint_that_was_stored_and_not_told_of_is_found_when_it_is_resumed_from() -> None:
    before = [stretch(step_kept=20.0, has_saved=False)]
    (found,) = resumed(before, 80.0, 3)
    assert found.kept_share == 1.0
    assert found.has_saved


def test_an_older_checkpoint_takes_what_came_after_it_with_it() -> None:
    before = [stretch(step_done=60.0, step_kept=60.0), stretch(step_from=60.0, step_done=90.0, step_kept=90.0)]
    first, second = resumed(before, 30.0, 1)
    assert first.kept_share == pytest.approx(0.5)
    assert second.kept_share == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(0, 400),
    st.integers(0, 9),
)
def test_never_more_than_all_nor_less_than_nothing_is_kept(
    pairs: list[tuple[int, int]], step: int, number: int
) -> None:
    at, before = 0, []
    for ran, saved in pairs:
        kept = at + min(ran, saved)
        before.append(stretch(step_from=float(at), step_done=float(at + ran), step_kept=float(kept)))
        at = kept
    found = resumed(before, float(step), number)
    assert all(0.0 <= one.kept_s <= one.duration_s for one in found)
    assert decode_stretches(encode_stretches(found)) == found
