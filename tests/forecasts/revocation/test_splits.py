from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.markets import C3, history

from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.inputs import fit_scaling, transformed
from ebbtide.forecasts.revocation.minutes import Minutes, minutes_of
from ebbtide.forecasts.revocation.splits import Split, origins, split_at


def test_parts_follow_in_time_an_hour_apart(split: Split) -> None:
    parts = [split.train.minute, split.validation.minute, split.test.minute]
    for earlier, later in pairwise(parts):
        # The last label of the earlier part is known an hour after its minute.
        assert later.min() - earlier.max() > 60


def test_parts_have_the_shares_asked_for(minutes: Minutes, split: Split) -> None:
    days = 24 * 60
    assert split.train.minute.min() == 60
    assert split.validation.minute.min() == 60 + 4 * days
    assert split.test.minute.min() == 60 + 5 * days + 60
    assert split.test.minute.max() < 60 + 6 * days + 60
    assert np.unique(split.train.market).tolist() == list(range(len(minutes.markets)))


def test_scaling_is_fitted_on_the_training_part_alone(minutes: Minutes, split: Split) -> None:
    """Everything from validation on is replaced; the scaling may not move."""
    table = transformed(minutes.features)
    before = fit_scaling(table, split.train, len(minutes.markets))
    altered = table.copy()
    altered[:, split.validation.minute.min() :] = 99.0
    after = fit_scaling(altered, split.train, len(minutes.markets))
    for name in ("usual_log_price", "mean", "deviation"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_origins_are_even_and_fit(minutes: Minutes) -> None:
    found = origins(minutes, 4, 1, 3)
    assert np.diff(found).min() > 0
    assert abs(np.diff(found, 2)).max() <= 1
    split_at(minutes, found[-1], 4, 1, stride=60)


def test_a_history_shorter_than_the_protocol_is_told(minutes: Minutes) -> None:
    with pytest.raises(
        InputError, match=r"the history has 8.0 days .*; training on 30 and testing on 3 needs 33.1"
    ):
        origins(minutes, 30, 3, 2)
    with pytest.raises(InputError, match="the history has 8.0 days; training on 30"):
        split_at(minutes, 0, 30, 3, stride=5)
    with pytest.raises(InputError, match="origins is 0"):
        origins(minutes, 4, 1, 0)


def test_a_stretch_that_is_one_hole_is_told() -> None:
    points = [(0.0, 0.1), (3600.0, 0.2), (20 * 86_400.0, 0.1)]
    laid = minutes_of(history({C3: points}, hours=21 * 24))
    with pytest.raises(InputError, match="no market has a complete minute for train .* a gap"):
        split_at(laid, 24 * 60, 5, 2, stride=5)
