"""How often to save: the interval that loses least, against trying all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.markets import job

from ebbtide.errors import InputError
from ebbtide.jobs.checkpoint_interval import best_interval_s, fits_notice, saved_periodically
from ebbtide.jobs.job import Checkpointing


def test_it_loses_no_more_than_any_other_interval() -> None:
    """Lost to saving: save / interval; to revocations, half an interval each: interval / 2 / MTTR."""
    tried = np.arange(10.0, 5_000.0, 1.0)
    lost = 20.0 / tried + tried / 2.0 / 7_200.0
    assert best_interval_s(20.0, 7_200.0) == pytest.approx(tried[lost.argmin()], abs=1.0)
    with pytest.raises(InputError, match="both must be positive"):
        best_interval_s(0.0, 1.0)


def test_a_checkpoint_fits_the_notice_or_does_not() -> None:
    """62.83 MB/s with one core (SpotTune IV-F): 10 GB take 159 s, on sixteen cores 75 s."""
    large = job(checkpoint=Checkpointing(save_s=0.0, size_bytes=10_000_000_000, by_machine=True))
    assert not fits_notice(large, 120.0, 1)
    assert fits_notice(large, 120.0, 16)
    assert not fits_notice(job(checkpoint=None), 120.0, 16)


def test_a_job_saved_periodically() -> None:
    saved = saved_periodically(job(save_s=50.0), 4, 3_600.0).checkpoint
    assert saved is not None
    assert saved.interval_s == pytest.approx(math.sqrt(2 * 50 * 3600))
    for_ever = saved_periodically(job(save_s=50.0), 4, math.inf).checkpoint
    assert for_ever is not None
    assert for_ever.interval_s is not None
    assert math.isfinite(for_ever.interval_s)
