"""A demonstration of the pipeline puts `dvc.lock` back, however it ends."""

from __future__ import annotations

import pytest
from pipelines.repro import _KEPT, _LOCK, _lock_kept


def ended_by(error: BaseException | None) -> None:
    with _lock_kept():
        _LOCK.write_text("of this machine")
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, SystemExit(1), KeyboardInterrupt()])
def test_it_is_put_back(error: BaseException | None) -> None:
    _LOCK.write_text("committed")
    if error is None:
        ended_by(None)
    else:
        with pytest.raises(type(error)):
            ended_by(error)
    assert _LOCK.read_text() == "committed"
    assert not _KEPT.exists()


def test_one_that_a_killed_demonstration_left_is_put_back_by_the_next() -> None:
    _LOCK.write_text("of this machine")
    _KEPT.parent.mkdir(parents=True)
    _KEPT.write_text("committed")
    ended_by(None)
    assert (_LOCK.read_text(), _KEPT.exists()) == ("committed", False)


def test_without_one_the_pipeline_s_stays() -> None:
    ended_by(None)
    assert _LOCK.read_text() == "of this machine"
