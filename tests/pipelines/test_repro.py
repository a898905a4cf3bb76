"""A demonstration of the pipeline puts `dvc.lock` back, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from pipelines.repro import _LOCK, _lock_kept


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted() -> None:
    raise KeyboardInterrupt


def demonstrated(ending: Callable[[], object]) -> None:
    with _lock_kept():
        _LOCK.write_text("of this machine")
        ending()


@pytest.mark.parametrize("ending", [interrupted, lambda: os.kill(os.getpid(), signal.SIGTERM)])
def test_it_is_put_back_when_the_demonstration_is_ended(ending: Callable[[], object]) -> None:
    _LOCK.write_text("committed")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        demonstrated(ending)
    assert _LOCK.read_text() == "committed"


def test_it_is_put_back_at_the_end() -> None:
    _LOCK.write_text("committed")
    demonstrated(lambda: None)
    assert _LOCK.read_text() == "committed"


def test_without_one_the_pipeline_s_stays() -> None:
    demonstrated(lambda: None)
    assert _LOCK.read_text() == "of this machine"
